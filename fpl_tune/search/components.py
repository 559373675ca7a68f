"""Samplers of Optuna and of plug-ins, by name or import path, with arguments.

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
from typing import Any

from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Component:
    """A sampler's class and the arguments that the study gives it."""

    name: str
    kind: type[Any]
    arguments: dict[str, Any]

    def build(self, **defaults: Any) -> Any:
        """An instance. `defaults` apply where the class accepts them and the study does not set them.

        Raises:
            ConfigError: the class rejects its arguments, or lacks a package.
        """
        accepted = inspect.signature(self.kind).parameters
        try:
            return self.kind(**{**{name: v for name, v in defaults.items() if name in accepted}, **self.arguments})
        except Exception as problem:  # a third-party class may raise anything
            raise ConfigError(
                f"search.sampler={self.name} cannot be built: {plugins.describe_error(problem)}."
            ) from problem


_UNFIT = {"GridSampler", "PartialFixedSampler", "BaseSampler", "BaseGASampler"}
"""Optuna's samplers that wrap others, or need values of parameters."""


def find(value: Any, *own: str) -> Component:
    """The sampler that a study names.

    Args:
        value: a name, an import path, or a mapping with `name` and arguments.
        own: further names that the caller accepts, for messages.

    Raises:
        ConfigError: the name is unknown, or the class cannot be imported.
    """
    import optuna

    arguments: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"search.sampler must be a name or {{name: ..., argument: ...}}, but is {value!r}.")
    classes = [each for each in optuna.samplers.__all__ if each.endswith("Sampler") and each not in _UNFIT]
    # TPESampler is also called tpe, CmaEsSampler cma_es.
    short = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.removesuffix("Sampler")).lower(): each for each in classes}
    if name in (*short, *classes):
        kind = getattr(optuna.samplers, short.get(name, name))
    elif name in plugins.names("samplers"):
        kind = plugins.load("samplers", name)
    elif ":" in name:
        kind = getattr(plugins.module_of(name, "search.sampler"), name.partition(":")[2], None)
    else:
        raise unknown("sampler", name, [*own, *short, *plugins.names("samplers")])
    if not (isinstance(kind, type) and issubclass(kind, optuna.samplers.BaseSampler)):
        raise ConfigError(f"search.sampler={name} must name a class derived from optuna.samplers.BaseSampler.")
    return Component(name, kind, arguments)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses Optuna's warnings, such as those of experimental classes, or of ranges that exclude earlier trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
