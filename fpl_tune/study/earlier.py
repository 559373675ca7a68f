"""Cells of earlier runs of a study, which stay in its results when it is run with other axes or seeds.

A cell stays if its settings differ from those of a current cell only in fields that vary, and its label is not taken.
Cells of other settings (other rounds, other data) stay on disk but are not in the results, since they do not compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.core.nested import GROUPS, flatten
from fpl_tune.study.cells import Cell

_BROUGHT = {"method": ("stages", "optim.groups"), "data": ("partition",)}
"""Group -> other fields that choosing one of its options may also set."""


def find(before: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """Finds the earlier cells that stay in the results with the cells that a study has now."""
    taken = {name for cell in cells for name in (cell.id, cell.label)}
    staying = []
    for cell in before:
        if not taken & {cell.id, cell.label} and any(_alike(cell, other) for other in cells):
            taken.add(cell.label)
            staying.append(cell)
    return staying


def _alike(one: Cell, other: Cell) -> bool:
    """True if two cells differ only in fields that vary in either."""
    own, theirs, free = flatten(one.node), flatten(other.node), _names(one.varied) | _names(other.varied)
    differing = [name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)]
    return all(any(name == field or name.startswith(f"{field}.") for field in free) for name in differing)


def _names(varied: Mapping[str, Any]) -> set[str]:
    """Names of the fields and groups that may differ, including those within bundles."""
    bundles = (value for name, value in varied.items() if isinstance(value, Mapping) and name not in GROUPS)
    names = {*varied, *(name for bundle in bundles for name in (*bundle, *flatten(bundle)))}
    return names | {brought for name in names & _BROUGHT.keys() for brought in _BROUGHT[name]}
