"""Specifications: ranges of their fields, what stands for a value, and the line that refuses one."""

import math
from dataclasses import field
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fpl_tune.core import spec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.spec import SPEC, Seeds, join_name, quoted, validated, with_place

TINY = math.ulp(0.0)
BELOW_1, ABOVE_1 = math.nextafter(1, 0), math.nextafter(1, 2)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        (spec.AtLeastOne, [1, 10**6], [0, 10**6 + 1]),
        (spec.Seed, [0, 2**63 - 1], [-1, 2**63]),
        (spec.Rate, [0.0, 1e9], [-TINY, math.inf, math.nan]),
        (spec.Positive, [TINY, math.inf], [0.0]),
        (spec.Share, [0.0, 1.0], [-TINY, ABOVE_1]),
        (spec.Fraction, [TINY, 1.0], [0.0, ABOVE_1]),
        (spec.Decay, [0.0, BELOW_1], [-TINY, 1.0]),
    ],
)
def test_the_ends_of_ranges(kind: Any, inside: list[float], outside: list[float]) -> None:
    check = TypeAdapter[Any](kind).validate_python
    assert [check(value) for value in inside] == inside
    for value in outside:
        with pytest.raises(ValidationError):
            check(value)


@pytest.mark.parametrize(
    ("seeds", "all_", "first", "looks"),
    [
        (3, [1, 2, 3], [1, 2, 3], []),
        ([4, 2], [4, 2], [4, 2], []),
        ("until_decided", [1, 2, 3, 4], [1, 2], [2, 4]),
    ],
)
def test_seeds_are_a_number_a_list_or_those_of_looks(seeds: Any, all_: Any, first: Any, looks: Any) -> None:
    study: Any = type("Study", (Seeds, SimpleNamespace), {})(seeds=seeds, looks=(2, 4))
    assert (study.seed_list(), study.first_seeds(), study.declared_looks()) == (all_, first, looks)


def test_a_sentence_has_one_place() -> None:
    assert with_place("a photo of a {}.") == "a photo of a {}."
    for text in ("a photo", "{} {}", "{0}", "{!r}", "{:>3}", "{", "}"):
        with pytest.raises(ValueError, match=r"must be null or a string with \{\} once"):
            with_place(text, "null or ")


@dataclass(frozen=True, config=SPEC)
class Inner:
    rate: spec.Share = 0.5
    kind: Literal["plain", "fancy"] = "plain"


@dataclass(frozen=True, config=SPEC)
class Outer:
    name: str
    count: int = 1
    factor: float = 1.0
    on: bool = False
    limit: int | None = None
    inner: Inner = field(default_factory=Inner)
    words: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "x.name is missing. Give it a value."),
        ({"name": "a", "cuont": 1}, "There is no field 'x.cuont'. Did you mean 'x.count'…?"),
        ({"name": "a", "inner": {"rat": 1}}, "There is no field 'x.inner.rat'. Did you mean 'x.inner.rate'?"),
        ({"name": "a", "inner": {"zzzzzz": 1}}, "There is no field 'x.inner.zzzzzz'."),
        ({"name": "a", "inner": {"rate": 2.0}}, "x.inner.rate must be <= 1, but is 2.0."),
        ({"name": "a", "inner": {"kind": "fanci"}}, "There is no x.inner.kind 'fanci'. Did you mean 'fancy'?"),
        ({"name": "a", "inner": 3}, "x.inner must be …, but is 3."),
        ({"name": "a", "count": "one"}, "x.count must be …, but is 'one'."),
        ({"name": "a", "count": 1.5}, "x.count must be an integer, but is 1.5."),
        ({"name": "a", "count": "none"}, "x.count must be …, but is 'none'. Write null."),
        ({"name": "a", "count": None}, "x.count cannot be null. Leave it out, or remove it: '~x.count'."),
        ({"name": "a", "count": True}, "x.count must be …, but is True."),
        ({"name": "a", "factor": "2"}, "x.factor must be …, but is '2'."),
        ({"name": "a", "on": 1}, "x.on must be …, but is 1."),
        ({"name": 1.1}, "x.name must be …, but is 1.1. Quote it."),
        ({"name": "None"}, "x.name is the string 'None'. Write null."),
        ({"name": "a", "words": ["b", 1.1]}, "x.words.1 must be …, but is 1.1. Quote it."),
        ({"name": "a", "words": "b"}, "x.words must be …, but is 'b'."),
        ({"name": "a", "rates": {"k": "1"}}, "x.rates.k must be …, but is '1'."),
        ({"name": "a", "rates": [1]}, "x.rates must be …, but is [1]."),
    ],
)
def test_what_a_specification_cannot_be_is_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validated(Outer, values, "x")
    begins, _, ends = message.partition("…")
    assert str(refused.value).startswith(begins)
    assert str(refused.value).endswith(ends)
    assert "\n" not in str(refused.value)


def test_whole_numbers_stand_for_fractions_and_texts() -> None:
    made = validated(Outer, {"name": 7, "factor": 2, "count": 3.0, "words": [1], "inner": {"rate": 1}}, "")
    assert (made.name, made.factor, made.count, made.words, made.inner.rate) == ("7", 2.0, 3, ["1"], 1.0)
    assert validated(Outer, made, "") is made


def test_values_are_quoted_in_a_line_and_names_joined() -> None:
    assert quoted("a\n" * 90).count("\n") == 0
    assert len(quoted("a" * 500)) <= 62
    assert len(quoted(10**200)) <= 60
    assert join_name("", "a", 0, "", "b") == "a.0.b"
