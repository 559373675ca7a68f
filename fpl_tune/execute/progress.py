"""The progress of a running study: one value, computed from its table and the running jobs."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fpl_tune.config import StudySpec
from fpl_tune.core.formatting import counted, figure, left
from fpl_tune.core.metrics import comparable
from fpl_tune.execute import work
from fpl_tune.execute.decide import asking
from fpl_tune.execute.job import Job
from fpl_tune.findings.choice import most_points, objectives_of, selecting_rule, sign
from fpl_tune.findings.crossed import settings_of
from fpl_tune.search.halving import limit, used
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import VAL, Run, Status
from fpl_tune.study.standing import CellState, Row
from fpl_tune.study.table import StudyTable

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch

_LABEL = 44  # characters of a cell's label in a line


@dataclass(frozen=True)
class StudyProgress:
    """The progress of a study. Work of earlier runs counts as done; totals change only if a look adds seeds."""

    done: float
    """Number of cells that are over. In a search: trials that have a result, or the full trials that their rounds
    amount to."""
    total: float
    """Number of cells of the study. In a search: its limit, summed over all cells of the axes."""
    unit: str
    """cell, trial or full trial"""
    rounds: int
    """Rounds of all seeds that are done, or that will not run because their cell failed."""
    total_rounds: int
    """Rounds of all seeds and cells; 0 in a search, where they are not known beforehand."""
    seconds: float | None
    """Expected seconds until the study is done; None before its first round."""
    ending: bool
    """True if it ends after the running rounds, because of a signal or `fpl-tune stop`."""
    best: str
    """The best cell so far and its value, as text; empty before the first is done, or with several objectives."""
    then: str = ""
    """What runs although the count of a search is over, as text: its last trials, or the confirmation."""

    def __str__(self) -> str:
        """`3 of 12 cells, 40 of 120 rounds` or `24 of 24 full trials, confirming on fresh seeds: 1 of 4 cells`."""
        done, total = (f"{number:,.1f}".removesuffix(".0") for number in (self.done, self.total))
        text = f"{done} of {total} {self.unit}{'' if self.total == 1 else 's'}"
        rounds = f"{self.rounds:,} of {self.total_rounds:,} rounds" if self.total_rounds else ""
        return ", ".join(filter(None, [text, rounds, self.then]))

    def line(self, *, over: bool = False, again: str = "") -> str:
        """The counts, the time left and the best cell so far.

        Args:
            over: True once the study has ended.
            again: text that is added while the study ends.
        """
        ahead = "" if over or self.seconds == 0 else left(self.seconds, ending=self.ending, again=again)
        return ", ".join(filter(None, [str(self), ahead, self.best]))


class ProgressMeter:
    """Measures the progress and the pace of a study.

    Args:
        table: the study's table.
        searches: its searches.
        spec: the study.
        paces: planned seconds of a round of one seed, by the cell's id; may lack cells.
    """

    def __init__(
        self, table: StudyTable, searches: Sequence[CellSearch], spec: StudySpec, paces: Mapping[str, float]
    ) -> None:
        self._table, self._searches, self._paces = table, searches, paces
        self._search, self._ablated = spec.search, bool(spec.ablate)
        self._objectives, self._rule = objectives_of(spec), selecting_rule(spec.report.rule)
        self._settings = settings_of(axes_of(spec.axes))
        self._measured = work.SearchCosts(row for row in table.rows.values() if row.cell.run.learns)
        self._pace: work.Pace | None = None
        self._slots = 1  # maximum number of concurrent jobs
        self._values = WeakKeyDictionary[Row, float]()  # cache for cells that are done, so histories are read once

    def ran(self, job: Job, rounds: Sequence[Sequence[Record]]) -> None:
        """Counts rounds that a job has trained, before they are added to the job. The clock starts with the first."""
        if not job.cell.run.learns:
            return
        now, number = time.monotonic(), len(rounds) * len(job.seeds)
        took = sum(record["time/seconds"] for record in rounds[-1])
        took -= sum(record["time/seconds"] for record in job.rounds[-1]) if job.rounds else 0.0
        self._measured.add(job.cell, took, number)
        self._pace = self._pace or work.Pace(now - took)
        self._pace.add(now, self._cost(job.cell) * number, self._slots)

    def _cost(self, cell: Cell) -> float:
        """The cost of a round; 0 for cells that train nothing."""
        if not cell.run.learns:
            return 0.0
        if self._searches:
            return self._measured(cell)
        return self._paces.get(cell.id) or fmean(self._paces.values() or [1.0])

    def measure(self, jobs: Sequence[Job], exhausted: Collection[str], *, ending: bool) -> StudyProgress:
        """Measures the progress.

        Args:
            jobs: the running jobs.
            exhausted: searches whose sampler has no new point.
            ending: True if the study ends after the running rounds.
        """
        self._slots = max(self._slots, len(jobs))
        stored = self._table.rows
        rows = [*{**stored, **{job.cell.id: with_job(stored[job.cell.id], job) for job in jobs}}.values()]
        ahead = self._work(rows, exhausted)
        seconds = None if ahead else 0.0
        if ahead and self._pace is not None:
            seconds = self._pace.seconds(time.monotonic(), ahead)
        counts = self._counts(rows)
        then = self._then(rows) if counts[0] == counts[1] or not self._asks(exhausted) else ""
        return StudyProgress(*counts, seconds, ending, self._best(), then)

    def _work(self, rows: Sequence[Row], exhausted: Collection[str]) -> float:
        """The work that is left, including that of trials that are still to be suggested."""
        design, going = self._table.design, [each for each in self._searches if str(each) not in exhausted]
        trials = [row for row in rows if any(search.holds(row.cell) for search in going)]
        if not trials:  # they follow after the references
            first = [Cell("", 0, "", "trial", each.varied, each.run, search=each.label) for each in going]
            trials = [Row(cell, design) for cell in first]
        more = work.work_to_come(trials, self._search, len(going), self._cost)
        every = [row for row in rows if row.cell.role in ("trial", "tuned")] or trials
        if more or work.work_left((row for row in every if row.cell.role == "trial"), self._cost):
            points = most_points(self._objectives)
            more += work.confirmation_to_come(every, len(self._searches), self._cost, points)
        return work.work_left(rows, self._cost, slots=self._slots, more=more)

    def _counts(self, rows: Sequence[Row]) -> tuple[float, float, str, int, int]:
        """The first fields of the progress."""
        n_searches = len(self._searches)
        if not n_searches or self._ablated:  # a search whose best trial is ablated is over
            over = sum(row.standing.state is not CellState.QUEUED for row in rows)
            rounds = sum(row.cell.rounds * len(row.wanted) for row in rows)
            ahead = sum(work.rounds_left(row) for row in rows)
            return over, len(rows), "cell", round(rounds - ahead), rounds
        trials, number = [row for row in rows if row.cell.role == "trial"], self._search.trials
        # With a number of trials, a trial counts once it has a result; with a budget, its rounds count as they end.
        ran = [row for row in trials if (self._table.rows[row.cell.id] if number else row).runs]
        most = n_searches * limit(self._search)
        return min(most, used(ran, self._search)), most, "trial" if number else "full trial", 0, 0

    def _asks(self, exhausted: Collection[str]) -> bool:
        """True if a search may suggest a further trial."""
        return asking(self._table, self._searches, exhausted) is not None

    def _then(self, rows: Sequence[Row]) -> str:
        """What a search does once its count is over; empty for a study without a search."""
        confirming = [row for row in rows if row.cell.role in ("tuned", "published")]
        states = [row.standing.state for row in confirming or rows if confirming or row.cell.role == "trial"]
        open_ = states.count(CellState.QUEUED)
        if not confirming:
            return f"finishing {counted(open_, 'trial')}" if open_ and self._searches else ""
        over = f"{len(states) - open_} of {counted(len(states), 'cell')}"
        return f"confirming on fresh seeds: {over}" if open_ else "confirmed on fresh seeds"

    def _best(self) -> str:
        """The best of the cells that are done, of those that confirm a search if there are any; the first in a tie.

        Empty in a study of several settings, which are not ranked against each other.
        """
        if self._settings:
            return ""
        name, *others = self._objectives
        values = [(row.cell, self._value(row, name)) for row in self._table.rows.values() if not others]
        done = [(cell, value) for cell, value in values if not math.isnan(value)]
        tuned = [(cell, value) for cell, value in done if cell.role == "tuned"]
        finite = {cell.label: value for cell, value in tuned or done}
        if not finite or not sign(name):
            return ""
        label = max(finite, key=lambda label: sign(name) * comparable(finite[label]))
        if name == VAL:
            return f"best on validation {100 * finite[label]:.1f} % {short(label)}"
        return f"best {name} {figure(finite[label], name)} {short(label)}"

    def _value(self, row: Row, objective: str) -> float:
        """The mean of the objective over seeds; NaN for a cell that is not done, no candidate, or outside of limits."""
        if not row.cell.candidate or row.standing.state is not CellState.DONE:
            return math.nan
        if row not in self._values:
            runs = (row.runs[seed] for seed in row.wanted)
            value = fmean(run.value(objective, self._rule) for run in runs)
            self._values[row] = value if row.within(self._rule) else math.nan
        return self._values[row]


def with_job(row: Row, job: Job) -> Row:
    """A row with the rounds of its running job, which are not stored yet."""
    number, before = len(job.rounds), {seed: run.rounds for seed, run in row.runs.items()}
    fresh = {seed: Run(Status.PARTIAL, number) for seed in job.seeds if number > before.get(seed, 0)}
    return replace(row, runs={**row.runs, **fresh})


def short(label: str) -> str:
    """A label, cut to fit in a line."""
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"
