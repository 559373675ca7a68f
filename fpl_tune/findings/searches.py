"""The searches of a study by their results: the chosen and the published point of each, and what each trial cost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fpl_tune.findings.choice import choose
from fpl_tune.findings.crossed import settings_of
from fpl_tune.study.cells import Cell, axes_of, label
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import Row


@dataclass(frozen=True)
class Searched:
    """The results of the search in one cell of the axes."""

    label: str
    """Label of the cell of the axes, such as the method's name; empty if the study has no axes."""
    trials: Sequence[Cell]
    chosen: Sequence[Cell]
    """The trials that the objectives choose: the best one, or with several objectives their front."""
    points: Sequence[Cell]
    """The cells that are compared for this search: its chosen points on fresh seeds. Until a search of the study is
    confirmed, and where none is, they are those of `chosen`."""
    starts: Sequence[Cell]
    """The published points that the objectives choose, likewise."""

    @property
    def best(self) -> Cell | None:
        """The chosen trial; of a front, the best in the first objective."""
        return next(iter(self.chosen), None)

    @property
    def tuned(self) -> Cell | None:
        """The cell that is compared; of a front, the one that was the best in the first objective."""
        return next(iter(self.points), None)

    @property
    def published(self) -> Cell | None:
        """The published point, likewise."""
        return next(iter(self.starts), None)


def searches_of(rows: Sequence[Row], study: StudyFile, rule: str, *, confirmed: bool) -> list[Searched]:
    """The searches of a study, one for each cell of its axes.

    Args:
        rows: the study's cells with their results.
        study: the study.
        rule: the reporting rule that chooses among trials.
        confirmed: True if a search of the study has been confirmed on fresh seeds.
    """
    axes, searches = axes_of(study.axes), list[Searched]()
    trials = [row for row in rows if row.cell.role == "trial"]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for varied in points:
        own = [row for row in trials if row.cell.search == label(varied)]
        shared = own
        if study.search.across:
            method = {axis: value for axis, value in varied.items() if axis not in settings_of(axes)}
            sharing = {label(other) for other in points if method.items() <= other.items()}
            shared = [row for row in trials if row.cell.search in sharing]
        cells = [row.cell for row in own]
        chosen, starts = (
            [cell for cell in choice.cells if cell in cells] if choice is not None else []
            for candidates, limited in ((shared, True), ([row for row in shared if row.cell.published], False))
            for choice in (choose(candidates, rule, study, limited=limited),)
        )
        compared = chosen
        if confirmed:
            after = [row.cell for row in rows if row.cell.search == label(varied) and row.cell.role != "trial"]
            compared = [cell for cell in after if cell.role == "tuned"]
            starts = [cell for cell in after if cell.published]
        searches.append(Searched(label(varied) if varied else "", cells, chosen, compared, starts))
    return searches


def costs_of(trials: Sequence[Row], rounds: int = 0) -> dict[str, float]:
    """The cost of a search up to the end of each trial, in full trials, by the trial's id.

    Rounds of all seeds count, also those of pruned trials.

    Args:
        trials: the trials of the search.
        rounds: rounds of a full trial, where the search varies them; 0: those of each trial.
    """
    costs, spent = dict[str, float](), 0.0
    ran = [(row.cell, row.design, [*row.results.values()]) for row in trials if row.results]
    for cell, design, runs in sorted(ran, key=lambda one: (max(run.finished for run in one[2]), one[0].number)):
        spent += sum(run.rounds for run in runs) / (len(design.seeds) * (rounds or cell.rounds))
        costs[cell.id] = spent
    return costs
