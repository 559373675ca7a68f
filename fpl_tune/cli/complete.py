"""Shell completion of studies, results and overrides.

A key press waits for it, so no configuration class is imported: options are file names, and fields are parsed from the
source of the classes named `...Spec` and of the methods.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import typer

from fpl_tune.paths import list_studies, shipped, stored_studies

_PACKAGE = Path(__file__).resolve().parent.parent
_GROUPS = ("clip", "data", "partition", "optim", "protocol", "method")
_OPEN = ("axes.", "search.space.")  # what takes the name of any field of a run


def studies(incomplete: str) -> list[str]:
    """Names of studies that can be run."""
    return [name for name in sorted(list_studies()) if name.startswith(incomplete)]


def results(incomplete: str) -> list[str]:
    """Names of studies that have results."""
    return [name for name in stored_studies() if name.startswith(incomplete)]


def overrides(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Keys, or the values of a key, with a line of help; all `KEY=VALUE` except where bash has split it at `=`."""
    given: list[str] = list(ctx.params.get("overrides") or ())
    if given[-1:] == ["="] and len(given) > 1:
        return [(value, doc) for value, doc in _values(given[-2]) if value.startswith(incomplete)]
    key, sign, _ = incomplete.partition("=")
    if sign:
        return [(f"{key}={value}", doc) for value, doc in _values(key) if f"{key}={value}".startswith(incomplete)]
    known = {**fields_of("StudySpec"), **method_fields(_method(ctx.params.get("name"), given))}
    known.update({f"{room}{name}": field for room in _OPEN for name, field in known.items() if _varies(name)})
    known.update({group: ("", f"One of the options of {group}.") for group in _GROUPS})
    found = [(f"{name}=", doc) for name, (_, doc) in sorted(known.items()) if name.startswith(incomplete)]
    if len(found) == 1:  # with the default beside it the shell sets no space behind the sign
        name = found[0][0]
        found += [(f"{name}{value}", doc) for value, doc in _values(name[:-1], known)]
    return found


def prune(incomplete: str) -> list[tuple[str, str]]:
    """Fields of `prune` with their defaults."""
    found = ((f"{name}={value}", doc) for name, (value, doc) in fields_of("PruneSpec").items())
    return [(text, doc) for text, doc in found if text.startswith(incomplete)]


def join_words() -> None:
    """Lets what follows `=` be the word that is completed: bash takes the sign for a word of its own."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = int(os.environ.get("COMP_CWORD") or 0)
    if 0 < at < len(words) and words[at] == "=":
        os.environ["COMP_CWORD"] = str(at + 1)


def _varies(name: str) -> bool:
    return name.split(".")[0] in _GROUPS and name not in _GROUPS


def _values(key: str, known: dict[str, tuple[str, str]] | None = None) -> Iterator[tuple[str, str]]:
    """Values of a group or of a field that lists them; otherwise the field's default."""
    if key in _GROUPS:
        names = {path.stem: headline(path) for path in shipped("conf", key).glob("*.yaml")}
        if key == "method":
            names.update({path.stem: headline(path) for path in (_PACKAGE / "methods").glob("[!_]*.py")})
            names.update(_plugged())
        yield from sorted(names.items())
    else:
        default, doc = (known or fields_of("StudySpec")).get(key, ("", ""))
        if default in ("true", "false"):
            yield from (("true", doc), ("false", doc))
        elif default:
            yield default, doc


def _plugged() -> dict[str, str]:
    from fpl_tune import plugins

    return dict.fromkeys(plugins.names("methods"), "")


def headline(path: Path) -> str:
    """The first line of a file's docstring or comment."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(('"""', "# ")) and not line.startswith("# @package"):
            return line.strip('"# ').rstrip(".")
    return ""


def _method(study: object, given: Sequence[str]) -> str:
    """The method that the words so far choose: an override, else the study's, else a run's."""
    chosen = "".join(given).rpartition("method=")[2] if "method" in given else ""
    for word in given:
        if word.startswith("method="):
            chosen = word.removeprefix("method=")
    path = list_studies().get(str(study)) or shipped("conf", "run.yaml")
    written = re.search(r"^ *- (?:override /)?method: (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return chosen or (written.group(1) if written else "")


def method_files() -> dict[str, Path]:
    """Files of methods and wrappers by name."""
    return {path.stem: path for room in ("methods", "wrappers") for path in sorted((_PACKAGE / room).glob("[!_]*.py"))}


def method_fields(name: str, prefix: str = "method.") -> dict[str, tuple[str, str]]:
    """Fields of a method, or of one that YAML makes of others: of the wrapper, then of the method that it wraps."""
    if path := method_files().get(name):
        kinds = _classes(path.read_text(encoding="utf-8")).values()
        own = (pair for kind in kinds if kind.decorator_list for pair in _own(kind))  # dataclasses
        return {f"{prefix}{key}": field for key, field in own if key != "inner"}
    path = shipped("conf", f"method/{name}.yaml")
    if not path.is_file():
        return {}
    import yaml

    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    node, found = node.get("method", node), {}
    while isinstance(node, dict):
        found |= method_fields(node["name"], prefix)
        node, prefix = node.get("inner"), f"{prefix}inner."
    return found


def _classes(source: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


@cache
def _specs() -> dict[str, ast.ClassDef]:
    """All configuration classes of the package by name."""
    texts = (path.read_text(encoding="utf-8") for path in _PACKAGE.rglob("*.py"))
    named = (text for text in texts if re.search(r"^class \w+Spec\b", text, re.MULTILINE))
    return {name: kind for text in named for name, kind in _classes(text).items() if name.endswith("Spec")}


def fields_of(name: str, prefix: str = "") -> dict[str, tuple[str, str]]:
    """Dotted field -> default and first line of its docstring, inherited and nested ones included."""
    kind = _specs()[name]
    found: dict[str, tuple[str, str]] = {}
    for base in kind.bases:
        if isinstance(base, ast.Name) and base.id in _specs():
            found.update(fields_of(base.id, prefix))
    for statement in kind.body:
        if isinstance(statement, ast.AnnAssign) and (nested := ast.unparse(statement.annotation)) in _specs():
            found.update(fields_of(nested, f"{prefix}{ast.unparse(statement.target)}."))
    return {**found, **{f"{prefix}{key}": field for key, field in _own(kind) if f"{prefix}{key}" not in _GROUPS}}


def _own(kind: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    """Fields that a dataclass declares: name, default as it is written in an override, first line of its docstring."""
    for statement, following in zip(kind.body, [*kind.body[1:], ast.Pass()], strict=True):
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        doc = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = str(following.value.value).strip().splitlines()[0]
        yield ast.unparse(statement.target), (_written(statement.value), doc)


def _written(value: ast.expr | None) -> str:
    """Formats a default as an override does; empty unless it is a constant."""
    if not isinstance(value, ast.Constant):
        return ""
    if value.value is None:
        return "null"
    return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)
