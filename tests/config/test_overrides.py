"""Overrides, as texts of the command line and as mappings in Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune import config
from fpl_tune.config import Study
from fpl_tune.config.overrides import apply, parse
from fpl_tune.core.errors import ConfigError
from fpl_tune.study.grid import expand

WORDS = st.text(st.characters(categories=("L", "N", "P", "S")) | st.sampled_from(" ,'\"=\\{}[]:~#%()\n"), max_size=12)
SCALARS = WORDS | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
NAMES = st.from_regex(r"[a-m]{5,6}(\.[b-k]{1,4})?", fullmatch=True)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


@given(st.lists(VALUES))
def test_every_python_value_arrives_unchanged(value: list[Any]) -> None:
    (override,) = parse([{"let.x": value}])
    assert (override.field, repr(override.value)) == ("let.x", repr(value)), "types included: '1' is no number"


@pytest.mark.parametrize(
    "text", ["a, b", 'it\'s "so"', "x=1", "λ ≥ 0.5 – é", "0.5", "null", "~home", "a\\", "{a: [1]}", "two\nlines"]
)
def test_a_string_stays_a_string_in_a_study(text: str, compose: Callable[..., Study], tmp_path: Path) -> None:
    compose()
    spec = config.compose_study(str(tmp_path / "tiny.yaml"), [{"note": text, "axes.optim.lr": [0.1]}])
    assert spec.note == text


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ({"method": "pfedmoap", "method.lam": 0.5}, ["method=pfedmoap", "method.lam=0.5"]),
        ({"method": {"name": "pfedmoap", "lam": 1e-5}}, ["method=pfedmoap", "method.lam=1e-05"]),
        ({"method": {"name": "private", "inner": {"name": "fedpgp"}}}, ["method={name:private,inner:{name:fedpgp}}"]),
        ({"method": "my.module:Class", "data": {}}, ["method=my.module:Class"]),
        ({"optim": {"lr": np.float32(0.5), "groups": {"gate": 1}}}, ["optim.lr=0.5", "optim.groups={gate:1}"]),
        ({"axes.method.lam": np.arange(3), "seeds": range(2)}, ["axes.method.lam=[0,1,2]", "seeds=[0,1]"]),
        ({"axes": {"optim": {"lr": torch.tensor([0.5, 1.0])}}}, ["axes.optim.lr=[0.5,1.0]"]),
        ({"data.root": Path("my data")}, ["data.root='my data'"]),
        ({"data.names": {"a b": "x"}, "search.trials": None}, ["data.names={a b:x}", "search.trials=null"]),
        (
            {"search": {"sampler": {"name": "tpe"}, "space": {"method": {"lam": {"low": 0, "high": 1}}}}},
            ["search.sampler={name:tpe}", "search.space.method.lam={low:0,high:1}"],
        ),
        ({"tracking.enabled": np.bool_(False), "let": {}}, ["tracking.enabled=false", "let={}"]),
    ],
)  # fmt: skip
def test_a_mapping_is_what_one_would_type(given: dict[str, Any], texts: list[str]) -> None:
    read, typed = parse([given]), parse(texts)
    assert [(override.field, override.value) for override in read] == [(each.field, each.value) for each in typed]


@pytest.mark.parametrize(
    ("overrides", "axes"),
    [
        (["axes.optim.lr=[1]"], {"method": {"lam": [0, 1]}, "optim": {"lr": [1]}}),
        (["axes.method.lam=[2]"], {"method": {"lam": [2]}}),
        (["axes={method.lam: [2]}"], {"method": {"lam": [2]}}),
        (["axes={}", "axes.method=[coop]"], {"method": ["coop"]}),
        (["~axes.method", "axes.method=[coop]"], {"method": ["coop"]}),
        (["~axes.method.lam", "axes.optim.lr=[1]"], {"method": {}, "optim": {"lr": [1]}}),
    ],
)
def test_overrides_are_applied_in_order(overrides: list[str], axes: dict[str, Any]) -> None:
    node = {"axes": {"method": {"lam": [0, 1]}}}
    apply(node, parse(overrides))
    assert node["axes"] == axes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"optim.lr": 1, "optim": {"lr": 2}}, "optim.lr has two values: 1 and 2. Remove one."),
        ({"method": "promptfl", "method.name": "coop"}, "method has two values: 'promptfl' and 'coop'. Remove one."),
        ({"optim lr": 1}, "There is no field 'optim lr'. Write a field's dotted name, such as 'optim.lr'."),
        ({"a=b": 1}, "There is no field 'a=b'. Write a field's dotted name, such as 'optim.lr'."),
        ({1: 2}, "There is no field '1'. Write a field's dotted name, such as 'optim.lr'."),
        ({"seeds": {1, 2}}, "seeds must be a number, string, bool, None, list or mapping, but is {1, 2}."),
        (["optim.lr=1"], "Overrides are a mapping such as {'optim.lr': 0.1}, or strings, not ['optim.lr=1']."),
    ],
)  # fmt: skip
def test_what_no_override_can_hold_is_refused_in_one_line(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([given])
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (
            {"axes": {"variant": [{"label": "a, b", "method": "promptfl"}, {"label": "c", "optim.momentum": 0.5}]}},
            ["axes={variant:[{label:'a, b',method:promptfl},{label:c,optim.momentum:0.5}]}"],
        ),
        ({"references": [{"method": "zeroshot"}], "seeds": (3, 5)}, ["references=[{method:zeroshot}]", "seeds=[3,5]"]),
        ({"method": "fedprox", "method.mu": 0.1, "data": "shapes"}, ["method=fedprox", "method.mu=0.1", "data=shapes"]),
    ],
)  # fmt: skip
def test_a_study_is_that_of_the_texts(
    given: dict[str, Any], texts: list[str], compose: Callable[..., Study], tmp_path: Path
) -> None:
    compose()
    file = str(tmp_path / "tiny.yaml")
    ours, theirs = (config.compose_study(file, each) for each in ([given], texts))
    assert ours == theirs
    assert [cell.id for cell in expand(ours)] == [cell.id for cell in expand(theirs)]


def test_keys_that_are_no_strings_are_no_paths() -> None:
    node = {"let": {1: "one", "2.5": "text"}}
    apply(node, parse(["let={1:uno,2.5:number}"]))
    assert node["let"] == {1: "uno", "2.5": "text", 2.5: "number"}
