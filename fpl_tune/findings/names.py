"""The names of a study's cells and fields in tables, charts and sentences."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from fpl_tune.core.formatting import numeric, short, titles
from fpl_tune.study.cells import Cell, axes_label, label, shown

LONG = 40
"""Maximum label length, in characters; charts and sentences name cells with longer ones by their numbers."""
DATA = ("data", "partition.held_out", "set")
"""Fields that say where a cell ran, not what it ran."""


class Names:
    """The names of cells and fields.

    Args:
        cells: all cells.
        own: cells and trials, without the references and what confirms a search.
        axes: dotted fields in which these differ.
        grid: values of the study's axes by dotted name, without searched fields.
    """

    def __init__(
        self, cells: Sequence[Cell], own: Sequence[Cell], axes: Sequence[str], grid: Mapping[str, Sequence[Any]]
    ) -> None:
        self._cells, self._own, self._grid = cells, own, grid
        searched = any(cell.searched for cell in cells)
        self._axes = [axis for axis in axes if not searched or axis in grid]
        self.titles = titles(axes)
        """Titles of the axes in tables and charts."""

    def title(self, name: str) -> str:
        """The title of a field in tables and charts."""
        return self.titles.get(name, short(name))

    def axes_label(self, cell: Cell) -> str:
        """The label of a cell's values on the study's axes, without searched fields; empty if there are no axes."""
        return axes_label(cell, self._grid)

    def of(self, cell: Cell) -> str:
        """A cell's name in charts and sentences: its label or, if that is long, its values on the axes and number."""
        kind, number = ("trial", cell.trial_number) if cell.role == "trial" else ("cell", cell.number)
        return cell.label if len(cell.label) <= LONG else f"{self.axes_label(cell)[:LONG]} {kind} {number}".strip()

    @cached_property
    def taken(self) -> dict[str, set[str]]:
        """The values that the study's own cells take, as texts, by axis. Axes with a single value are included, and so
        are values whose searches have no trials yet."""
        by_axis = {axis: {*map(shown, values)} for axis, values in self._grid.items()}
        for cell in self._own:
            for axis, value in cell.varied.items():
                by_axis.setdefault(axis, set()).add(shown(value))
        return by_axis

    def axis_values(self, cell: Cell) -> dict[str, str]:
        """A cell's values on the axes, as texts. A value that only a reference has belongs to its name instead."""
        return {n: shown(v) for n, v in cell.varied.items() if n in self._axes and shown(v) in self.taken.get(n, ())}

    def named(self, cell: Cell) -> list[str]:
        """The values of a cell on the axes, such as `lam=0` or `promptfl`; empty for references."""
        return [label({axis: cell.varied[axis]}) for axis in self.axis_values(cell)] if cell.candidate else []

    @staticmethod
    def scalar(cell: Cell, axis: str) -> Any:
        """A cell's value on an axis: a number, or the text that labels show; None if the cell does not vary it."""
        value = cell.varied.get(axis)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if number or axis not in cell.varied else shown(value)

    def logarithmic(self, axis: str) -> bool:
        """True if the values of a field span a factor of 10."""
        values = [v for cell in self._cells if (v := self.scalar(cell, axis)) is not None and v == v]
        return numeric(values) and min(values) > 0 and max(values) >= 10 * min(values)


def without_data(cell: Cell, axes: Collection[str] = ()) -> str:
    """A cell's label within one setting: without the data set, the held-out domain, and `axes`."""
    return label({n: v for n, v in cell.varied.items() if n not in DATA and n not in axes})
