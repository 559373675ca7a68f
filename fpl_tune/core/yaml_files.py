"""Reads YAML files that users write or may have edited.

Study files are read twice, here and by Hydra, both by YAML 1.1 with exceptions; people and most other tools expect YAML
1.2. Only values on which all of them agree are accepted: `on`, `010` and the like are rejected.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.nested import reject_two_values
from fpl_tune.core.spec import quoted

_UNCERTAIN = re.compile(
    r"yes|no|on|off"  # true and false
    r"|[-+]?0[0-9]+|[-+]?0o[0-7]+|[-+]?0b[01]+"  # base 8 or 10, base 2
    r"|[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"  # base 60
    r"|[-+]?[.0-9][-+.:e0-9]*_[-+.:e_0-9]*|[-+]?0[bx][a-f0-9]*_[_a-f0-9]*"  # digits in groups
    r"|[-+]\.[0-9]+(e[-+]?[0-9]+)?|\.[0-9]+e[0-9]+|[-+]0x[a-f0-9]+",
    re.IGNORECASE,
)
"""Plain scalars that some readers of YAML take for a number, true or false, and others for a string or another number.
"""
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_FLOAT, _DATE = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"


_SAFE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE):
    """PyYAML's loader, with `1e-3` as a number and dates as strings, as in Hydra and YAML 1.2."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATE]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, which also quotes strings that `_Loader` would read as numbers or reject."""


_Loader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+0123456789"))
_Dumper.add_implicit_resolver(_FLOAT, re.compile(f"(?:{_EXPONENT.pattern}|(?:{_UNCERTAIN.pattern})$)", re.I), None)
_REFERENCE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+|\[\w+\])*")


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """The mapping in a YAML file that users write or may have edited. All such files are read by this function.

    Args:
        path: the file.
        what: the kind of file, for messages: `A study`.

    Raises:
        ConfigError: the file is not UTF-8, YAML or a mapping, gives a field twice, or contains an interpolation that
            calls code or a value that versions of YAML read differently.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        _check(yaml.compose(text, _Loader), path.name)
        node = yaml.load(text, Loader=_Loader)
        if isinstance(node, dict):
            reject_two_values(node, path.name)
            return node
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {problem.strerror}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        why = textwrap.shorten(str(problem).replace('in "<unicode string>", ', "in "), 300)
        raise ConfigError(f"{what} is YAML in UTF-8, but {path.name} is not: {why}.") from None
    content = "is empty" if node is None else f"holds {quoted(node)}"
    raise ConfigError(f"{what} is a mapping of fields to values, but {path.name} {content}.")


def write_mapping(node: Mapping[str, Any], *, unicode: bool = False) -> str:
    """Plain values as YAML that `read_mapping` and other readers read back.

    Args:
        node: the values.
        unicode: if True, characters beyond ASCII are written as they are, else escaped.
    """
    return yaml.dump(dict(node), Dumper=_Dumper, sort_keys=False, allow_unicode=unicode)


def _check(node: Any, name: str) -> None:
    """Rejects a key that a mapping has twice, an interpolation that calls code, and an ambiguous scalar."""
    if isinstance(node, yaml.ScalarNode):
        reject_resolvers(node.value, name)
        if not node.style and _UNCERTAIN.fullmatch(node.value):
            raise ConfigError(
                f"{name} has `{node.value}` in line {node.start_mark.line + 1}, which versions of YAML read "
                "differently. Quote strings; write true or false, and numbers as 8, -0.5 or 1e-3."
            )
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, name)
    elif isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, value in node.value:
            if str(key.value) in keys:
                line = key.start_mark.line + 1
                raise ConfigError(f"{name} gives {quoted(key.value)} a second time in line {line}. Remove one.")
            keys.add(str(key.value))
            _check(key, name)
            _check(value, name)


def reject_resolvers(text: str, where: str) -> None:
    """Raises `ConfigError` for an interpolation other than a reference to a field, such as `${let.rounds}`."""
    for inside in re.findall(r"\$\{([^}]*)", text):
        if not _REFERENCE.fullmatch(inside):
            named = " ".join(inside.split())[:60]
            raise ConfigError(
                f"{where} has ${{{named}}}, but only references to the study's own fields are replaced, such as "
                "${let.rounds} or ${optim.lr}. Write the value."
            )
