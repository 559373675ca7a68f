"""The methods, with one file for each paper. The name of a method is that of its file.

`find` also finds wrappers, methods of other packages by their entry point (group `fpl_tune.methods`), and importable
classes as `package.module:Class`.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, NoReturn, cast

from pydantic import TypeAdapter, ValidationError

from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, did_you_mean, unknown
from fpl_tune.core.spec import SPEC, config_error, reject_conversions
from fpl_tune.method import Method

LARGEST = 100_000
"""Largest integer of a hyper-parameter. With a larger size or number of steps, a run is out of memory or time."""


def _own(module: str) -> list[type[Method]]:
    """The methods that a module defines, without those that it imports."""
    kinds = [kind for _, kind in inspect.getmembers(import_module(module), inspect.isclass)]
    return [kind for kind in kinds if is_dataclass(kind) and kind.__module__ == module and issubclass(kind, Method)]


@cache
def catalogue() -> dict[str, type[Method]]:
    """Methods by name: those of this folder, wrappers, and entry points."""
    shipped = {
        info.name: kind
        for room in (__name__, "fpl_tune.wrappers")
        for info in pkgutil.iter_modules(import_module(room).__path__)
        if not info.name.startswith("_")
        for kind in _own(f"{room}.{info.name}")
    }
    return shipped | {name: plugins.load("methods", name) for name in plugins.names("methods")}


def find(name: str) -> type[Method]:
    """The class of a method by its name or as `package.module:Class`.

    Raises:
        ConfigError: the method does not exist, or its module is not trusted; see `plugins.module_of`.
    """
    if ":" not in name:
        if name not in catalogue():
            raise unknown("method", name, catalogue())
        return catalogue()[name]
    module, attribute = plugins.module_of(name, "method"), name.partition(":")[2]
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, [kind.__name__ for kind in _own(module.__name__)])
        raise ConfigError(f"method {name!r} cannot be imported: {module.__name__} has no class {attribute!r}. {hint}")
    kind = getattr(module, attribute)
    if not (inspect.isclass(kind) and issubclass(kind, Method) and is_dataclass(kind)):
        raise ConfigError(f"method {name!r} must be a dataclass derived from fpl_tune.method.Method.")
    return kind


def name_of(method: Method) -> str:
    """The name of a method in a configuration: that of its file or entry point, else `package.module:Class`."""
    if isinstance(method, Absent):
        return str(method.node.get("name", ""))
    kind = type(method)
    named = (name for name, other in catalogue().items() if other is kind)
    return next(named, f"{kind.__module__}:{kind.__qualname__}")


def build(node: Any, where: str = "method") -> Method:
    """Builds a method from its configuration: `name` and hyper-parameters, with wrapped methods nested under `inner`.

    Args:
        node: the configuration, a mapping. Fields that it leaves out have their default.
        where: its dotted name, for messages.

    Raises:
        ConfigError: unknown name or field, or a value of the wrong type or outside its range.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where} must be a mapping with a name, such as {{name: promptfl}}, but is {node!r}.")
    values = dict(node)
    name = str(values.pop("name", ""))
    kind = find(name)
    parameters = {f.name: f for f in hyper_parameters(kind)}
    for field in values:
        if field not in parameters:
            raise unknown_field(name, str(field), parameters)
    for field, value in values.items():
        if isinstance(value, Mapping) and "name" in value:
            values[field] = build(value, f"{where}.{field}")
    try:
        method = _adapter(kind).validate_python(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        if (cause := first.get("ctx", {}).get("error")) and not first["loc"]:  # a plug-in's check of several fields
            raise ConfigError(f"{where} {name!r} rejects its options: {plugins.describe_error(cause)}.") from problem
        raise config_error(problem, where) from None
    reject_conversions(values, method, where)
    for field, value in vars(method).items():
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{where}.{field} must be <= {LARGEST}, but is {value}.")
    return method


def unknown_field(name: str, field: str, options: Iterable[str]) -> ConfigError:
    """The `ConfigError` for an unknown field of a method. It names similar fields, or methods that have this one."""
    options, others = sorted(options), owners(field)
    if others and not get_close_matches(field, options, cutoff=0.5):
        more = f"Methods that have it: {', '.join(f'method={other}' for other in others[:5])}."
        return ConfigError(f"{name} has no field {field!r}. Known: {', '.join(options) or 'none'}. {more}")
    return ConfigError(f"{name} has no field {field!r}. {did_you_mean(field, options)}")


def owners(field: str) -> list[str]:
    """The names of the methods that have a field."""
    return [name for name, kind in catalogue().items() if field in {f.name for f in hyper_parameters(kind)}]


@cache
def _adapter(kind: type[Method]) -> TypeAdapter[Any]:
    if not hasattr(kind, "__pydantic_config__"):  # a plug-in's plain dataclass
        kind.__pydantic_config__ = SPEC  # type: ignore[attr-defined]
    return TypeAdapter(kind)


def as_dict(method: Method, *, newer: bool = True) -> dict[str, Any]:
    """The configuration of a method: its name and all fields, with nested wrapped methods and lists in place of tuples.

    `newer=False` leaves out fields of `Method.newer` that have their default.
    """
    if isinstance(method, Absent):
        return dict(method.node)
    node: dict[str, Any] = {"name": name_of(method)}
    for f in hyper_parameters(type(method)):
        value = getattr(method, f.name)
        if not newer and f.name in method.newer and value == f.default:
            continue
        if isinstance(value, Method):
            value = as_dict(value, newer=newer)
        node[f.name] = list(value) if isinstance(value, tuple) else value
    return node


def hyper_parameters(kind: type[Method]) -> tuple[Field[Any], ...]:
    """The fields of a method, which is a dataclass."""
    return fields(cast(Any, kind))


def defaults(kind: type[Method]) -> dict[str, Any]:
    """Hyper-parameters with their default values, without fields that have none (a wrapped method)."""
    return {f.name: f.default for f in hyper_parameters(kind) if f.default is not MISSING}


@dataclass(frozen=True)
class Absent(Method):
    """Represents a stored method that cannot be built here, so that its results can still be read.

    node: its stored configuration.
    why: the reason why it cannot be built.
    """

    node: dict[str, Any]
    why: str

    def _raise(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError(self.why)

    check = init = start = logits = merge = traffic = _raise


def stored(node: Mapping[str, Any]) -> Method:
    """Builds the method of a stored run; `Absent` if it cannot be built, e.g. because its plug-in is not installed."""
    try:
        return build(node)
    except ConfigError as problem:
        return Absent(dict(node), str(problem))
