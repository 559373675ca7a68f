"""What the cells of a study are compared with, and the comparisons."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import unknown
from fpl_tune.core.formatting import counted, interval, percent, signed
from fpl_tune.study.cells import Cell, label, shown
from fpl_tune.study.selection import sign

if TYPE_CHECKING:
    from fpl_tune.report.facts import Facts


class Reference:
    """A cell, a reference, or a value of an axis, where each cell meets the one that differs from it in that alone.

    Args:
        facts: the study.
        asked: name of what others are compared with; None: of a sweep its best cell, of one search the published
            setting, of other studies the first reference; else the value that the best cells of several settings share,
            else the best cell or the first of a front.
    """

    def __init__(self, facts: Facts, asked: str | None = None) -> None:
        self._facts, self._asked = facts, asked

    def check(self) -> None:
        """Raises `ConfigError` where the study holds nothing of the asked name."""
        if not self._cells_of(str(self._asked)):
            known = [*map(self.family, self._facts.references), *(cell.label for cell in self._facts.cells)]
            raise unknown("reference", str(self._asked), dict.fromkeys(known))

    @cached_property
    def _taken(self) -> dict[str, set[str]]:
        """Per axis, also one of a single value, the values that the study's own cells take, as shown."""
        found: dict[str, set[str]] = {}
        for cell in self._facts.own:
            for axis, value in cell.varied.items():
                found.setdefault(axis, set()).add(shown(value))
        return found

    @cached_property
    def _values(self) -> dict[str, set[str]]:
        """The same of the axes that vary."""
        return {axis: self._taken.get(axis, set()) for axis in self._facts.axes}

    def place(self, cell: Cell) -> dict[str, str]:
        """Where a cell stands on the axes, as shown; a value that only a reference has is its name and no place."""
        return {n: shown(v) for n, v in cell.varied.items() if shown(v) in self._values.get(n, ())}

    def family(self, cell: Cell) -> str:
        """A reference's name whatever the axes are: references stand at every value of the axes they leave open."""
        if cell.candidate and cell.reference:
            return cell.reference
        rest = {n: v for n, v in cell.varied.items() if shown(v) not in self._taken.get(n, ())}
        return label(rest) if rest else ""

    def _named(self, cell: Cell) -> list[str]:
        """Names of the values of axes that one of the study's own cells takes: `lam=0`, `promptfl`."""
        return [label({axis: cell.varied[axis]}) for axis in self.place(cell)] if cell.candidate else []

    @cached_property
    def shared(self) -> str:
        """Name of the value that the best cells of several settings have in common; empty unless there is one."""
        first, *others = [self._named(cell) for cell in self._facts.own if cell.id in self._facts.chosen] or [[]]
        found = [name for name in first if all(name in other for other in others)]
        return found[0] if others and len(found) == 1 else ""

    @cached_property
    def name(self) -> str | None:
        """The name in headers and sentences; None in a study without results."""
        if self._asked is not None and self._cells_of(self._asked):
            return self._asked
        facts = self._facts
        families, lead = [self.family(cell) for cell in facts.finished if cell.is_reference], facts.lead
        best = self.shared or (lead.label if lead is not None else None)
        if facts.kind == "sweep" and best:
            return best
        known = [gain.published for gain in facts.gains if gain.published is not None]
        if len(facts.gains) == 1 and known:
            return known[0].label
        return families[0] if families else best

    def _cells_of(self, name: str) -> list[Cell]:
        cells = self._facts.cells
        return (
            [cell for cell in cells if cell.label == name]
            or [cell for cell in cells if cell.is_reference and self.family(cell) == name]
            or [cell for cell in cells if name in self._named(cell)]
        )

    def title(self, name: str | None = None) -> str:
        """What headers and sentences call a reference, None: this one; trials have long labels."""
        name = name or self.name or ""
        members = self._cells_of(name)
        if len(members) != 1 or members[0].role != "trial":
            return name
        return "the published setting" if members[0].id in self._facts.published else self._facts.name(members[0])

    @cached_property
    def _members(self) -> list[Cell]:
        return self._cells_of(self.name or "")

    @cached_property
    def chosen(self) -> bool:
        """Whether the reference was picked for its results: not a reference, published, or named by the study."""
        asked = self._asked is not None and self._asked == self._facts.spec.report.reference
        fixed = self._facts.published
        return not asked and not any(cell.is_reference or cell.id in fixed for cell in self._members)

    def holds(self, cell: Cell) -> bool:
        """Whether others are compared with this cell."""
        return cell in self._members

    @cached_property
    def _places(self) -> tuple[list[str], dict[tuple[str | None, ...], Cell]]:
        """Axes on which the reference's cells differ, and these cells by their places on them."""
        places = [self.place(member) for member in self._members]
        axes = [axis for axis in self._values if len({place.get(axis) for place in places}) > 1]
        found = zip((tuple(map(place.get, axes)) for place in places), self._members, strict=True)
        return axes, dict(reversed(list(found)))  # the first of cells at one place

    def of(self, cell: Cell) -> Cell | None:
        """The cell that a cell is compared with: at its place of the axes on which the reference's cells differ."""
        axes, found = self._places
        return found.get(tuple(map(self.place(cell).get, axes)))

    def choices(self, most: int = 2000) -> list[str]:
        """What the page offers as reference: references, values of named axes, cells; about `most` comparisons."""
        facts = self._facts
        families = [self.family(cell) for cell in facts.finished if cell.is_reference]
        named = [axis for axis, values in self._values.items() if len(self._values) > 1 and 1 < len(values) <= 12
                 and facts.table[axis].map(type).eq(str).any()]  # fmt: skip
        values = [label({axis: cell.varied[axis]}) for axis in named for cell in facts.own if axis in cell.varied]
        cells = [cell.label for cell in facts.listed if facts.table.loc[cell.id, "n"] > 0]
        names = [*([self.name] if self.name else []), *families, *values, *cells]
        return list(dict.fromkeys(names))[: max(most // max(len(cells), 1), 3)]


def compared(
    facts: Facts, pairs: Mapping[str, str], frame: pd.DataFrame | None = None, *, chosen: bool = False
) -> pd.DataFrame:
    """Compares cells by id, with the report's region of practical equivalence; see `analysis.compare`."""
    frame = facts.values if frame is None else frame
    rope, shares, higher = facts.spec.report.rope / 100, percent(facts.metric), sign(facts.metric) >= 0
    return analysis.compare(
        frame, pairs, rope=rope, shares=shares, higher=higher, chosen=chosen, looks=facts.looks, ran=facts.ran
    )


def against(facts: Facts, reference: Reference | None = None) -> pd.DataFrame:
    """Compares every cell that has results, and was not pruned, with its reference; see `analysis.compare`.

    Where the reference is one of the study's own cells, the others are compared by the noise of these alone: references
    often vary more, and are compared apart.

    Returns:
        The comparisons, index cell id. `attrs["apart"]` holds the number of cells that have no seed on the same
        partition as their reference, and so no row.
    """
    reference, ran = reference or facts.reference, set(facts.values["cell"]) - facts.pruned
    pairs = {
        cell.id: base.id
        for cell in facts.cells
        if cell.id in ran and (base := reference.of(cell)) is not None and base.id in ran - {cell.id}
    }
    members = facts.by_id
    own = {cell: base for cell, base in pairs.items() if members[cell].candidate or not members[base].candidate}
    groups = [own, {cell: base for cell, base in pairs.items() if cell not in own}]
    every = pd.concat([compared(facts, group, chosen=reference.chosen) for group in groups if group or group is own])
    found = every.loc[[cell for cell in pairs if every.loc[cell, "seeds"] > 0]]
    found.attrs["apart"] = len(every) - len(found)
    return found


def study_file(facts: Facts) -> str:
    """The resolved study for a shell: with it, a command runs the study with the overrides that it was run with."""
    path = (facts.store.folder / "study.yaml").resolve()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def turned(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A comparison seen from the reference."""
    verdict = {"better": "worse", "worse": "better"}.get(row["verdict"], row["verdict"])
    bounds = {"difference": -row["difference"], "low": -row["high"], "high": -row["low"]}
    return {**bounds, "verdict": verdict, "look": row.get("look", 0)}


def judged(facts: Facts, row: Mapping[Any, Any]) -> list[str]:
    """Difference, interval and verdict of a comparison as texts; of declared looks also the one that decided."""
    verdict = f"{row['verdict']} at {counted(row['look'], 'seed')}" if row.get("look") else str(row["verdict"])
    return [signed(row["difference"], facts.metric), interval(row, facts.metric), verdict]
