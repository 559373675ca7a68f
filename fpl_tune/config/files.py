"""Limits and checks of study files and overrides, applied before Hydra merges them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fpl_tune.config.messages import options
from fpl_tune.config.specs import GROUPS, RUN_FIELDS
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.spec import shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

BYTES = 1 << 20
"""Largest study file."""
VALUES = 20_000
"""Most values of a study file with aliases expanded; interpolations expand to at most ten times as many characters."""
DEPTH = 30
"""Deepest nesting of lists and mappings, and of brackets in an override."""
CHARACTERS = 12_000
"""Longest override, with a key of at most 200; longer lists belong in the study's file."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REFERENCE = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def check_study(path: Path) -> dict[str, Any]:
    """The content of a study file; it and those in its folder that it builds on are checked before Hydra reads them.

    Raises:
        ConfigError: it is not UTF-8 or YAML, not a mapping, has no `defaults` (unless it is a stored study), builds on
            itself, is too large or too deep with its aliases written out, or holds a resolver.
    """
    node = read_mapping(path, "A study")
    if "defaults" not in node and not set(RUN_FIELDS) <= node.keys():  # a stored study has all fields and no defaults
        raise ConfigError(f"{path.name} does not say what it builds on. Begin it with `defaults: [/study, _self_]`.")
    _follow(path, node, ())
    return node


def _follow(path: Path, node: Mapping[str, Any], before: tuple[Path, ...]) -> None:
    """Goes through the files that a file builds on, as far as they lie in its own folder."""
    if path in before:
        raise ConfigError(f"{path.name} builds on itself: {' -> '.join(p.name for p in (*before, path))}.")
    listed = node.get("defaults", [])
    if not isinstance(listed, list):
        raise ConfigError(f"defaults of {path.name} must be a list such as [/study, _self_], but is {shown(listed)}.")
    for name in (name for entry in listed for name in _names(entry)):
        other = path.parent / f"{name}.yaml"
        if other.is_file():
            _follow(other, read_mapping(other, "A study"), (*before, path))


def _names(entry: Any) -> list[str]:
    """The files that an entry of `defaults` names, without their ending; Hydra refuses what it cannot read."""
    if not isinstance(entry, Mapping):
        return [str(entry).strip("/")]
    return [
        f"{str(group).removeprefix('override ').strip('/ ')}/{name}"
        for group, chosen in entry.items()
        for name in (chosen if isinstance(chosen, list) else [chosen])
    ]


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
        node = _load(text, path, scale * VALUES)
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


def _load(text: str, path: Path, most: int) -> Any:
    """Loads YAML whose depth, values with aliases written out, and interpolations have been checked."""
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
            else:
                refuse_resolvers(node.value, path.name)
            sizes[id(node)] = 1 + sum(size(part, (*above, id(node))) for part in inside)
        if sizes[id(node)] > most:
            raise ConfigError(f"{path.name} has more than {most} values, aliases written out.")
        return sizes[id(node)]

    loader = _LOADER(text)
    try:
        if (root := loader.get_single_node()) is None:
            return None
        size(root, ())
        return loader.construct_document(root)
    finally:
        loader.dispose()


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


def check_references(node: Mapping[str, Any], where: str) -> None:
    """Refuses interpolations that are no references, stand for a value with references, or for too much in all."""
    total = 0
    for text in _texts(node):
        refuse_resolvers(text, where)
        for name in re.findall(r"\$\{([^}]*)", text):
            found: Any = node
            for part in name.split("."):
                found = found.get(part) if isinstance(found, Mapping) else found
            if "${" in str(found):
                raise ConfigError(f"{where}: ${{{name}}} is {shown(found)}, itself a reference. Write the value.")
            total += len(str(found))
            if total > 10 * VALUES:
                raise ConfigError(f"{where}: references stand for more than {10 * VALUES} characters.")


def _texts(node: Any) -> Iterator[str]:
    """Yields the texts of nested mappings and lists that hold an interpolation."""
    if isinstance(node, str) and "${" in node:
        yield node
    elif isinstance(node, (Mapping, list)):
        for part in node.values() if isinstance(node, Mapping) else node:
            yield from _texts(part)


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
    if len(text) > CHARACTERS or len(key) > 200:
        raise ConfigError(f"An override has {CHARACTERS} characters at most, but {shown(text)} has {len(text)}.")
    if not text.isprintable():
        raise ConfigError(f"An override is one line of printable characters, but is {shown(text)}.")
    if max(itertools.accumulate((sign in "[{(") - (sign in "]})") for sign in text), default=0) > DEPTH:
        raise ConfigError(f"{shown(text)} nests brackets deeper than {DEPTH}.")
    try:
        parsed = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError):
        raise ConfigError(f"{shown(text)} is not an override: {_why(text)}") from None
    refuse_resolvers(text, key)
    if not key or "@" in key or key.split(".")[0] == "hydra":
        raise ConfigError(f"{shown(text)} does not name a field of a run or study. Write key=value.")
    if parsed.is_sweep_override():
        listed = text.partition("=")[2]
        listed = f"[{listed}]" if re.fullmatch(r"[^\[\](){}]+", listed) else "[...]"
        raise ConfigError(f"{key} takes one value, but {shown(text)} gives several. In a study: axes.{key}={listed}.")
    value = None if parsed.is_delete() else parsed.value()
    named = (value and isinstance(value, str)) or (key == "method" and isinstance(value, dict))
    if key in GROUPS and not parsed.is_delete() and not named:
        raise unknown(key, str(value), options(key))
    return parsed


def _why(text: str) -> str:
    """The likely reason why an override cannot be parsed."""
    for left, right in ("[]", "{}", "()"):
        if text.count(left) != text.count(right):
            return f"'{left}' and '{right}' do not pair. In a shell, quote the whole override."
    if "=" not in text.lstrip("~"):
        return "it has no '='. Write key=value."
    if "==" in text:
        return "it has two '='. Write key=value with one."
    if text.count("'") % 2 or text.count('"') % 2:
        return "a quotation mark is not closed."
    return f"its value has characters with a meaning of their own. Quote it: {text.partition('=')[0]}='...'."
