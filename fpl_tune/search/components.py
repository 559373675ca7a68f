"""Samplers and pruners of Optuna and of plug-ins, by name or import path, with arguments.

search.sampler=tpe
search.sampler={name: gp, deterministic_objective: true}
search.sampler=package.module:Class
search.sampler=optunahub:samplers/auto_sampler
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from fpl_tune import plugins
from fpl_tune.errors import ConfigError, did_you_mean

Kind = Literal["samplers", "pruners"]


@dataclass(frozen=True)
class Component:
    """A sampler's or pruner's class and the arguments that the study gives it."""

    name: str
    kind: type[Any]
    where: str
    """The configuration's field, for messages."""
    arguments: dict[str, Any] = field(default_factory=dict)

    def accepts(self, name: str) -> bool:
        """Whether the class takes an argument."""
        return name in inspect.signature(self.kind).parameters

    def default(self, name: str) -> Any:
        """The class's default of an argument; None where it has none."""
        parameter = inspect.signature(self.kind).parameters.get(name)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def build(self, **defaults: Any) -> Any:
        """An instance. `defaults` apply where the class accepts them and the study does not set them.

        Raises:
            ConfigError: the class refuses its arguments, or lacks a package.
        """
        known = {name: value for name, value in defaults.items() if self.accepts(name)}
        try:
            return self.kind(**{**known, **self.arguments})
        except Exception as problem:  # a third-party class may raise anything
            raise ConfigError(f"{self.where}={self.name} cannot be built: {plugins.told(problem)}.") from problem


def parse(value: Any, where: str) -> tuple[str, dict[str, Any]]:
    """Name and arguments of what a study writes.

    Raises:
        ConfigError: it is neither a name nor a mapping with one.
    """
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"], {str(key): part for key, part in value.items() if key != "name"}
    raise ConfigError(f"{where} must be a name or {{name: ..., argument: ...}}, but is {value!r}.")


def label_of(value: Any) -> str:
    """A component as reports show it: `gp (deterministic_objective=True)`."""
    name, arguments = parse(value, "search.sampler")
    return name + (f" ({', '.join(f'{k}={v}' for k, v in arguments.items())})" if arguments else "")


def find(kind: Kind, value: Any, where: str, own: tuple[str, ...] = ()) -> Component:
    """The component that a study names.

    Args:
        kind: `samplers` or `pruners`.
        value: a name, a class, an import path, or a mapping with `name` and arguments.
        where: the configuration's field, for messages.
        own: further names that the caller knows, for messages.

    Raises:
        ConfigError: the name or an argument is unknown, or the class cannot be imported.
    """
    name, arguments = parse(value, where)
    component = Component(name, _class(kind, name, where, own), where, arguments)
    parameters = inspect.signature(component.kind).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for argument in arguments:
            if argument not in parameters:
                raise ConfigError(f"{where}={name} has no argument {argument!r}. {did_you_mean(argument, parameters)}")
    for parameter in parameters.values():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and parameter.name not in arguments:
            raise ConfigError(
                f"{where}={name} needs the argument {parameter.name!r}. Write {{name: {name}, {parameter.name}: ...}}."
            )
    return component


def _class(kind: Kind, name: str, where: str, own: tuple[str, ...]) -> type[Any]:
    known = _catalogue(kind)
    if name in known:
        return known[name]
    if (named := {k.__name__: k for k in known.values()}).get(name):
        return named[name]
    if name in plugins.names(kind):
        return _derived(kind, plugins.load(kind, name), name, where)
    if ":" in name:
        module, _, part = name.partition(":")
        if module == "optunahub":
            return _from_hub(kind, part, name, where)
        return _derived(kind, getattr(plugins.module_of(name, where), part, None), name, where)
    what = "pruning rule" if kind == "pruners" else "sampler"
    raise ConfigError(f"There is no {what} {name!r}. {did_you_mean(name, [*own, *known, *plugins.names(kind)])}")


def _catalogue(kind: Kind) -> dict[str, type[Any]]:
    """Optuna's own classes that can be built from plain values, by snake-case name: `TPESampler` is `tpe`."""
    module, base = _base(kind)
    suffix = base.__name__.removeprefix("Base")
    unfit = {"Grid", "PartialFixed", "Patient", "Nop", "Base", "BaseGA"}  # wrap others, or need values of parameters
    found = {}
    for name in module.__all__:
        part = getattr(module, name)
        short = name.removesuffix(suffix)
        if isinstance(part, type) and issubclass(part, base) and short not in unfit:
            found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", short).lower()] = part
    return found


def _base(kind: Kind) -> tuple[ModuleType, type[Any]]:
    import optuna

    if kind == "samplers":
        return optuna.samplers, optuna.samplers.BaseSampler
    return optuna.pruners, optuna.pruners.BasePruner


def _from_hub(kind: Kind, package: str, name: str, where: str) -> type[Any]:
    """The class of an OptunaHub package, `samplers/auto_sampler`; OptunaHub downloads it where it is not cached."""
    try:
        hub = importlib.import_module("optunahub")
    except ImportError as problem:
        raise ConfigError(f"{where}={name} needs OptunaHub ({problem}). Install optunahub.") from None
    try:
        module = hub.load_module(package)
    except Exception as problem:  # the network, or the package's own imports
        raise ConfigError(f"{where}={name} cannot be loaded: {plugins.told(problem)}.") from problem
    base = _base(kind)[1]
    classes = [k for k in vars(module).values() if isinstance(k, type) and issubclass(k, base) and k is not base]
    own = [k for k in classes if not k.__module__.startswith("optuna.")]
    return _derived(kind, own[0] if own else None, name, where)


def _derived(kind: Kind, found: Any, name: str, where: str) -> type[Any]:
    base = _base(kind)[1]
    if isinstance(found, type) and issubclass(found, base):
        return found
    raise ConfigError(
        f"{where}={name} must name a class derived from {base.__module__.split('._')[0]}.{base.__name__}."
    )
