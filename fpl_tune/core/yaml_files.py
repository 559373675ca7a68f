"""The reader of YAML files that users write or could have edited: plain values, bounded in size and depth."""

from __future__ import annotations

import itertools
import re
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
        _measure(text, path, scale * VALUES)
        node = yaml.load(text, Loader=_LOADER)
    except UnicodeDecodeError as problem:
        raise ConfigError(f"{what} is text in UTF-8, but {path.name} is not (byte {problem.start}).") from None
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {problem.strerror}.") from None
    except yaml.YAMLError as problem:
        raise _not_yaml(problem, path, what) from None
    except (ValueError, TypeError, RecursionError) as problem:  # e.g. an invalid date, a mapping as a key
        raise ConfigError(f"{what} is YAML, but {path.name} is not: {shown(str(problem))}.") from None
    if not isinstance(node, dict):
        found = "is empty" if node is None else f"holds {shown(node)}"
        raise ConfigError(f"{what} is a mapping of fields to values, but {path.name} {found}.")
    return node


def _measure(text: str, path: Path, most: int) -> None:
    """Counts values with aliases written out, without writing them out, and checks names and interpolations."""
    events = yaml.parse(text, Loader=_LOADER)  # C code that builds values would end the process where they are too deep
    steps = (isinstance(e, yaml.CollectionStartEvent) - isinstance(e, yaml.CollectionEndEvent) for e in events)
    if any(depth > DEPTH for depth in itertools.accumulate(steps)):
        raise ConfigError(f"{path.name} nests lists and mappings deeper than {DEPTH}.")
    sizes: dict[int, int] = {}

    def size(node: Any, above: tuple[int, ...]) -> int:
        if id(node) in above:
            raise ConfigError(f"{path.name} has an alias inside its own anchor.")
        if id(node) not in sizes:
            inside: list[Any] = []
            if isinstance(node, yaml.CollectionNode):
                inside = list(itertools.chain(*node.value)) if isinstance(node, yaml.MappingNode) else node.value
            elif node is not None and node.value == "_target_":
                raise ConfigError(f"{path.name} has a key _target_, but a study file cannot call code. Remove it.")
            elif node is not None:
                refuse_resolvers(node.value, path.name)
            sizes[id(node)] = 1 + sum(size(part, (*above, id(node))) for part in inside)
        if sizes[id(node)] > most:
            raise ConfigError(f"{path.name} has more than {most} values, aliases written out.")
        return sizes[id(node)]

    size(yaml.compose(text, Loader=_LOADER), ())


def _not_yaml(problem: yaml.YAMLError, path: Path, what: str) -> ConfigError:
    """`ConfigError` for a file that is not YAML, with line and column."""
    if not isinstance(problem, yaml.MarkedYAMLError):
        return ConfigError(f"{what} is YAML, but {path.name} is not: {' '.join(str(problem).split())}")
    mark = problem.problem_mark or problem.context_mark
    where = f"{path.name}, line {mark.line + 1}, column {mark.column + 1}" if mark else path.name
    return ConfigError(f"{what} is YAML, but {where}: {problem.problem or problem.context}. Correct that line.")


def refuse_resolvers(text: str, where: str) -> None:
    """Raises `ConfigError` for an interpolation other than a reference to a field, such as `${let.rounds}`."""
    for inside in re.findall(r"\$\{([^}]*)", text):
        if not _REFERENCE.fullmatch(inside):
            raise ConfigError(
                f"{where} has ${{{inside[:60]}}}, but only references to the study's own fields are replaced, such as "
                "${let.rounds} or ${optim.lr}. Write the value."
            )
