"""What the page says of a study's cells: their names, places on the axes, and what they are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune.errors import unknown
from fpl_tune.report.readings import Readings
from fpl_tune.study.cells import label, shown

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store


class Facts(Readings):
    """A study's readings, and the reference that its cells are tested against.

    Args:
        store: the study's store.
        metric, rule: see `Readings`.
        reference: what others are tested against; None: what the study's report says.

    Raises:
        ConfigError: an asked for metric, rule or reference is not in the study.
    """

    def __init__(
        self, store: Store, *, metric: str | None = None, rule: str | None = None, reference: str | None = None
    ) -> None:
        super().__init__(store, metric=metric, rule=rule)
        self._asked = reference or self.spec.report.reference
        if reference is not None and self._picked is None:
            known = [*map(self.family, self.references), *self.by_label]
            if reference not in known:
                raise unknown("reference", reference, dict.fromkeys(known))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The page's data: the table's rows, in the order of the page."""
        found = []
        for cell in self.listed:
            row = self.table.loc[cell.id].to_dict()
            found.append({
                "number": self.keys[cell.id], "trial": cell.number,
                "label": self.name(cell), "role": cell.role, "status": row["status"],
                "series": self.part(cell) or ("references" if cell.role == "reference" else "cells"),
                "best": cell.id in self.chosen, "published": cell.id in self.published, "seeds": int(row["n"]),
                **{self.column(axis): row[axis] for axis in self.axes}, "validation": row["val"],
                **{name: row[name] for name in ("mean", "std", "seconds", *self.extra)}, "MB": row["bytes"] / 1e6,
            })  # fmt: skip
        return found

    @cached_property
    def _taken(self) -> dict[str, dict[str, str]]:
        """Per axis, the values that the study's own cells take, as shown, and what a cell of that value is called."""
        return {
            axis: {shown(c.varied[axis]): label({axis: c.varied[axis]}) for c in self.own if axis in c.varied}
            for axis in self.axes
        }

    def place(self, cell: Cell) -> dict[str, str]:
        """Where a cell stands on the axes, as shown; a value that only a reference has is its name and no place."""
        return {n: shown(v) for n, v in cell.varied.items() if n in self.axes and shown(v) in self._taken[n]}

    def family(self, cell: Cell) -> str:
        """A reference's name whatever the axes are: references stand at every value of the axes they leave open."""
        place = self.place(cell)
        return label({n: v for n, v in cell.varied.items() if n not in place}) if len(place) < len(cell.varied) else ""

    @cached_property
    def shared(self) -> str:
        """Name of the value that the best cells of several settings have in common; empty unless there is one."""
        first, *others = [self.place(cell) for cell in self.own if cell.id in self.chosen] or [{}]
        found = [self._taken[a][value] for a, value in first.items() if all(other.get(a) == value for other in others)]
        return found[0] if others and len(found) == 1 else ""

    @cached_property
    def _named(self) -> str | None:
        """The reference that was asked for; else, where each setting has a best cell, the value that these share."""
        return self._asked if self._asked is not None or self.references else self.shared or None

    @cached_property
    def _picked(self) -> tuple[str, str] | None:
        """An axis and its value, where the reference is all cells of that value: `promptfl`, `lam=0`."""
        for axis, values in self._taken.items():
            for value, name in values.items():
                if self._named in (name, value) and self._named not in self.by_label:
                    return axis, value
        return None

    @cached_property
    def reference(self) -> str | None:
        """Name of what others are tested against: the study's choice, else the first reference, else the best cell.

        A choice is a reference, a cell, or a value of an axis: then each cell meets the one that differs in that alone.
        So it does where the best configuration has a cell in each of several settings.
        """
        finished = [c for c in self.cells if self.table.loc[c.id, "n"] > 0]
        names = [self.family(c) for c in finished if c.role == "reference"]
        chosen = self._named is not None and (self._named in names or self._named in [c.label for c in finished])
        if chosen or self._picked:
            return self._named
        return names[0] if names else self.best.label if self.best is not None else None

    @cached_property
    def _opposite(self) -> dict[frozenset[tuple[str, str]], Cell]:
        """Cells of the reference by their places."""
        if self._picked and self.reference == self._named:
            return {frozenset(self.place(c).items()): c for c in self.own if self.is_reference(c)}
        return {frozenset(self.place(c).items()): c for c in self.references if self.is_reference(c)}

    @cached_property
    def _open(self) -> set[str]:
        """Axes along which the reference has cells."""
        return {name for key in self._opposite for name, _ in key}

    def is_reference(self, cell: Cell) -> bool:
        """Whether others are tested against this cell."""
        if cell.role == "reference" and self.family(cell) == self.reference:
            return True
        picked = self._picked is not None and self.place(cell).get(self._picked[0]) == self._picked[1]
        return cell.label == self.reference or (picked and self.reference == self._named)

    def reference_of(self, cell: Cell) -> Cell | None:
        """The cell that a cell is tested against: of the reference, the one at the same place of the axes."""
        place = self.place(cell)
        if self._picked:
            place[self._picked[0]] = self._picked[1]
        key = frozenset((name, value) for name, value in place.items() if name in self._open)
        return self._opposite.get(key, self.by_label.get(str(self.reference)))

    def notable(self, limit: int) -> list[Cell]:
        """At most about `limit` cells to draw, in the study's order: one of each reference, and the best by validation.

        Of a reference that stands at several places of the axes, the one at the best cell's place.
        """
        finished = [cell for cell in self.cells if self.table.loc[cell.id, "n"] > 0]
        near = self.place(self.best) if self.best is not None else {}
        shown_references: dict[str, Cell] = {}
        for cell in finished:
            here = all(near.get(name) == value for name, value in self.place(cell).items())
            if cell.role == "reference" and (here or self.family(cell) not in shown_references):
                shown_references[self.family(cell)] = cell
        own = sorted((c for c in finished if c.candidate), key=lambda c: -self.table.loc[c.id, "val"])
        kept = own[: max(limit - len(shown_references), 1)] + list(shown_references.values())[: max(limit - 1, 1)]
        return sorted(kept, key=lambda cell: cell.number)

    def habits(self, cells: Iterable[Cell]) -> pd.DataFrame:
        """Mean figure of cells (rows, by label) under every reporting rule (columns)."""
        wide = self._ended.pivot_table(index="cell", columns="rule", values=self.metric, aggfunc="mean", sort=False)
        kept = [cell for cell in cells if cell.id in wide.index]
        return wide.loc[[cell.id for cell in kept]].set_axis([self.name(cell) for cell in kept])


DATA = ("data", "partition.held_out", "set")
"""Fields that say where a cell ran, and not what."""


def without_data(cell: Cell, *more: str) -> str:
    """A cell's label as it is where one data set, or one domain to hold out, is all there is; without `more` too."""
    return label({n: v for n, v in cell.varied.items() if n not in (*DATA, *more)})
