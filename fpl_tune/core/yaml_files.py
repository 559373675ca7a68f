"""The reader of YAML files that users write or could have edited: plain values, bounded in size and depth.

Study files are read twice, here and by Hydra, both by YAML 1.1 with exceptions; people and most other tools read YAML
1.2. Numbers, true, false, null and texts are those on which all agree: `on`, `010` and the like are refused.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import regular
from fpl_tune.core.nested import refuse_two_values
from fpl_tune.core.spec import shown

BYTES = 1 << 20
"""Largest study file."""
VALUES = 20_000
"""Most values of a study file with aliases expanded; interpolations expand to at most ten times as many characters."""
DEPTH = 30
"""Deepest nesting of lists and mappings, and of brackets in an override."""
_UNCERTAIN = re.compile(
    r"yes|no|on|off"  # true and false
    r"|[-+]?0[0-9]+|[-+]?0o[0-7]+|[-+]?0b[01]+"  # base 8 or 10, base 2
    r"|[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"  # base 60
    r"|[-+]?[.0-9][-+.:e0-9]*_[-+.:e_0-9]*|[-+]?0[bx][a-f0-9]*_[_a-f0-9]*"  # digits in groups
    r"|[-+]\.[0-9]+(e[-+]?[0-9]+)?|\.[0-9]+e[0-9]+|[-+]0x[a-f0-9]+",
    re.IGNORECASE,
)
"""Plain scalars that are numbers, true or false to some readers of YAML, and to others texts or other numbers."""
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_FLOAT, _DATE = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):
    """PyYAML's, with `1e-3` as a number and dates as texts, as in Hydra and YAML 1.2."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if tag != _DATE]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """PyYAML's, which also quotes texts that `_Loader` would take for numbers, and those that would be refused."""


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, re.compile(f"(?:{_EXPONENT.pattern}|(?:{_UNCERTAIN.pattern})$)", re.I), None)
_REFERENCE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+|\[\w+\])*")


def read_mapping(path: Path, what: str, scale: int = 1) -> dict[str, Any]:
    """The mapping in a YAML file that users write or could have edited; the package reads YAML by this function alone.

    Args:
        path: the file.
        what: the kind of file, for messages: `A study`.
        scale: times `BYTES` and `VALUES` that the file may have.

    Raises:
        ConfigError: the file is not UTF-8, YAML or a mapping, is too large or too deep with its aliases written out,
            gives a field twice, or holds a value that versions of YAML read differently.
    """
    try:
        if regular(path).stat().st_size > scale * BYTES:
            raise ConfigError(f"{what} has {scale * BYTES} bytes at most, but {path.name} {path.stat().st_size}.")
        text = path.read_text(encoding="utf-8-sig")
        _measure(text, path.name, scale * VALUES)
        _refuse_keys_twice(yaml.compose(text, _Loader), path.name)
        node = yaml.load(text, Loader=_Loader)
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
    refuse_two_values(node, path.name)
    return node


def write_mapping(node: Mapping[str, Any], *, unicode: bool = False) -> str:
    """Plain values as YAML that `read_mapping` and other readers read back.

    Args:
        node: the values.
        unicode: whether letters beyond ASCII are written as they are, or escaped.
    """
    return yaml.dump(dict(node), Dumper=_Dumper, sort_keys=False, allow_unicode=unicode)


def _refuse_keys_twice(node: Any, name: str) -> None:
    """Refuses a key that a mapping has twice, of which PyYAML keeps the last. Merged keys (`<<`) may be replaced."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_keys_twice(item, name)
    elif isinstance(node, yaml.MappingNode):
        known = set[str]()
        for key, value in node.value:
            if str(key.value) in known:
                line = key.start_mark.line + 1
                raise ConfigError(f"{name} gives {shown(key.value)} a second time in line {line}. Remove one.")
            known.add(str(key.value))
            _refuse_keys_twice(value, name)


def _measure(text: str, name: str, most: int) -> None:
    """Counts values with aliases written out, without writing them out, and checks depth and interpolations."""
    sizes: dict[str, int] = {}  # by anchor
    above: list[tuple[str | None, int]] = []  # anchor and size so far of the collections around the event
    size = 0
    for event in yaml.parse(text, Loader=_Loader):  # C code that builds values would end the process where too deep
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
            if event.implicit[0] and _UNCERTAIN.fullmatch(event.value):
                raise ConfigError(
                    f"{name} has `{event.value}` in line {event.start_mark.line + 1}, which versions of YAML read "
                    "differently. Quote a text; write true or false, and numbers as 8, -0.5 or 1e-3."
                )
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
