"""The cells that a study file asks for: the grid of its axes, and the references.

A cell's id is the digest of its canonical configuration: the same configuration is the same cell, regardless of the
order in which axes are written, and `lam=1` is `lam=1.0`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

from fpl_tune import config
from fpl_tune.config import GROUPS, RunSpec, Study
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.data import load
from fpl_tune.study.cells import Cell, Role, axes_of, fields_of, is_setting, label, unfold
from fpl_tune.study.table import OTHER_COLUMNS

_TRAINING = ("optim", "protocol")
CELLS = 100_000
"""Maximum number of cells of the axes."""


def apply(node: dict[str, Any], dotted: str, value: Any) -> None:
    """Sets a field, or chooses a group's option (`method: promptfl`), of a composed dict in place.

    Raises:
        ConfigError: there is no such field or option.
    """
    if dotted == "method" or (dotted in GROUPS and isinstance(value, str)):
        root = node["data"].get("root")
        config.choose_in(node, dotted, value)
        if dotted == "data" and node["data"].get("root") is None:
            node["data"]["root"] = root
    else:
        config.set_field(node, dotted, deepcopy(value))


def variant(node: Mapping[str, Any], overrides: Mapping[str, Any]) -> RunSpec:
    """The run of a composed dict with overrides by dotted name; groups first: they bring the fields.

    Raises:
        ConfigError: there is no such field, it rejects the value, or it is set twice.
    """
    here = {name: deepcopy(node[name]) for name in config.RUN_FIELDS}
    for name, value in sorted(fields_of(overrides).items(), key=lambda field: field[0] not in GROUPS):
        apply(here, name, value)
    return config.to_run(here)


class Points(NamedTuple):
    """The varied fields and the run of each point of a study's axes, and of each of its references."""

    grid: list[tuple[dict[str, Any], RunSpec]]
    references: list[tuple[dict[str, Any], RunSpec]]

    @classmethod
    def of(cls, spec: Study) -> Points:
        """Those of a study; see `grid` and `references`."""
        return cls([*grid(spec)], [*references(spec)])


def expand(spec: Study, points: Points | None = None) -> list[Cell]:
    """All cells of the axes, then the references, without duplicates.

    A reference has a cell for every value of the axes outside the method that it leaves open, labelled variants of
    data and partition included. One that trains nothing, such as zero-shot CLIP, runs once for all settings of
    training.

    Args:
        spec: the study.
        points: its points, if they are known.

    Raises:
        ConfigError: an axis or reference names no field, a field rejects its value, or two cells have one label.
    """
    cells: dict[str, Cell] = {}
    points = points or Points.of(spec)
    roles: tuple[Role, Role] = ("cell", "reference")
    for role, own in zip(roles, points, strict=True):
        for varied, run in own:
            key, text = config.identity(run), label(varied)
            cell = cells.setdefault(key, Cell(key, len(cells), text, role, varied, run))
            labelled = "label" in varied  # by which claims and tables name it
            if role == "reference" and cell.role == "cell" and (labelled or not cell.reference):
                cells[key] = replace(cell, reference=text)
            elif labelled and cell.role == "reference" and "label" not in cell.varied:
                cells[key] = replace(cell, label=text, varied=varied)
    named: dict[str, Cell] = {}
    for cell in cells.values():
        if cell is not named.setdefault(cell.label, cell):
            raise ConfigError(
                f"Two cells have the label {cell.label!r}, by which tables and claims name one. Give each another one: "
                "{label: ..., field: value}; numbers in labels have six digits."
            )
    return list(cells.values())


def grid(spec: Study, axes: Mapping[str, list[Any]] | None = None) -> Iterator[tuple[dict[str, Any], RunSpec]]:
    """Yields the varied fields and the run of each point of the study's axes, or of `axes`."""
    axes, contents = axes_of(spec.axes) if axes is None else axes, dict[str, str]()
    several = len(_roots(spec)) > 1
    for name in OTHER_COLUMNS.intersection(axes):
        raise ConfigError(
            f"An axis has a column of its own, but tables have a column {name!r} already. Rename axes.{name}."
        )
    number = math.prod(len(values) for values in axes.values())
    if number > CELLS:
        raise ConfigError(
            f"A study has at most {counted(CELLS, 'cell')}, but axes.{', axes.'.join(axes)} make {number}."
        )
    for values in itertools.product(*axes.values()):
        varied = dict(zip(axes, values, strict=True))
        run = variant(spec.node, varied)
        if several and run.data.root and run.data.content is None:  # otherwise all roots would be the same cell
            key = json.dumps([vars(run.data), run.partition.file], sort_keys=True)
            contents[key] = contents.get(key) or load(run.data, run.partition.file).fingerprint
            run = replace(run, data=replace(run.data, content=contents[key]))
        yield varied, run


def _roots(spec: Study) -> set[str]:
    """The folders of data that a study names."""
    bundles = [{axis: value} for axis, values in axes_of(spec.axes).items() for value in values]
    bundles += [{"data": spec.node["data"]}, *(each for each in spec.references if isinstance(each, Mapping))]
    return {str(root) for bundle in bundles if (root := fields_of(bundle).get("data.root"))}


def references(spec: Study) -> Iterator[tuple[dict[str, Any], RunSpec]]:
    """Yields the varied fields and the run of each reference, for the values of the axes that it leaves open."""
    for reference in spec.references:
        if not isinstance(reference, Mapping) or not reference:
            raise ConfigError(
                f"A reference is a mapping of overrides, but is {reference!r}. Write {{method: promptfl}}."
            )
        overrides = unfold(reference)
        named = {"label": overrides.pop("label")} if "label" in overrides else {}
        open_axes = {
            name: values
            for name, values in axes_of(spec.axes).items()
            if name.split(".")[0] != "method"
            and name not in overrides
            and (not isinstance(values[0], Mapping) or all(is_setting({name: value}) for value in values))
        }
        untrained: list[dict[str, Any]] = []
        for varied, run in grid(spec, {name: [value] for name, value in overrides.items()} | open_axes):
            if not run.learns:
                fields = {n: v for n, v in varied.items() if n in overrides or n.split(".")[0] not in _TRAINING}
                if fields in untrained:
                    continue
                untrained.append(varied := fields)
            yield {**named, **varied}, run
