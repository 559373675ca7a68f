"""What the cells of a study are compared with, and the comparisons."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import unknown
from fpl_tune.core.formatting import interval, percent, signed
from fpl_tune.study.cells import Cell, axes_of, label, shown

if TYPE_CHECKING:
    from fpl_tune.report.facts import Facts


class Reference:
    """A reference, a cell, or a value of an axis, where each cell meets the one that differs from it in that alone.

    Args:
        facts: the study.
        asked: name of what others are compared with; None: the value that the best cells of several settings share,
            else the first reference, else the best cell.
    """

    def __init__(self, facts: Facts, asked: str | None = None) -> None:
        self._facts, self._asked = facts, asked

    def check(self) -> None:
        """Raises `ConfigError` where the study holds nothing of the asked name."""
        if self._picked is None:
            known = [*map(self.family, self._facts.references), *self._facts.by_label]
            if self._asked not in known:
                raise unknown("reference", str(self._asked), dict.fromkeys(known))

    @cached_property
    def _taken(self) -> dict[str, dict[str, str]]:
        """Per axis, the values that the study's own cells take, as shown, and what a cell of that value is called."""
        own = self._facts.own
        return {
            axis: {shown(c.varied[axis]): label({axis: c.varied[axis]}) for c in own if axis in c.varied}
            for axis in self._facts.axes
        }

    def place(self, cell: Cell) -> dict[str, str]:
        """Where a cell stands on the axes, as shown; a value that only a reference has is its name and no place."""
        return {n: shown(v) for n, v in cell.varied.items() if n in self._taken and shown(v) in self._taken[n]}

    def family(self, cell: Cell) -> str:
        """A reference's name whatever the axes are: references stand at every value of the axes they leave open."""
        place = self.place(cell)
        return label({n: v for n, v in cell.varied.items() if n not in place}) if len(place) < len(cell.varied) else ""

    @cached_property
    def shared(self) -> str:
        """Name of the value that the best cells of several settings have in common; empty unless there is one."""
        chosen = [self.place(cell) for cell in self._facts.own if cell.id in self._facts.chosen]
        first, *others = chosen or [{}]
        found = [self._taken[a][value] for a, value in first.items() if all(other.get(a) == value for other in others)]
        return found[0] if others and len(found) == 1 else ""

    @cached_property
    def _named(self) -> str | None:
        return self._asked if self._asked is not None or self._facts.references else self.shared or None

    @cached_property
    def _picked(self) -> tuple[str, str] | None:
        """An axis and its value, where the reference is all cells of that value: `promptfl`, `lam=0`."""
        taken = ((axis, value, name) for axis, values in self._taken.items() for value, name in values.items())
        found = ((axis, value) for axis, value, name in taken if self._named in (name, value))
        return next(found, None) if self._named not in self._facts.by_label else None

    @cached_property
    def name(self) -> str | None:
        """The name in headers and sentences; None in a study without results."""
        finished, best = self._facts.finished, self._facts.best
        families = [self.family(cell) for cell in finished if cell.role == "reference"]
        if self._picked or self._named in [*families, *(cell.label for cell in finished)]:
            return self._named
        return families[0] if families else best.label if best is not None else None

    @cached_property
    def chosen(self) -> bool:
        """Whether the reference is neither the study's choice nor a reference, but a cell picked for its results."""
        asked = self._asked is not None and self._asked == self._facts.spec.report.reference
        families = {self.family(cell) for cell in self._facts.references}
        return self.name is not None and not asked and self.name not in families

    def holds(self, cell: Cell) -> bool:
        """Whether others are compared with this cell."""
        if cell.role == "reference" and self.family(cell) == self.name:
            return True
        return cell.label == self.name or (self._picked is not None and self._picked in self.place(cell).items())

    @cached_property
    def _opposite(self) -> dict[frozenset[tuple[str, str]], Cell]:
        """Cells of the reference by their places."""
        found = filter(self.holds, self._facts.own if self._picked else self._facts.references)
        return {frozenset(self.place(cell).items()): cell for cell in found}

    def of(self, cell: Cell) -> Cell | None:
        """The cell that a cell is compared with: of the reference, the one at the same place of the axes."""
        place = self.place(cell) | dict([self._picked] if self._picked else [])
        open_axes = {name for key in self._opposite for name, _ in key}
        key = frozenset((name, value) for name, value in place.items() if name in open_axes)
        return self._opposite.get(key, self._facts.by_label.get(str(self.name)))

    def choices(self, most: int = 2000) -> list[str]:
        """What the page offers as reference: references, values of named axes, cells; about `most` comparisons."""
        facts = self._facts
        families = [self.family(cell) for cell in facts.references if cell in facts.finished]
        values = [name for axis, taken in self._taken.items() if len(self._taken) > 1 and 1 < len(taken) <= 12
                  for name in taken.values() if facts.table[axis].map(type).eq(str).any()]  # fmt: skip
        cells = [cell.label for cell in facts.listed if cell in facts.finished]
        first = [self.name] if self.name else list[str]()
        return list(dict.fromkeys([*first, *families, *values, *cells]))[: max(most // max(len(cells), 1), 3)]


def compared(
    facts: Facts, pairs: Mapping[str, str], frame: pd.DataFrame | None = None, *, chosen: bool = False
) -> pd.DataFrame:
    """Compares cells by id, with the report's region of practical equivalence; see `analysis.compare`."""
    rope, shares = facts.spec.report.rope / 100, percent(facts.metric)
    names = {cell.id: facts.name(cell) for cell in facts.cells}
    frame = facts.values if frame is None else frame
    return analysis.compare(frame, pairs, rope=rope, names=names, shares=shares, chosen=chosen)


def against(facts: Facts, reference: Reference | None = None) -> pd.DataFrame:
    """Compares every cell that has results with its reference; see `analysis.compare`.

    Returns:
        The comparisons, index cell id. `attrs["apart"]` holds the number of cells that have no partition in common with
        their reference, and so no row.
    """
    frame, reference = facts.values, reference or facts.reference
    splits = {str(cell): set(zip(rows["seed"], rows["split"], strict=True)) for cell, rows in frame.groupby("cell")}
    seeds = {cell: {seed for seed, _ in found} for cell, found in splits.items()}
    every = {
        cell.id: base.id
        for cell in facts.cells
        if cell.id in seeds and (base := reference.of(cell)) is not None and base.id in seeds.keys() - {cell.id}
    }
    pairs = {a: b for a, b in every.items() if splits[a] & splits[b] or not seeds[a] & seeds[b]}
    found = compared(facts, pairs, chosen=reference.chosen)
    found.attrs["apart"] = len(every) - len(pairs)
    return found


def advice(facts: Facts, tests: pd.DataFrame) -> str:
    """Says how many more seeds decide what is open, with the command; see `analysis.advise`."""
    rope = facts.spec.report.rope / 100 if percent(facts.metric) else 0.0
    narrow = lambda cells: narrowed(facts, cells)  # noqa: E731
    return analysis.advise(facts.values, tests, study=study_file(facts), rope=rope, narrow=narrow).text


def study_file(facts: Facts) -> str:
    """The resolved study for a shell: with it, a command runs the study with the overrides that it was run with."""
    path = (facts.store.folder / "study.yaml").resolve()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def judged(facts: Facts, row: Mapping[Any, Any]) -> list[str]:
    """Difference, interval and verdict of a comparison as texts."""
    return [signed(row["difference"], facts.metric), interval(row, facts.metric), str(row["verdict"])]


def narrowed(facts: Facts, cells: Sequence[str]) -> str:
    """Overrides that leave the values of the axes which some cells take, such as `axes.method.lam=[0.25,0.5]`.

    Args:
        facts: the study.
        cells: ids; references run whatever the axes are.

    Returns:
        Overrides for a shell; empty where the study is searched, where the cells take all values of all axes, or where
        one that is left out cannot be written plainly.
    """
    if facts.spec.search.sampler is not None:
        return ""
    wanted = [cell.varied for cell in facts.own if cell.id in cells]
    found: list[str] = []
    for axis, values in axes_of(facts.spec.axes).items():
        taken = {repr(varied[axis]) for varied in wanted if axis in varied}
        kept = [value for value in values if repr(value) in taken]
        if not kept or len(kept) == len(values):
            continue
        if not all(isinstance(v, int | float) or (isinstance(v, str) and _PLAIN.fullmatch(v)) for v in kept):
            return ""
        written = ",".join(json.dumps(v) if isinstance(v, bool) else str(v) for v in kept)
        found.append(shlex.quote(f"axes.{axis}=[{written}]"))
    return " ".join(found)


_PLAIN = re.compile(r"(?!(true|false|null|none|yes|no|on|off)$)[a-z][a-z0-9_]*", re.IGNORECASE)
