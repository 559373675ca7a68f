"""Limits and checks of study files and overrides, applied before Hydra merges them."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from fpl_tune import methods
from fpl_tune.config.fields import known_fields
from fpl_tune.config.specs import RUN_FIELDS, StudySpec
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.nested import GROUPS, get_field
from fpl_tune.core.paths import shipped
from fpl_tune.core.spec import shown
from fpl_tune.core.yaml_files import DEPTH, VALUES, read_mapping, refuse_resolvers
from fpl_tune.method import Method

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

CHARACTERS = 12_000
"""Longest override; longer lists belong in the study's file."""
_VALUES = 20
"""Most values that a remedy lists."""


def check_study(path: Path) -> dict[str, Any]:
    """The content of a study file; it and those in its folder that it builds on are checked before Hydra reads them.

    Raises:
        ConfigError: it does not end in .yaml, is not UTF-8 or YAML, not a mapping, has no `defaults` (unless it is a
            stored study), builds on itself, is too large or too deep with its aliases written out, holds a resolver, a
            field twice, or a value that versions of YAML read differently.
    """
    if path.suffix != ".yaml":
        raise ConfigError(f"Hydra reads files that end in .yaml, but the study is {path.name}. Rename it.")
    node = read_mapping(path, "A study")
    if "defaults" not in node and not set(RUN_FIELDS) <= node.keys():  # a stored study has all fields and no defaults
        raise ConfigError(f"{path.name} does not say what it builds on. Begin it with `defaults: [/study, _self_]`.")
    if not isinstance(node.get("defaults", []), list):
        raise ConfigError(f"defaults of {path.name} must be a list such as [/study, _self_].")
    _check_bases(path, node, ())
    return node


def _check_bases(path: Path, node: Mapping[str, Any], before: tuple[Path, ...]) -> None:
    """Checks the files that a file builds on, as far as they lie in its own folder."""
    if path in before:
        raise ConfigError(f"{path.name} builds on itself: {' -> '.join(p.name for p in (*before, path))}.")
    if dotted := next((str(name) for name in node if "." in str(name)), None):
        nested = dotted.replace(".", ": {") + ": ..." + "}" * dotted.count(".")
        raise ConfigError(
            f"{path.name} has the key {dotted!r}, but names with dots are for the command line, axes and variants. "
            f"Write {nested}."
        )
    if "hydra" in node:
        raise ConfigError(f"{path.name} holds settings of Hydra itself, which may call code. Remove 'hydra'.")
    words = [word.strip("/") for word in re.findall(r"[\w./-]+", str(node.get("defaults")))]
    for name in (*words, *(f"{group}/{option}" for group, option in itertools.pairwise(words))):
        other = path.parent / f"{name}.yaml"
        if other.is_file():
            _check_bases(other, read_mapping(other, "A study"), (*before, path))


def check_references(node: Mapping[str, Any], where: str) -> None:
    """Refuses interpolations that are no references, stand for a value with references, or for too much in all."""
    total = 0
    for name in re.findall(r"\$\{([^}]*)", str(node)):
        refuse_resolvers(f"${{{name}}}", where)
        found = str(get_field(node, name.partition("[")[0]))
        total += len(found)
        if "${" in found:
            raise ConfigError(f"{where}: ${{{name}}} is {shown(found)}, itself a reference. Write the value.")
        if total > 10 * VALUES:
            raise ConfigError(f"{where}: references stand for more than {10 * VALUES} characters.")


def parse(overrides: Sequence[str]) -> list[Override]:
    """Overrides as Hydra parses them, each checked.

    Raises:
        ConfigError: one is not `key=value`, too long, has several values, or names an unknown option.
    """
    return [_parse(str(text)) for text in overrides]


def _parse(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key = text.partition("=")[0].lstrip("+~")
    if len(text) > CHARACTERS or not text.isprintable():
        raise ConfigError(f"An override is a line of {CHARACTERS} characters at most, but one is {shown(text)}.")
    if max(itertools.accumulate((sign in "[{(") - (sign in "]})") for sign in text), default=0) > DEPTH:
        raise ConfigError(f"{shown(text)} nests brackets deeper than {DEPTH}.")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError):
        if sign := _unclosed(text):
            raise ConfigError(f"{shown(text)} opens a bracket that it does not close. Add {sign!r}.") from None
        if "=" not in text:
            named = f" For the method, method={text}." if text in options("method") else ""
            raise ConfigError(f"{shown(text)} is not an override. Write FIELD=VALUE.{named}") from None
        raise ConfigError(
            f"{shown(text)} is not an override. In a shell, put quotes around all of it if it has brackets, and around "
            "a value with signs such as , : = once more."
        ) from None
    refuse_resolvers(text, key)
    if not key or "@" in key or key.split(".")[0] == "hydra":
        raise ConfigError(f"{shown(text)} does not name a field of a run or study. Write key=value.")
    if parsed.is_sweep_override():
        raise ConfigError(f"{shown(text)} gives {key} several values. {_remedy(key, parsed)}")
    if key in GROUPS and not parsed.is_delete():
        value = parsed.value()
        if not value or not isinstance(value, (str, dict) if key == "method" else str):
            raise no_option(key, str(value))
    return parsed


def _unclosed(text: str) -> str:
    """The brackets that close those which a text leaves open outside of quotes; empty where others do not match."""
    closing, awaited = {"[": "]", "{": "}", "(": ")"}, list[str]()
    for sign in re.sub(r"""'[^']*'|"[^"]*\"""", "", text):
        if sign in closing:
            awaited.append(closing[sign])
        elif sign in closing.values() and (not awaited or awaited.pop() != sign):
            return ""
    return "".join(reversed(awaited))


def _remedy(key: str, given: Override) -> str:
    """What to write in place of several values: a list, an axis, one of them, or one text with commas."""
    from hydra.errors import HydraException

    try:
        values = list(itertools.islice(given.sweep_string_iterator(), _VALUES + 1))
    except HydraException:  # an interval has no values to list
        values = []
    listed, kinds = ",".join(values) if 0 < len(values) <= _VALUES else "...", _types(key)
    if not kinds:
        return str(unknown("field", key, known_fields()))
    if any(get_origin(kind) in (list, tuple) for kind in kinds):
        return f"A list has brackets: {key}=[{listed}]."
    varies = key.split(".")[0] in RUN_FIELDS
    one = f"In a study: axes.{key}=[{listed}]." if varies else f"It takes one: {key}={[*values, 'VALUE'][0]}."
    text = (given.input_line or "").partition("=")[2]
    return one if str not in kinds or "'" in text else f"""{one} A text with commas is quoted: "{key}='{text}'"."""


def _types(key: str) -> list[Any]:
    """The types that a field of a study may have, by its dotted name; none where there is no such field."""
    kinds: list[Any] = [StudySpec]
    for part in key.split("."):
        found = [inner for kind in kinds for inner in _inside(kind, part)]
        kinds = [kind for one in found for kind in (get_args(one) if get_origin(one) in (Union, UnionType) else [one])]
    return kinds


def _inside(kind: Any, part: str) -> list[Any]:
    """The types of a part of a specification, a method or a mapping; of one that takes anything, a list."""
    if kind is Method:
        return [get_type_hints(methods.find(name))[part] for name in methods.owners(part)]
    if is_dataclass(kind):
        return [hint for name, hint in get_type_hints(kind).items() if name == part]
    return [list[Any] if kind in (dict[str, Any], list[Any]) else get_args(kind)[1]] if get_args(kind) else []


def options(group: str) -> list[str]:
    """Names that a group offers: its YAML files, and for `method` every known method."""
    named = {path.stem for path in shipped("conf", group).glob("*.yaml")}
    return sorted(named | set(methods.catalogue()) if group == "method" else named)


def no_option(group: str, name: str) -> ConfigError:
    """`ConfigError` for a name that a group does not offer."""
    more = " Other models of open_clip are named by fields: clip.name=ViT-L-14 clip.pretrained=openai."
    more = more if group == "clip" else ""
    module = name.split(":")[0].removesuffix(".py")
    if group == "method" and (classes := _classes(Path(f"{module}.py"))):
        written = " or ".join(f"method={module}:{each}" for each in classes)
        return ConfigError(
            f"There is no method {name!r} in fpl-tune, but {module}.py is in this folder. Write {written}."
        )
    return ConfigError(f"{unknown(group, name, options(group))}{more}")


def _classes(path: Path) -> list[str]:
    """The public classes of a file, by its text; none of what cannot be read, or is no regular file."""
    try:
        nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    except (OSError, ValueError, SyntaxError):
        return []
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
