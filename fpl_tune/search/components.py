"""Samplers and pruners of Optuna and of plug-ins, by name or import path, with arguments.

search.sampler=tpe
search.sampler={name: gp, deterministic_objective: true}
search.sampler=package.module:Class
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Component:
    """A sampler's or pruner's class and the arguments that the study gives it."""

    name: str
    kind: type[Any]
    where: str
    """The configuration's field, for messages."""
    arguments: dict[str, Any]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """What the class can be given."""
        return inspect.signature(self.kind).parameters

    def build(self, **defaults: Any) -> Any:
        """An instance. `defaults` apply where the class accepts them and the study does not set them.

        Raises:
            ConfigError: the class refuses its arguments, or lacks a package.
        """
        known = {name: value for name, value in defaults.items() if name in self.parameters}
        try:
            return self.kind(**{**known, **self.arguments})
        except Exception as problem:  # a third-party class may raise anything
            raise ConfigError(
                f"{self.where}={self.name} cannot be built: {plugins.describe_error(problem)}."
            ) from problem


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


def find(kind: Literal["samplers", "pruners"], value: Any, where: str, own: tuple[str, ...] = ()) -> Component:
    """The component that a study names.

    Args:
        kind: `samplers` or `pruners`.
        value: a name, a class, an import path, or a mapping with `name` and arguments.
        where: the configuration's field, for messages.
        own: further names that the caller knows, for messages.

    Raises:
        ConfigError: the name is unknown, or the class cannot be imported.
    """
    import optuna

    name, arguments = parse(value, where)
    base = optuna.samplers.BaseSampler if kind == "samplers" else optuna.pruners.BasePruner
    known = _catalogue(getattr(optuna, kind), base)
    if name in known:
        found = known[name]
    elif name in plugins.names(kind):
        found = plugins.load(kind, name)
    elif ":" in name:
        found = getattr(plugins.module_of(name, where), name.partition(":")[2], None)
    else:
        what = "pruning rule" if kind == "pruners" else "sampler"
        raise unknown(what, name, [*own, *filter(str.islower, known), *plugins.names(kind)])
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{where}={name} must name a class derived from optuna.{kind}.{base.__name__}.")
    return Component(name, found, where, arguments)


_UNFIT = {"Grid", "PartialFixed", "Nop", "Base", "BaseGA"}
"""Classes of Optuna that wrap others, or need values of parameters."""


def _catalogue(module: Any, base: type[Any]) -> dict[str, type[Any]]:
    """Optuna's own classes that can be built from plain values: `TPESampler` also by its short name `tpe`."""
    found: dict[str, type[Any]] = {}
    for name in module.__all__:
        part, short = getattr(module, name), name.removesuffix(base.__name__.removeprefix("Base"))
        if isinstance(part, type) and issubclass(part, base) and short not in _UNFIT:
            found |= {name: part, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", short).lower(): part}
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's warnings, such as those of experimental classes, or of ranges that do not fit earlier trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
