"""Files of YAML: values on which its versions, and both readers of study files, agree; others are refused."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.yaml_files import read_mapping, write_mapping

CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
"""The core schema of YAML 1.2 (section 10.3.2); the rest are texts."""
KINDS = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}


def read(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "any.yaml"
    path.write_text(text, encoding="utf-8")
    return read_mapping(path, "A file")


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("1e-3", 0.001),
        ("1E3", 1000.0),
        ("-2.5e+3", -2500.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("0x1F", 31),
        ("-0", 0),
        (".inf", math.inf),
        ("~", None),
        ("NULL", None),
        ("None", "None"),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("y", "y"),
        ("N", "N"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01 10:00:00", "2024-01-01 10:00:00"),
        ("1.0.0", "1.0.0"),
        ("1_000 images", "1_000 images"),
        ("no key", "no key"),
        ("'no'", "no"),
        ('"010"', "010"),
    ],
)
def test_plain_values(tmp_path: Path, scalar: str, value: Any) -> None:
    found = read(tmp_path, f"a: {scalar}")["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "scalar",
    "yes No ON off 010 -07 08 00 0o10 0b11 1:30 1:30:00 1:30.5 1_000 1_0.5 1_0e3 0x1_F -0x1F -.5 +.5 .5e3".split(),
)
def test_values_that_versions_of_yaml_read_differently_are_refused(tmp_path: Path, scalar: str) -> None:
    for text in (f"b: 1\na: {scalar}", f"b: 1\n{scalar}: 1", f"b: 1\nc: [x, {scalar}]"):
        with pytest.raises(ConfigError, match=rf"any\.yaml has `{re.escape(scalar)}` in line 2, .*Quote strings"):
            read(tmp_path, text)


@given(st.from_regex(r"[-+]?[0-9.][-+0-9._:eExob]{0,6}|[yntofYNTOFaeslr~]{1,5}", fullmatch=True))
@settings(max_examples=400)
def test_what_is_read_is_read_alike_by_hydra_and_by_yaml_1_2(tmp_path_factory: Any, scalar: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        found = read(folder, f"a: [{scalar}]")
    except ConfigError:
        return
    theirs = OmegaConf.to_container(OmegaConf.load(folder / "any.yaml"))
    assert repr(found) == repr(theirs)
    (value,) = found["a"]
    if isinstance(value, str | int | float | None):
        assert KINDS[type(value)] == next((kind for kind, form in CORE.items() if re.fullmatch(form, scalar)), "str")


@given(st.from_regex(r"[-+]?[0-9.][-+0-9._:eExob]{0,6}|[yntofYNTOFaeslru~]{1,5}", fullmatch=True) | st.floats())
@settings(max_examples=400)
def test_what_is_written_is_read_back(tmp_path_factory: Any, value: Any) -> None:
    assert repr(read(tmp_path_factory.getbasetemp(), write_mapping({"a": value}))) == repr({"a": value})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 1", "gives 'a' a second time in line 2"),
        ("a: 1\n'a': 2", "gives 'a' a second time in line 2"),
        ("x:\n  - {1: 2, 1: 3}", "gives '1' a second time in line 2"),
        ("a.b: 1\na: {b: 2}", "gives a.b two values, 1 and 2"),
        ("a: {b.c: 1}\na.b: {c: 2}", "gives a.b.c two values, 1 and 2"),
        ("x: [[{a.b: 1, a: {b: [2]}}]]", r"gives a.b two values, 1 and \[2\]"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, text)


def test_a_merged_mapping_may_be_changed_and_used_again(tmp_path: Path) -> None:
    found = read(tmp_path, "base: &b {x: 1, y: 2}\nmore: &m {<<: *b, x: 3}\nlast: {<<: *m, x: 4}\nlist: [*m, *m]")
    assert (found["more"], found["last"]["x"], found["list"]) == ({"x": 3, "y": 2}, 4, [found["more"]] * 2)


@pytest.mark.parametrize("text", ["a: ${oc.env:HOME}", "a: [b, {c: '${now:%Y} or ${let.a}'}]"])
def test_an_interpolation_that_calls_something_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"has \$\{(oc|now).*\}, but only references to the study's own fields"):
        read(tmp_path, text)
    assert read(tmp_path, "a: ${let.rounds}") == {"a": "${let.rounds}"}
