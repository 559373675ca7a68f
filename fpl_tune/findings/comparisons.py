"""Comparisons of a study's cells with their reference: differences, intervals, verdicts, and looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from fpl_tune import analysis
from fpl_tune.core.errors import unknown
from fpl_tune.findings.crossed import settings_of
from fpl_tune.findings.findings import Findings
from fpl_tune.findings.looks import Look
from fpl_tune.study.cells import Cell, axes_of, label


class Reference:
    """The reference that cells are compared with.

    It is a cell, a reference, or a value of an axis: then each cell is compared with the one that has this value and is
    equal otherwise.

    Args:
        findings: the study.
        asked: the name of the reference. None takes the first that exists of: the reference of the study's report; in a
            sweep the best cell; in a study with one search the published setting; the first reference; the value that
            the best cells of several settings share; the best cell, or the first of a front.
    """

    def __init__(self, findings: Findings, asked: str | None = None) -> None:
        self._findings = findings
        self.asked = asked if asked is not None else findings.spec.report.reference
        """The name that was asked for; None: none was."""
        self._settings = settings_of(axes_of(findings.spec.axes))

    def check(self) -> None:
        """Raises `ConfigError` if the study has no reference of the asked name."""
        if not self._cells_of(str(self.asked)):
            findings = self._findings
            rows = findings.tuned_table.rows if findings.tuned_table else ()
            names = [*rows, *map(findings.family, findings.references), *(cell.label for cell in findings.entries)]
            raise unknown("reference", str(self.asked), dict.fromkeys(names))

    @cached_property
    def name(self) -> str | None:
        """The name in headers and sentences; None in a study without results."""
        if self.asked is not None and self._cells_of(self.asked):
            return self.asked
        findings = self._findings
        families = [findings.family(cell) for cell in findings.finished if cell.is_reference]
        best = findings.shared or (findings.lead.label if findings.lead is not None else None)
        if findings.kind == "sweep" and best:
            return best
        if len(findings.tuned) == 1 and (published := findings.tuned[0][0].published) is not None:
            return published.label
        return families[0] if families else best

    def _cells_of(self, name: str) -> list[Cell]:
        findings, cells = self._findings, self._findings.entries
        if findings.tuned_table is not None and name in findings.tuned_table.rows:
            return list({cell.id: cell for cell in findings.tuned_table.rows[name].values()}.values())
        return (
            [cell for cell in cells if cell.label == name]
            or [cell for cell in cells if cell.is_reference and findings.family(cell) == name]
            or [cell for cell in cells if name in findings.names.named(cell)]
        )

    @property
    def title(self) -> str:
        """The reference's name in headers and sentences, which is shorter than the label of a trial."""
        if len(self._members) != 1 or not self._members[0].searched:
            return self.name or ""
        (member,) = self._members
        alone = member.published and len(self._findings.searches) == 1
        return f"the {self._findings.first_point(member)} setting" if alone else self._findings.names.of(member)

    @cached_property
    def _members(self) -> list[Cell]:
        return self._cells_of(self.name or "")

    @cached_property
    def chosen(self) -> bool:
        """True if the reference was picked by its results: the study does not name it, and no member is a reference or
        published."""
        asked = self.asked is not None and self.asked == self._findings.spec.report.reference
        return not asked and not any(cell.is_reference or cell.published for cell in self._members)

    def holds(self, cell: Cell) -> bool:
        """True if others are compared with this cell."""
        return cell in self._members

    @cached_property
    def _places(self) -> tuple[list[str], dict[tuple[str | None, ...], Cell]]:
        """The axes on which the reference's cells differ, and these cells by their values there.

        Axes of settings that they have are among them: only a reference that is asked for compares across settings.
        """
        points = [self._findings.names.axis_values(member) for member in self._members]
        values = {axis: {point.get(axis) for point in points} for axis in self._findings.axes}
        within = [] if self.asked == self.name else self._settings
        axes = [axis for axis, own in values.items() if len(own) > 1 or (axis in within and own != {None})]
        pairs = zip((tuple(map(point.get, axes)) for point in points), self._members, strict=True)
        return axes, dict(reversed(list(pairs)))  # of several cells at one place, the first

    def of(self, cell: Cell) -> Cell | None:
        """The reference's cell that a cell is compared with: the one with the same values on the axes of `_places`."""
        axes, by_place = self._places
        return by_place.get(tuple(map(self._findings.names.axis_values(cell).get, axes)))


@dataclass(frozen=True)
class Comparisons:
    """Comparisons of the cells with their reference."""

    reference: Reference
    frame: pd.DataFrame
    """A row per cell, indexed by the cell's id; see `analysis.compare`. Cells that share no seed on the same partition
    with their reference are left out."""
    not_compared: int
    """Number of the cells that are left out."""


def compare(findings: Findings, asked: str | None = None) -> Comparisons:
    """Compares every cell that has results with its reference.

    If the reference is one of the study's own cells, the noise is estimated from the study's own cells alone:
    references often vary more, and are compared separately.

    Args:
        findings: the study.
        asked: see `Reference`.
    """
    reference, compared = Reference(findings, asked), set(findings.values["cell"])
    pairs = {
        cell.id: base.id
        for cell in findings.entries
        if cell.id in compared and (base := reference.of(cell)) is not None and base.id in compared - {cell.id}
    }
    members = findings.by_id
    mine = {key for key, cell in members.items() if cell.candidate or cell.searched}
    own = {cell: base for cell, base in pairs.items() if cell in mine or base not in mine}
    groups = [own, {cell: base for cell, base in pairs.items() if cell not in own}]
    every = pd.concat(
        [compare_pairs(findings, group, chosen=reference.chosen) for group in groups if group or group is own]
    )
    rows = every.loc[[cell for cell in pairs if every.loc[cell, "seeds"] > 0]].copy()
    if findings.kind == "sweep" and findings.best is not None and reference.holds(findings.best):
        open_ = rows.index[rows["verdict"] == "undecided"]
        rows.loc[open_.intersection(_ends(findings)), "verdict"] = TREND
    return Comparisons(reference, rows, len(every) - len(rows))


TREND = "worse (trend)"
"""Verdict on a value of a sweep whose own interval decides nothing, but that lies where results fall towards an end of
the axis; see `analysis.sweep`."""


def _ends(findings: Findings) -> list[str]:
    """Ids of the cells of a sweep in one setting from which on results fall."""
    result = findings.sweep.result
    return [] if result is None or len(findings.chosen) > 1 else [*result.lower, *result.upper]


def compare_pairs(
    findings: Findings,
    pairs: Mapping[str, str] | Sequence[tuple[str, str]],
    frame: pd.DataFrame | None = None,
    *,
    chosen: bool = False,
) -> pd.DataFrame:
    """Compares cells by id, with the report's region of practical equivalence; see `analysis.compare`."""
    frame = findings.values if frame is None else frame
    tests = analysis.compare(
        frame, pairs, chosen=chosen, looks=findings.looks, ran=findings.ran, **findings.test_options
    )
    return tests if findings.sampled else _differences(tests)


def _differences(tests: pd.DataFrame) -> pd.DataFrame:
    """Comparisons of a metric that seeds do not draw: differences, without what is said of chance."""
    words = tests["difference"].map(lambda value: "higher" if value > 0 else "lower" if value < 0 else "equal")
    verdict = tests["verdict"].where(tests["verdict"] == "identical", words)
    return tests.assign(low=math.nan, high=math.nan, verdict=verdict, note="")


def offered_references(findings: Findings, comparisons: Comparisons, most: int = 2000) -> list[str]:
    """The references that the page offers: references, values of named axes, cells; about `most` comparisons."""
    families = [findings.family(cell) for cell in findings.finished if cell.is_reference]
    values = {axis: findings.names.taken.get(axis, set()) for axis in findings.axes}
    named = [axis for axis, taken in values.items() if len(values) > 1 and 1 < len(taken) <= 12
             and findings.frame[axis].map(type).eq(str).any()]  # fmt: skip
    texts = [label({axis: cell.varied[axis]}) for axis in named for cell in findings.own if axis in cell.varied]
    entries = {cell.id for cell in findings.entries}
    cells = [cell.label for cell in findings.listed if cell.id in entries and findings.frame.loc[cell.id, "n"] > 0]
    if findings.searched:
        texts = list(findings.tuned_table.rows) if findings.tuned_table else []
    first = comparisons.reference.name
    names: list[str] = [*([first] if first else []), *families, *texts, *cells]
    return list(dict.fromkeys(names))[: max(most // max(len(cells), 1), 3)]


def look(findings: Findings) -> Look | None:
    """Looks at the comparisons of a study that adds seeds until they are decided, as its page shows them.

    Args:
        findings: a study all of whose cells are over.

    Returns:
        The number of decided comparisons, and the cells that get more seeds; None before the first look.
    """
    tests = compare(findings).frame
    if tests.empty:
        return None
    left = tests.loc[tests["look"] == 0]
    at = int(tests["seen"].max() if left.empty else left["seen"].min())  # cells that joined later catch up first
    further = next((n for n in findings.looks if n > at), 0)
    now = left.loc[left["seen"] == at]
    open_ = {*now.index, *now["reference"]} if further else set[str]()
    goes_on = tuple(cell.id for cell in findings.cells if cell.id in open_)
    return Look(at, len(tests), len(tests) - len(left), goes_on, tuple(range(at + 1, further + 1)))


def turned(row: Mapping[Any, Any]) -> dict[str, Any]:
    """The reverse of a comparison: the reference compared with the cell."""
    opposite = {"better": "worse", "worse": "better", "higher": "lower", "lower": "higher"}
    verdict = opposite.get(row["verdict"], row["verdict"])
    bounds = {"difference": -row["difference"], "low": -row["high"], "high": -row["low"]}
    return {**row, **bounds, "verdict": verdict}
