"""What the repository says of itself: version, cards, required packages."""

import hashlib
import json
import os
import re
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest
import website
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fpl_tune
from fpl_tune import methods
from fpl_tune.data import shapes
from fpl_tune.study.versions import OLDEST_RAY

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "reference"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LISTED: list[str] = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
REQUIRED = [Requirement(text) for text in LISTED]


def test_the_citation_names_the_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == fpl_tune.__version__


def test_the_model_card_names_the_hash_of_the_weights() -> None:
    weights = resources.files("fpl_tune.clip") / "weights" / "compact.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in (DOCS / "model_card.md").read_text(encoding="utf-8")


def test_the_data_card_names_the_hash_of_the_images() -> None:
    images = b"".join(shapes.pool(style, "test", per_class=10)[0].tobytes() for style in shapes.STYLES)
    assert hashlib.sha256(images).hexdigest() in (DOCS / "data_card.md").read_text(encoding="utf-8")


def test_every_requirement_has_an_oldest_version() -> None:
    bounded = {one.name for one in REQUIRED if any(bound.operator == ">=" for bound in one.specifier)}
    assert {one.name for one in REQUIRED} - bounded == {"fpl-tune"}


def test_doctor_names_a_ray_that_is_older_than_the_range() -> None:
    (ray,) = (one for one in REQUIRED if one.name == "ray")
    assert f">={'.'.join(map(str, OLDEST_RAY))}" in str(ray.specifier).split(",")


OF_TORCH = re.compile("torch|torchvision|triton|cuda-.*|nvidia-.*")
"""Packages that follow from the build of PyTorch, which TORCH in the Makefile chooses."""


def pins(environment: dict[str, str]) -> dict[str, str]:
    """The version of each package in constraints.txt that holds in an environment, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    listed = [Requirement(line) for line in lines if not line.startswith("#")]
    held = [one for one in listed if one.marker is None or one.marker.evaluate(environment)]
    assert len({one.name for one in held}) == len(held), "a package has one version in an environment"
    assert all(re.fullmatch(r"==[^*]+", str(one.specifier)) for one in held), "versions are exact"
    return {canonicalize_name(one.name): str(one.specifier)[2:] for one in held}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_constraints_lie_in_the_ranges(python: str, system: str) -> None:
    pinned = pins({"python_version": python, "python_full_version": f"{python}.1", "sys_platform": system})
    assert not any(OF_TORCH.fullmatch(name) for name in pinned)
    for required in REQUIRED:
        if required.name not in ("torch", "fpl-tune"):
            assert required.specifier.contains(pinned[canonicalize_name(required.name)]), required


@pytest.mark.skipif(
    os.environ.get("FPL_TUNE_TEST_PINNED") != "constraints.txt", reason="the environment is not one of `make setup`"
)
def test_what_is_installed_is_what_constraints_say() -> None:
    pinned, installed, waiting = pins({}), dict[str, str](), [Requirement("fpl-tune[dev]")]
    while waiting:
        required = waiting.pop()
        name = canonicalize_name(required.name)
        wanted = [Requirement(text) for text in metadata.requires(name) or []]
        for extra in required.extras or {""}:
            met = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
            waiting += [one for one in met if one.extras - {extra} or canonicalize_name(one.name) not in installed]
        installed[name] = metadata.version(name)
    found = {name: version for name, version in installed.items() if not OF_TORCH.fullmatch(name)}
    del found["fpl-tune"]
    assert found == {name: pinned.get(name) for name in found}
    assert len(found) > 100


@pytest.mark.parametrize("name", methods.catalogue())
def test_the_site_has_the_equation_defaults_and_search_space_of_a_method(name: str) -> None:
    page = website.method_page(name)
    found = set(re.findall(r"^## (.*)", page, re.MULTILINE)) - {"On the embedded data set"}
    trained = {"Hyper-parameters", "Search space"} if name != "zeroshot" else set[str]()
    assert found == {"Equation", "Run it"} | trained


def test_the_site_has_the_figures_of_a_method(make_store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = "[{label: promptfl, method: promptfl}, {label: fedprox, method: fedprox}]"
    store = make_store(body=f"axes: {{split: [{{label: few, data.shots: 2}}], variant: {variants}}}\n", name="zoo")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(store.root))
    figures = website.method_page("proximal").partition("## On the embedded data set")[2]
    assert re.search(r"^\| `fedprox` \| `zoo` \| few \| \d\d\.\d ± \d\.\d \| \d \|$", figures, re.MULTILINE)
    assert "`promptfl` |" not in figures


def test_benchmarks_are_drawn_by_date(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    common = {"machine": "m", "bench": "round", "ratio": 9}
    lines = [{"date": f"2026-01-0{day}", "commit": f"c{day}", "seconds": day / 4, **common} for day in (1, 2)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page, charts = website.benchmarks(file)
    assert "| 2026-01-01 | c1 | 0.25 | 9 |\n| 2026-01-02 | c2 | 0.5 | 9 |" in page
    (drawn,) = charts
    assert f"images/{drawn}" in page
    assert charts[drawn].startswith(b"<?xml")
