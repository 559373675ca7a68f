"""The zoo: one paper, one file. A method is known by its file's name.

`find` also knows the wrappers, methods of other packages by their entry point (group `fpl_tune.methods`), and any
importable class as `package.module:Class`.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fpl_tune import plugins
from fpl_tune.errors import ConfigError, did_you_mean, unknown
from fpl_tune.method import Method
from fpl_tune.methods._plugins import check, trust


def _own(module: str) -> list[type[Method]]:
    """The methods that a module defines itself."""
    found = inspect.getmembers(import_module(module), inspect.isclass)
    return [kind for _, kind in found if issubclass(kind, Method) and is_dataclass(kind) and kind.__module__ == module]


@cache
def catalogue() -> dict[str, type[Method]]:
    """Name -> class: the files of this folder, those of the wrappers, and entry points."""
    known: dict[str, type[Method]] = {}
    for room in (__name__, "fpl_tune.wrappers"):
        for info in pkgutil.iter_modules(import_module(room).__path__):
            for kind in _own(f"{room}.{info.name}"):
                known[info.name] = kind
    known.update({name: plugins.load("methods", name) for name in plugins.names("methods")})
    return known


def find(name: str) -> type[Method]:
    """The class of a method by its name or as `package.module:Class`.

    Raises:
        ConfigError: there is no such method, or only a file names its module.
    """
    if ":" in name:
        kind = _named(name)
        if not (inspect.isclass(kind) and issubclass(kind, Method) and is_dataclass(kind)):
            raise ConfigError(f"method {name!r} must be a dataclass derived from fpl_tune.method.Method.")
        return kind
    if name not in catalogue():
        raise unknown("method", name, catalogue())
    return catalogue()[name]


def _named(name: str) -> Any:
    """What `package.module:Class` names; whatever its module raises is the user's to mend."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"A method of a module is named package.module:Class, but is {name!r}.")
    check(name)
    try:
        found = import_module(module)
    except Exception as problem:
        lacking = isinstance(problem, ModuleNotFoundError) and f"{module}.".startswith(f"{problem.name}.")
        why = f"{problem}. PYTHONPATH=FOLDER names where it lies" if lacking else plugins.told(problem)
        raise ConfigError(f"method {name!r} cannot be imported: {why}.") from problem
    if not hasattr(found, attribute):
        near = did_you_mean(attribute, [kind.__name__ for kind in _own(module)])
        raise ConfigError(f"method {name!r} cannot be imported: {module} has no class {attribute!r}. {near}")
    return getattr(found, attribute)


def build(node: Mapping[str, Any], where: str = "method") -> Method:
    """A method from its configuration: `name` and hyper-parameters, wrapped methods nested under `inner`.

    Raises:
        ConfigError: unknown name or field, a value of the wrong type or outside its range.
    """
    values = dict(node)
    kind = find(str(values.pop("name", "")))
    known = {f.name: f for f in hyper_parameters(kind)}
    for name in values:
        if name not in known:
            raise ConfigError(f"{where} {node['name']!r} has no field {name!r}. {did_you_mean(name, known)}")
    for name, value in values.items():
        if isinstance(value, Mapping) and "name" in value:
            values[name] = build(value, f"{where}.{name}")
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            raise cause from None
        if cause is not None and not field:  # what a plug-in's own check of several fields raised
            raise ConfigError(f"{where} {node['name']!r} refuses its options: {plugins.told(cause)}.") from problem
        rule = re.sub(r", (unable|got) .*", "", first["msg"]).replace("Input should be", "must be")
        raise ConfigError(f"{where}.{field} {rule}, but is {first['input']!r}.") from None


@cache
def _adapter(kind: type[Method]) -> TypeAdapter[Any]:
    return TypeAdapter(kind if hasattr(kind, "__pydantic_config__") else _with_config(kind))


def _with_config(kind: type[Method]) -> type[Method]:
    kind.__pydantic_config__ = ConfigDict(arbitrary_types_allowed=True, extra="forbid")  # type: ignore[attr-defined]
    return kind


def hyper_parameters(kind: type[Method]) -> tuple[Field[Any], ...]:
    """The fields of a method, which is a dataclass by contract."""
    return fields(cast(Any, kind))


def defaults(kind: type[Method]) -> dict[str, Any]:
    """Hyper-parameters with their default values; fields without one (a wrapped method) are left out."""
    known = {}
    for f in hyper_parameters(kind):
        if f.default is not f.default_factory:
            known[f.name] = f.default
    return known


def known_before(node: Mapping[str, Any]) -> dict[str, Any]:
    """A method's node as cells are identified by: without what `method.later` marks, where that has its default, and
    where a default changed (metadata `before`) with the one before, which means the same wherever it is accepted; the
    same of methods inside."""
    try:
        kind = find(str(node.get("name")))
    except ConfigError:  # a plug-in's that is not at hand: its fields are its own
        return dict(node)
    node, known = dict(node), {f.name: f for f in hyper_parameters(kind)}
    for name, value in list(node.items()):
        if isinstance(value, Mapping) and "name" in value:
            node[name] = known_before(value)
        elif name in known and value == known[name].default:
            if known[name].metadata.get("later"):
                del node[name]
            elif "before" in known[name].metadata:
                node[name] = known[name].metadata["before"]
    return node


__all__ = ["build", "catalogue", "defaults", "find", "hyper_parameters", "known_before", "trust"]
