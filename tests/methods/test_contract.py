"""The contract, for every method and composition: each joins by one line of METHODS."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import fpl_tune
from fpl_tune import methods
from fpl_tune.testing import CONTRACT, Toy, check_method, toy

PACKAGE = Path(fpl_tune.__file__).parent
REPOSITORY = Path(__file__).parents[2]

# Name of the method or composition, and what the toy towers (D=24, d=32, K=6, N=4) ask for.
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("zeroshot", {}),
    ("coop", {"n_ctx": 2}),
    ("promptfl", {"n_ctx": 2}),
    ("pfedmoap", {"n_ctx": 2, "experts": 3, "d_gating": 12, "heads": 3}),
    ("pfedmoap", {"n_ctx": 2, "experts": 3, "gate": "linear", "selection": "random"}),
    ("pfedmoap", {"n_ctx": 2, "experts": 4, "d_gating": 24, "aggregate_gate": True, "attention_scale": "sqrt"}),
]


def node(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a method: its file in conf/method where there is one, and overrides by dotted field."""
    file = PACKAGE / "conf" / "method" / f"{name}.yaml"
    found: dict[str, Any] = yaml.safe_load(file.read_text()) if file.exists() else {"name": name}
    found = found.get("method", found)
    for field, value in overrides.items():
        at = found
        *outer, last = field.split(".")
        for step in outer:
            at = at[step]
        at[last] = value
    return found


def source_files() -> list[Path]:
    return sorted(p for p in (PACKAGE / "methods").glob("*.py") if p.name != "__init__.py")


@pytest.fixture(scope="module", params=METHODS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(METHODS)])
def case(request: pytest.FixtureRequest) -> Toy:
    return toy(methods.build(node(*request.param)))


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(case: Toy, check: Callable[[Toy], None]) -> None:
    check(case)


def test_check_method_runs_the_whole_contract() -> None:
    check_method(methods.build({"name": "promptfl", "n_ctx": 1}))


def test_every_method_and_composition_is_in_the_list() -> None:
    files = {p.stem for p in source_files()}
    compositions = {p.stem for p in (PACKAGE / "conf" / "method").glob("*.yaml")}
    assert files | compositions == {name for name, _ in METHODS}


@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS}))
def test_every_method_has_a_search_space(name: str) -> None:
    if name == "zeroshot":
        pytest.skip("zero-shot CLIP has no hyper-parameters")
    found = yaml.safe_load((REPOSITORY / "search_spaces" / f"{name}.yaml").read_text())
    assert found["space"]
    assert found["published"]


@pytest.mark.parametrize("file", source_files(), ids=lambda p: p.stem)
def test_every_method_cites_its_paper_and_has_a_test_of_its_own(file: Path) -> None:
    assert re.search(r"https://\S+", ast.get_docstring(ast.parse(file.read_text())) or "")
    assert (Path(__file__).parent / f"test_{file.stem}.py").exists()


@pytest.mark.parametrize("name", sorted({name for name, _ in METHODS}))
def test_stages_of_compositions_can_be_built(name: str) -> None:
    file = PACKAGE / "conf" / "method" / f"{name}.yaml"
    stages = yaml.safe_load(file.read_text()).get("stages", []) if file.exists() else []
    for stage in stages:
        if stage["method"] is not None:
            methods.build(stage["method"])
        assert stage["rounds"] >= 1
        assert stage["epochs"] >= 1
