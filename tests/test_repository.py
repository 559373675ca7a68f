"""What the repository says of itself: version, cards, oldest packages."""

import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import bench_record
import oldest
import pytest
import website
import yaml

import fpl_tune
from fpl_tune import methods
from fpl_tune.data import shapes

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / ".github" / "docs"


def test_the_citation_names_the_version() -> None:
    cited = yaml.safe_load((ROOT / ".github" / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == fpl_tune.__version__


def test_the_model_card_names_the_hash_of_the_weights() -> None:
    weights = resources.files("fpl_tune.clip") / "weights" / "compact.safetensors"
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in (DOCS / "model_card.md").read_text(encoding="utf-8")


def test_the_data_card_names_the_hash_of_the_images() -> None:
    images = b"".join(shapes.pool(style, "test", per_class=10)[0].tobytes() for style in shapes.STYLES)
    assert hashlib.sha256(images).hexdigest() in (DOCS / "data_card.md").read_text(encoding="utf-8")


def test_every_requirement_has_an_oldest_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r'^ *"([A-Za-z0-9_.-]+)', listed, re.MULTILINE))
    assert named - {line.partition("==")[0] for line in oldest.oldest()} == {"torch"}


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
    page, charts = bench_record.page(file)
    assert "| 2026-01-01 | c1 | 0.25 | 9 |\n| 2026-01-02 | c2 | 0.5 | 9 |" in page
    (drawn,) = charts
    assert f"images/{drawn}" in page
    assert charts[drawn].startswith(b"<?xml")
