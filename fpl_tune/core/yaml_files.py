"""The reader of YAML files that users write or could have edited: plain values, bounded in size and depth."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.spec import shown

BYTES = 1 << 20
"""Largest study file."""
VALUES = 20_000
"""Most values of a study file with aliases expanded; interpolations expand to at most ten times as many characters."""
DEPTH = 30
"""Deepest nesting of lists and mappings, and of brackets in an override."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+|\[\w+\])*")


def read_mapping(path: Path, what: str, scale: int = 1) -> dict[str, Any]:
    """The mapping in a YAML file that users write or could have edited; the package reads YAML by this function alone.

    Args:
        path: the file.
        what: the kind of file, for messages: `A study`.
        scale: times `BYTES` and `VALUES` that the file may have.

    Raises:
        ConfigError: the file is not UTF-8, YAML or a mapping, or is too large or too deep with its aliases written out.
    """
    try:
        if path.stat().st_size > scale * BYTES:
            raise ConfigError(f"{what} has {scale * BYTES} bytes at most, but {path.name} {path.stat().st_size}.")
        text = path.read_text(encoding="utf-8")
        _measure(text, path.name, scale * VALUES)
        node = yaml.load(text, Loader=_LOADER)
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {problem.strerror}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        if isinstance(problem, RecursionError) or "maximum nesting depth" in str(problem):  # libyaml's limit is 1,000
            raise _too_deep(path.name) from None
        why = textwrap.shorten(str(problem).replace('in "<unicode string>", ', "in "), 300)
        raise ConfigError(f"{what} is YAML in UTF-8, but {path.name} is not: {why}.") from None
    if not isinstance(node, dict):
        found = "is empty" if node is None else f"holds {shown(node)}"
        raise ConfigError(f"{what} is a mapping of fields to values, but {path.name} {found}.")
    return node


def _measure(text: str, name: str, most: int) -> None:
    """Counts values with aliases written out, without writing them out, and checks depth and interpolations."""
    sizes: dict[str, int] = {}  # by anchor
    above: list[tuple[str | None, int]] = []  # anchor and size so far of the collections around the event
    size = 0
    for event in yaml.parse(text, Loader=_LOADER):  # C code that builds values would end the process where too deep
        if isinstance(event, yaml.CollectionStartEvent):
            above.append((event.anchor, size))
            size = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            sizes[anchor or ""] = size
            size += before
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise ConfigError(f"{name} has an alias inside its own anchor, or of none: *{event.anchor}.")
            size += sizes[event.anchor]
        elif isinstance(event, yaml.ScalarEvent):
            refuse_resolvers(event.value, name)
            sizes[event.anchor or ""] = 1
            size += 1
        if len(above) > DEPTH:
            raise _too_deep(name)
        if size > most:
            raise ConfigError(f"{name} has more than {most} values, aliases written out.")


def _too_deep(name: str) -> ConfigError:
    return ConfigError(f"{name} nests lists and mappings deeper than {DEPTH}.")


def refuse_resolvers(text: str, where: str) -> None:
    """Raises `ConfigError` for an interpolation other than a reference to a field, such as `${let.rounds}`."""
    for inside in re.findall(r"\$\{([^}]*)", text):
        if not _REFERENCE.fullmatch(inside):
            named = " ".join(inside.split())[:60]
            raise ConfigError(
                f"{where} has ${{{named}}}, but only references to the study's own fields are replaced, such as "
                "${let.rounds} or ${optim.lr}. Write the value."
            )
