"""The table of methods by settings that papers print: which cell stands in which row and column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fpl_tune.study.cells import Cell, is_setting, label, shown


@dataclass(frozen=True)
class Crossed:
    """Methods by settings, in the study's order."""

    columns: list[str]
    """Titles of the settings; one empty title for a study in one setting."""
    rows: dict[str, dict[str, Cell]]
    """Method -> setting -> cell; the references come last."""
    own: list[str]
    """The methods, without references. A reference may be the cell of a method, too."""

    def rows_of(self, cells: Iterable[str]) -> list[str]:
        """The methods, without references, that have one of these cells."""
        ids = {*cells}
        return [method for method in self.own if any(cell.id in ids for cell in self.rows[method].values())]


def settings_of(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The axes all of whose values are settings (data, partition or protocol): the columns."""
    return [axis for axis, values in axes.items() if all(is_setting({axis: value}) for value in values)]


def row_title(varied: Mapping[str, Any], axes: Iterable[str], method: str) -> str:
    """The row of a search: its values on the axes that are no settings, or its method's name where there are none."""
    own = {axis: varied[axis] for axis in axes}
    return label(own) if own else shown(method)


def crossed(
    axes: Mapping[str, Sequence[Any]], named: Sequence[tuple[str, Cell]], references: Sequence[tuple[str, Cell]] = ()
) -> Crossed | None:
    """Puts cells into rows and columns.

    Args:
        axes: the study's axes.
        named: cells, each with the name of its row.
        references: the same of references.

    Returns:
        None if a cell has no place: what trains nothing has one in all settings of the protocol.
    """
    where = settings_of(axes)
    settings = [dict(zip(where, values, strict=True)) for values in itertools.product(*(axes[a] for a in where))]
    rows: dict[str, dict[str, Cell]] = {}
    for name, cell in (*named, *references):
        own = {axis: cell.varied[axis] for axis in where if axis in cell.varied}
        missing = [axis for axis in where if axis not in own]
        if missing and (cell.run.learns or not all(axis.startswith("protocol.") for axis in missing)):
            return None
        columns = {setting_title(each) for each in settings if own.items() <= each.items()}
        row = rows.setdefault(name, {})
        if not columns or columns & row.keys():
            return None
        row.update(dict.fromkeys(columns, cell))
    titles = dict.fromkeys(map(setting_title, settings))
    return Crossed([*titles], rows, list(dict.fromkeys(name for name, _ in named)))


def setting_title(varied: Mapping[str, Any]) -> str:
    """The title of a column: values alone where they are words."""
    return ", ".join(shown(v) if isinstance(v, (str, Mapping)) else label({axis: v}) for axis, v in varied.items())
