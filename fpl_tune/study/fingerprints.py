"""Fingerprints of what a result depends on beside its configuration: source of the method, data, versions."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.core.files import digest
from fpl_tune.data import DataSpec, load
from fpl_tune.data.spec import cross_data
from fpl_tune.method import Method
from fpl_tune.study.versions import versions


def fingerprints(run: RunSpec) -> dict[str, Any]:
    """`method` (source), `data` and `versions` of a run; its configuration is the cell's id."""
    read = [run.data, *(cross_data(run.data, name) for name in run.protocol.cross)]
    return {"method": method_source(run), "data": " ".join(map(data_print, read)), "versions": versions()}


def stale(result: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Reasons for which the result of a seed is out of date; versions of packages are not among them.

    Args:
        result: as it is stored.
        now: fingerprints of its run today.
    """
    stored, words = result["fingerprints"], {"method": "method source", "data": "data"}
    return [word for key, word in words.items() if stored and stored.get(key) != now[key]]


def method_source(run: RunSpec) -> str:
    """Digest of the code of all methods of a run, wrapped ones included; comments and layout do not count."""
    used = [run.method, *(stage.method for stage in run.stages)]
    return digest("\n".join(map(_code, sorted({name for method in used for name in _names(method)}))), 6)


def _names(method: Method) -> list[str]:
    """The method's name and those of the methods that it wraps."""
    parts = (value for value in vars(method).values() if isinstance(value, Method))
    return [methods.name_of(method), *(name for part in parts for name in _names(part))]


@cache
def _code(name: str) -> str:
    """The files of a method's class and of what it derives from."""
    kinds = [kind for kind in methods.find(name).__mro__ if issubclass(kind, Method) and kind is not Method]
    return "\n".join(syntax(inspect.getsource(inspect.getmodule(kind))) for kind in kinds)  # type: ignore[arg-type]


def syntax(source: str) -> str:
    """The syntax tree of a module as text, without docstrings, comments and layout: the same under every Python."""
    tree = ast.parse(source)
    for part in ast.walk(tree):
        if isinstance(part, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:]
        if not getattr(part, "type_params", True):  # a field from Python 3.12 on
            del part.type_params  # type: ignore[attr-defined]
    return ast.dump(tree, **_WHOLE)


_WHOLE: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # before, empty fields always show


def data_print(data: DataSpec) -> str:
    """Fingerprint of a data set as it lies on disk; the data set is listed once per process."""
    return _data_print(json.dumps(vars(data), sort_keys=True))


@cache
def _data_print(text: str) -> str:
    return load(DataSpec(**json.loads(text))).fingerprint
