"""Overrides that Python gives as a mapping: fields by dotted name, and the same as texts of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.nested import GROUPS, MAPPINGS
from fpl_tune.core.spec import shown

_WHOLE = (*MAPPINGS, "search.sampler", "prune.rule", "report.claims", "report.paper")
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)
_KEY = re.compile(r"\w|\w[\w .-]*\w", re.ASCII)
"""Names inside of a value, such as those of classes, that Hydra's grammar holds."""
_WORD = re.compile(r"[A-Za-z_][\w.:-]*", re.ASCII)
_CONSTANTS = ("null", "true", "false", "nan", "inf")
"""Words that are no texts in Hydra's grammar, in lower or upper case."""


def dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a mapping by dotted name, as plain values.

    Names may hold dots, and groups may be mappings: `{"optim.lr": 0.1}` is `{"optim": {"lr": 0.1}}`. A method with a
    name chooses the method.

    Raises:
        ConfigError: a field has two values, or a value has no form in YAML.
    """
    found: dict[str, Any] = {}
    for name, value in _leaves(given):
        name = "method" if name == "method.name" else name
        if name in found:
            raise ConfigError(f"{name} has two values: {shown(found[name])} and {shown(value)}. Remove one.")
        found[name] = _plain(value, name)
    return found


def as_texts(given: Iterable[Any]) -> list[str]:
    """Overrides as texts of the command line: texts as they are, and a text for each field of a mapping.

    Raises:
        ConfigError: what is given is neither, or a mapping has a name or value that an override cannot hold.
    """
    texts: list[str] = []
    for each in given:
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, Mapping):
            texts += [f"{name}={_text(value, name)}" for name, value in dotted(each).items()]
        else:
            raise ConfigError(f"Overrides are a mapping such as {{'optim.lr': 0.1}}, or texts, but are {shown(each)}.")
    return texts


def _leaves(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"There is no field {shown(name)}. Write a field's dotted name, such as 'optim.lr'.")
        if isinstance(value, Mapping) and not _whole(name, value):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _whole(name: str, value: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a value: by names that users choose, a wrapper with its inner method, or a range."""
    if name == "method":
        return "name" in value and any(isinstance(part, Mapping) for part in value.values())
    if name.startswith("search.space."):
        return not any(isinstance(part, Mapping) for key, part in value.items() if key != "when")
    return name in _WHOLE or (not value and name not in GROUPS)


def _plain(value: Any, name: str) -> Any:
    """A value in the types of YAML; scalars and arrays of NumPy, pandas and PyTorch are numbers and lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(part, f"{name}.{key}") for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(part, name) for part in value]
    raise ConfigError(f"{name} is {shown(value)}, but values are numbers, texts, true, false, None, lists or mappings.")


def _text(value: Any, name: str) -> str:
    """A value in Hydra's grammar, which reads it back as it is."""
    if isinstance(value, Mapping):
        for key in value:
            if not _KEY.fullmatch(key) or key.lower() in _CONSTANTS:
                raise ConfigError(f"{name} cannot hold the name {shown(key)} here. Write it in the YAML of a study.")
        return "{" + ",".join(f"{key}:{_text(part, name)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(part, name) for part in value) + "]"
    if not isinstance(value, str):
        return "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)
    if _WORD.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(value, Quote.single).with_quotes()
