"""Cells of earlier runs of a study, which stay in its results when it is run with other axes or seeds.

A cell stays if its settings differ from those of a current cell only in fields that vary, and its label is not taken.
Cells of other settings (other rounds, other data) stay on disk but out of the results: their figures do not compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune.core.nested import GROUPS, flatten
from fpl_tune.study.records import Cell

_BROUGHT = {"method": "stages", "data": "partition"}
"""Group -> what choosing one of its options may set besides."""


def find(before: Sequence[Cell], cells: Sequence[Cell]) -> list[Cell]:
    """Finds the cells with results that stay beside the cells that a study has now; trials of searches do not."""
    ids, labels = {cell.id for cell in cells}, {cell.label for cell in cells}
    found: dict[str, Cell] = {}
    for cell in before:
        known = cell.id in ids or cell.label in labels or cell.label in found
        if cell.role != "trial" and not known and _belongs(cell, cells):
            found[cell.label] = cell
    return list(found.values())


def _belongs(cell: Cell, cells: Sequence[Cell]) -> bool:
    """Whether a cell differs from one of the cells only in fields that vary in either."""
    own = flatten(cell.node)
    for other in cells:
        varied = _names(cell.varied) | _names(other.varied)
        theirs = flatten(other.node)
        differing = (name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
        if all(any(name == free or name.startswith(f"{free}.") for free in varied) for name in differing):
            return True
    return False


def _names(varied: Mapping[str, Any]) -> set[str]:
    """Names of the fields and groups that may differ, those within bundles included."""
    names = set(varied)
    for name, value in varied.items():
        if isinstance(value, Mapping) and name not in GROUPS:
            names |= set(value) | set(flatten(value))
    return names | {_BROUGHT[name] for name in names & _BROUGHT.keys()}
