"""Overrides: strings in Hydra's grammar, as on the command line, and Python mappings become one type."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fpl_tune.config.fields import no_field
from fpl_tune.config.files import no_option, options
from fpl_tune.config.specs import RUN_FIELDS
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.nested import GROUPS, MAPPINGS, leaves
from fpl_tune.core.spec import quoted
from fpl_tune.core.yaml_files import reject_resolvers

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override as Parsed

_VALUES = 20
"""Maximum number of values that a remedy lists."""
_WHOLE = (*MAPPINGS, "search.sampler", "prune.rule", "report.claims", "report.paper")
"""Fields whose value is a mapping."""
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)


@dataclass(frozen=True)
class Override:
    """A field that is set, an option of a group that is chosen, or a field that is removed."""

    field: str
    """Dotted name, or a group."""
    value: Any
    """The value in the types of YAML; None if the field is removed."""
    text: str
    """The override as it was given, for messages."""
    removed: bool = False


Given: TypeAlias = str | Mapping[str, Any] | Override
"""A string `key=value`, a mapping of dotted names to Python values, or a result of `parse`."""


def parse(given: Iterable[Given | Any]) -> list[Override]:
    """Parses overrides and checks their form. That their fields exist is checked when they are applied.

    Raises:
        ConfigError: one is neither a string nor a mapping, is not `key=value`, has several values, or names an
            unknown option.
    """
    overrides: list[Override] = []
    for each in given:
        if isinstance(each, Override):
            overrides.append(each)
        elif isinstance(each, str):
            overrides.append(_from_text(each))
        elif isinstance(each, Mapping):
            overrides += [Override(name, value, f"{name}={value}") for name, value in dotted(each).items()]
        else:
            raise ConfigError(f"Overrides are a mapping such as {{'optim.lr': 0.1}}, or strings, not {quoted(each)}.")
    for override in overrides:
        field, value = override.field, override.value
        if field.split(".")[0] == "hydra":
            raise ConfigError(
                f"{quoted(override.text)} sets Hydra itself, which fpl-tune does not run. Leave it out; options of "
                "your own are in a folder, --config-dir DIR."
            )
        if not field or "@" in field:
            raise ConfigError(f"{quoted(override.text)} does not name a field of a run or study. Write key=value.")
        if field in GROUPS and override.removed:
            raise ConfigError(f"{quoted(override.text)} removes a group that every run has. Choose one: {field}=NAME.")
        if field in GROUPS:
            named = isinstance(value, str) or (field == "method" and isinstance(value, dict))
            if not value or not named:
                raise no_option(field, str(value))
    return overrides


def apply(node: dict[str, Any], overrides: Sequence[Override]) -> None:
    """Sets or removes fields of a composed dict in place, in the order of the overrides.

    A mapping is merged into an existing one; an empty one replaces it. Options of groups are not chosen here.

    Raises:
        ConfigError: a field to remove does not exist, or a list would replace the axes below its name.
    """
    for override in overrides:
        here, name = _find(node, override.field)
        before, field = here.get(name), override.field
        if override.removed and name not in here:
            raise no_field(field, node)
        if override.removed:
            del here[name]
            continue
        if before and isinstance(before, dict) and not isinstance(override.value, dict) and field.startswith("axes."):
            inside = ", ".join(f"{field}.{key}" for key in before)
            raise ConfigError(
                f"{override.text} would replace {inside}. Remove it before: '~{field}' {quoted(override.text)}."
            )
        _set(node, field, override.value)


def _set(node: dict[Any, Any], name: Any, value: Any) -> None:
    here, key = _find(node, name)
    if value and isinstance(value, dict) and isinstance(here.get(key), dict):
        for inner, each in value.items():
            _set(here[key], inner, each)
    else:
        here[key] = deepcopy(value)


def _find(node: dict[Any, Any], name: Any) -> tuple[dict[Any, Any], Any]:
    """The mapping that has a field, and the field's key in it; missing mappings on the way are created.

    Names inside `axes` and `search.space` may be written with dots or nested. A key that is not a string is no path.
    """
    if not isinstance(name, str):
        return node, name
    for key in node:
        if str(key) == name:
            return node, key
    for key, inside in node.items():
        if name.startswith(f"{key}.") and isinstance(inside, dict):
            return _find(inside, name[len(str(key)) + 1 :])
    head, _, rest = name.partition(".")
    if not rest:
        return node, name
    node[head] = {}
    return _find(node[head], rest)


def dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mapping by dotted name, as plain values.

    Names may have dots, and groups may be mappings: `{"optim.lr": 0.1}` is `{"optim": {"lr": 0.1}}`. A method with a
    name chooses the method.

    Raises:
        ConfigError: a field has two values, or a value cannot be written in YAML.
    """
    fields: dict[str, Any] = {}
    for name, value in leaves(given, whole=_is_value):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"There is no field {quoted(name)}. Write a field's dotted name, such as 'optim.lr'.")
        name = "method" if name == "method.name" else name
        if name in fields:
            raise ConfigError(f"{name} has two values: {quoted(fields[name])} and {quoted(value)}. Remove one.")
        fields[name] = _plain(value, name)
    return fields


def _is_value(name: str, value: Mapping[Any, Any]) -> bool:
    """True if a mapping is one value: names that users choose, a wrapper with its inner method, a range."""
    if name == "method":
        return "name" in value and any(isinstance(inside, Mapping) for inside in value.values())
    if name.startswith("search.space."):
        return not any(isinstance(inside, Mapping) for key, inside in value.items() if key != "when")
    return name in _WHOLE or (not value and name not in GROUPS)


def _plain(value: Any, name: str) -> Any:
    """A value in the types of YAML; scalars and arrays of NumPy, pandas and PyTorch become numbers and lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inside, f"{name}.{key}") for key, inside in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(inside, name) for inside in value]
    raise ConfigError(f"{name} must be a number, string, bool, None, list or mapping, but is {quoted(value)}.")


def _from_text(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not text.isprintable():
        raise ConfigError(f"An override is a line of printable characters, but one is {quoted(text)}.")
    # A shell does not expand `~` after `=`, and Hydra's grammar needs it quoted.
    written = re.sub(r"=(~[^']*)$", r"='\1'", text)
    try:
        parsed = OverridesParser.create().parse_override(written)
    except (HydraException, RecursionError):
        if "=" not in text:
            named = f" For the method, method={text}." if text in options("method") else ""
            raise ConfigError(f"{quoted(text)} is not an override. Write FIELD=VALUE.{named}") from None
        raise ConfigError(
            f"{quoted(text)} is not an override. Close all brackets; in a shell, put quotes around an override with "
            "brackets, and around a value with signs such as , : = once more."
        ) from None
    key = parsed.key_or_group
    reject_resolvers(text, key)
    if parsed.is_sweep_override():
        raise ConfigError(f"{quoted(text)} gives {key} several values. {_remedy(key, parsed)}")
    removed = parsed.is_delete()
    if removed and "=" in text:
        raise ConfigError(f"{quoted(text)} removes a field and gives it a value. Write '~{key}'.")
    return Override(key if parsed.package is None else f"{key}@{parsed.package}", parsed.value(), text, removed)


def _remedy(key: str, given: Parsed) -> str:
    """The ways to write several values: as a list, as an axis, or as one string with commas."""
    from hydra.errors import HydraException

    try:
        values = ",".join(itertools.islice(given.sweep_string_iterator(), _VALUES + 1))
    except HydraException:  # an interval has no values to list
        values = "..."
    values = "..." if values.count(",") >= _VALUES else values
    text = (given.input_line or "").partition("=")[2]
    axis = f" To compare them in a study: axes.{key}=[{values}]." if key.split(".")[0] in RUN_FIELDS else ""
    quoted = f""" A string with commas is quoted: "{key}='{text}'".""" if "'" not in text else ""
    return f"A list has brackets: {key}=[{values}].{axis}{quoted}"
