"""Shell completion of studies, results and overrides.

A key press waits for it, so no configuration class is imported: options are file names, and fields are parsed from the
source of the classes named `...Spec` and of the methods. Typer leaves out what does not begin with the word typed so
far.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import typer

from fpl_tune.core import plugins
from fpl_tune.core.paths import list_studies, shipped, stored_studies

_PACKAGE = Path(__file__).resolve().parent.parent
_GROUPS = ("clip", "data", "partition", "optim", "protocol", "method")
_OPEN = ("axes.", "search.space.")  # what takes the name of any field of a run

Fields = dict[str, tuple[str, str]]
"""Dotted field -> default as it is written in an override (empty unless it is a constant), and a line of help."""


def studies() -> list[str]:
    """Names of studies that can be run."""
    return sorted(list_studies())


def results() -> list[str]:
    """Names of studies that have results."""
    return stored_studies()


def overrides(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Keys, or the values of a key, with a line of help; all `KEY=VALUE` except where bash has split it at `=`."""
    given: list[str] = list(ctx.params.get("overrides") or ())
    if given[-1:] == ["="] and len(given) > 1:
        return _values(given[-2], fields_of("StudySpec"))
    if "=" in incomplete:
        key = incomplete.partition("=")[0]
        return [(f"{key}={value}", doc) for value, doc in _values(key, fields_of("StudySpec"))]
    known = fields_of("StudySpec") | method_fields(_method(ctx.params.get("name"), given))
    of_runs = {name: field for name, field in known.items() if name.split(".")[0] in _GROUPS}
    known |= {f"{room}{name}": field for room in _OPEN for name, field in of_runs.items()}
    known |= {group: ("", f"One of the options of {group}.") for group in _GROUPS}
    found = [name for name in sorted(known) if name.startswith(incomplete)]
    offered = [(f"{name}=", known[name][1]) for name in found]
    if len(found) == 1:  # with the default beside it the shell sets no space behind the sign
        offered += [(f"{found[0]}={value}", doc) for value, doc in _values(found[0], known)]
    return offered


def join_words() -> None:
    """Lets what follows `=` be the word that is completed: bash takes the sign for a word of its own."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    at = int(os.environ.get("COMP_CWORD") or 0)
    if 0 < at < len(words) and words[at] == "=":
        os.environ["COMP_CWORD"] = str(at + 1)


def _values(key: str, known: Fields) -> list[tuple[str, str]]:
    """Values of a group or of a field that lists them; otherwise the field's default."""
    if key in _GROUPS:
        paths = [*shipped("conf", key).glob("*.yaml"), *(method_files().values() if key == "method" else ())]
        names = dict.fromkeys(plugins.names("methods") if key == "method" else (), "")
        return sorted((names | {path.stem: headline(path) for path in paths}).items())
    default, doc = known.get(key, ("", ""))
    values = ("true", "false") if default in ("true", "false") else filter(None, [default])
    return [(value, doc) for value in values]


def headline(path: Path) -> str:
    """The first line of a file's docstring or comment."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(('"""', "# ")) and not line.startswith("# @package"):
            return line.strip('"# ').rstrip(".")
    return ""


def _method(study: object, given: Sequence[str]) -> str:
    """The method that the words so far choose, also where bash splits them at `=`; else the study's, else a run's."""
    if chosen := re.findall(r"(?:^|\n)method\n?=\n?(.*)", "\n".join(given)):
        return chosen[-1]
    path = list_studies().get(str(study)) or shipped("conf", "run.yaml")
    written = re.search(r"^ *- (?:override /)?method: (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return written.group(1) if written else ""


def method_files() -> dict[str, Path]:
    """Files of methods and wrappers by name."""
    return {path.stem: path for room in ("methods", "wrappers") for path in sorted((_PACKAGE / room).glob("[!_]*.py"))}


def method_fields(name: str, prefix: str = "method.") -> Fields:
    """Fields of a method, or of one that YAML makes of others: of the wrapper, then of the method that it wraps."""
    if path := method_files().get(name):
        dataclasses = [kind for kind in _classes(path).values() if kind.decorator_list]
        return {f"{prefix}{key}": field for kind in dataclasses for key, _, field in _own(kind) if key != "inner"}
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


def _classes(path: Path) -> dict[str, ast.ClassDef]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name: node for node in body if isinstance(node, ast.ClassDef)}


@cache
def _specs() -> dict[str, ast.ClassDef]:
    """All configuration classes of the package by name."""
    paths = [path for path in _PACKAGE.rglob("*.py") if re.search(r"(?m)^class \w+Spec\b", path.read_text("utf-8"))]
    return {name: kind for path in paths for name, kind in _classes(path).items() if name.endswith("Spec")}


def fields_of(name: str, prefix: str = "") -> Fields:
    """Fields of a configuration class, inherited and nested ones included, without groups."""
    found: Fields = {}
    for base in map(ast.unparse, _specs()[name].bases):
        found |= fields_of(base, prefix) if base in _specs() else {}
    for key, kind, field in _own(_specs()[name]):
        found |= fields_of(kind, f"{prefix}{key}.") if kind in _specs() else {}
        found |= {f"{prefix}{key}": field} if f"{prefix}{key}" not in _GROUPS else {}
    return found


def _own(kind: ast.ClassDef) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Fields that a dataclass declares: name, type, and default with the first line of the docstring."""
    for statement, following in zip(kind.body, [*kind.body[1:], ast.Pass()], strict=True):
        if not isinstance(statement, ast.AnnAssign) or "ClassVar" in ast.unparse(statement.annotation):
            continue
        value, default, doc = statement.value, "", ""
        if isinstance(value, ast.Constant):
            default = value.value if isinstance(value.value, str) else json.dumps(value.value)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            doc = str(following.value.value).strip().splitlines()[0]
        yield ast.unparse(statement.target), ast.unparse(statement.annotation), (default, doc)
