"""Cells, the configurations that a study runs: the grid of its axes, and the references.

A cell's id is the digest of its canonical configuration, so that the same configuration is the same cell in
whatever order axes were written, and `lam=1` is `lam=1.0`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from fpl_tune import config, methods
from fpl_tune.config import GROUPS, ProtocolSpec, RunSpec, Study
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.core.spec import validated
from fpl_tune.study.records import Cell, Role, axes_of, label, shown, unfold

__all__ = ["CELLS", "Cell", "Composer", "Role", "apply", "axes_of", "expand", "grid", "label", "shown"]

CELLS = 100_000
"""Largest number of cells of the axes."""


def apply(node: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a field, a group (`method: promptfl`) or a bundle of both (a mapping) of a composed dict in place.

    Raises:
        ConfigError: there is no such field or option.
    """
    if isinstance(value, Mapping) and dotted not in GROUPS:
        for name, part in unfold(value).items():
            if name != "label":
                apply(node, name, part)
    elif dotted in GROUPS and isinstance(value, str):
        root = node["data"].get("root")
        node.update(deepcopy(config.choose(dotted, value)))
        if dotted == "data" and node["data"].get("root") is None:
            node["data"]["root"] = root
    else:
        config.set_field(node, dotted, deepcopy(value))


def expand(spec: Study) -> list[Cell]:
    """All cells of the axes, then the references; equal configurations once.

    A reference has a cell for every value of the axes outside the method that it leaves open.

    Raises:
        ConfigError: an axis or reference that names no field, or a value that its field refuses.
    """
    cells: dict[str, Cell] = {}

    def add(role: Role, points: Iterator[tuple[dict[str, Any], RunSpec]]) -> None:
        for varied, run in points:
            key = config.identity(run)
            cells.setdefault(key, Cell(key, len(cells), label(varied), role, varied, run))

    add("cell", grid(spec))
    add("reference", _references(spec))
    return list(cells.values())


def grid(spec: Study) -> Iterator[tuple[dict[str, Any], RunSpec]]:
    """Yields the varied fields and the run of each point of the axes."""
    return _points(spec.node, axes_of(spec.axes))


def _references(spec: Study) -> Iterator[tuple[dict[str, Any], RunSpec]]:
    for reference in spec.references:
        if not isinstance(reference, Mapping) or not reference:
            raise ConfigError(
                f"A reference is a mapping of overrides, but is {reference!r}. Write {{method: promptfl}}."
            )
        overrides = unfold(reference)
        open_axes = {
            name: values
            for name, values in axes_of(spec.axes).items()
            if name.split(".")[0] != "method" and name not in overrides and not isinstance(values[0], Mapping)
        }
        chosen = {name: [value] for name, value in overrides.items() if name != "label"}
        for varied, run in _points(spec.node, chosen | open_axes):
            if "label" in overrides:
                varied = {"label": overrides["label"], **varied}
            yield varied, run


def _points(node: dict[str, Any], axes: Mapping[str, list[Any]]) -> Iterator[tuple[dict[str, Any], RunSpec]]:
    composer = Composer(node)
    number = math.prod(len(values) for values in axes.values())
    if number > CELLS:
        raise ConfigError(
            f"A study has at most {counted(CELLS, 'cell')}, but axes.{', axes.'.join(axes)} make {number}."
        )
    for values in itertools.product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        yield varied, composer.at(varied)


class Composer:
    """Checked, canonical runs of a composed dict under overrides, thousands a second.

    Each combination of groups, bundles and fields of data and partition is validated as a whole, once. Overrides of
    method, optimiser and schedule then replace these three parts alone; runs share the others.
    """

    def __init__(self, node: Mapping[str, Any]) -> None:
        self._node = {name: deepcopy(node[name]) for name in config.RUN_FIELDS}
        self._bases: dict[str, tuple[dict[str, Any], RunSpec]] = {}

    def at(self, overrides: Mapping[str, Any]) -> RunSpec:
        """The run with overrides by dotted name.

        Raises:
            ConfigError: there is no such field, or it refuses the value.
        """
        light = {n: v for n, v in overrides.items() if n.split(".")[0] in _LIGHT and n not in GROUPS}
        node, base = self._base({n: v for n, v in overrides.items() if n not in light})
        if not light:
            return base
        groups = {name.split(".")[0] for name in light}
        here = {**node, **{group: deepcopy(node[group]) for group in groups}}
        for name, value in light.items():
            config.set_field(here, name, value)
        parts = {group: _LIGHT[group](here[group]) for group in groups if here[group] != node[group]}
        method, protocol = parts.get("method", base.method), parts.get("protocol", base.protocol)
        return replace(base, **parts, stages=config.stages(method, protocol, node["stages"]))

    def _base(self, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], RunSpec]:
        """The composed dict, with all fields of the parts that are replaced alone, and its run."""
        key = repr(sorted(overrides.items(), key=lambda item: item[0]))
        if key not in self._bases:
            here = deepcopy(self._node)
            for name, value in sorted(overrides.items(), key=lambda item: item[0] not in GROUPS):
                apply(here, name, value)
            run = config.to_run(here)
            full = config.as_dict(run)
            self._bases[key] = {**here, **{group: full[group] for group in _LIGHT}}, run
        return self._bases[key]


_LIGHT: dict[str, Callable[[Any], Any]] = {
    "method": methods.build,
    "optim": partial(validated, OptimSpec, where="optim"),
    "protocol": partial(validated, ProtocolSpec, where="protocol"),
}
"""Parts of a run that are replaced alone -> how one is built."""
