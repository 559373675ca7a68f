"""The work that a study has left, and the time that it takes. Functions of the study's design and its rows.

Work is counted in rounds of one seed, each times its cost in its cell. The time left is the work left, divided by the
recent pace: work done per second of wall-clock time. So parallel slots, what a job takes besides its rounds, and a load
that rises need no model of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Protocol

from fpl_tune.search.halving import FULL_TRIALS, spent
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import Design, Row, State, standing

RoundCost = Callable[[Cell], float]
"""RoundCost of a round of one seed of a cell, such as its planned seconds; 1 where all cost the same."""
_TRIED = 50
"""Trials whose mean prices those to come: the last ones."""


class Limits(Protocol):
    """The fields of `search` that end each search of a study: trials, or a budget in full trials."""

    @property
    def trials(self) -> int | None: ...
    @property
    def budget(self) -> float | None: ...


def rounds_left(design: Design, row: Row) -> float:
    """Rounds of all seeds that a cell is expected to run.

    Of a trial that halving may stop, rounds after a rung count by the chance of passing it: 1 / `reduction`, or 1 where
    the trial is hedged. A paused trial has none: what makes room for it is another trial that reaches the rung, and the
    chance of that one is counted.
    """
    now = standing(design, row)
    if now.state is not State.QUEUED:
        return 0.0
    total, chance = 0.0, 1.0
    reached = {seed: run.rounds for seed, run in row.runs.items()}
    for leg in now.left:
        for seed in leg.seeds:
            total += chance * max(0, leg.rounds - reached.get(seed, 0))
            reached[seed] = leg.rounds
        if leg.rung and design.reduction and leg.rounds not in row.passed:
            chance *= 1.0 if row.cell.hedged and leg.rounds < row.cell.rounds else 1 / design.reduction
    return total


def work_left(design: Design, rows: Iterable[Row], cost: RoundCost, *, slots: int = 1, more: float = 0.0) -> float:
    """The work that is left.

    Args:
        design: of the study.
        rows: its cells.
        cost: see `RoundCost`.
        slots: jobs side by side. As slots do not share a cell, no less is left than the longest one takes in each.
        more: work of trials that are not suggested yet; see `work_to_come`.
    """
    each = [rounds * cost(row.cell) for row in rows if (rounds := rounds_left(design, row))]
    return max(more + sum(each), slots * max(each, default=0.0))


def limit(search: Limits) -> float:
    """The limit of one search: its number of trials, or of full ones."""
    return search.trials or search.budget or FULL_TRIALS


def used(design: Design, trials: Sequence[Row], search: Limits) -> float:
    """The part of the limit that trials have used: their number, or the full trials that their rounds amount to."""
    if search.trials or not trials:
        return len(trials)
    full = len(design.seeds) * fmean(row.cell.rounds for row in trials)
    return sum(spent(design, row) for row in trials) / full


def work_to_come(design: Design, trials: Sequence[Row], search: Limits, parts: int, cost: RoundCost) -> float:
    """The work of trials that are not suggested yet, which cost what those so far do. Before the first it is not known.

    Args:
        design: of the study.
        trials: those so far.
        search: its limits.
        parts: number of searches that go on.
        cost: see `RoundCost`.
    """
    number = parts * limit(search) - used(design, trials, search)
    if number <= 0 or not trials:
        return 0.0
    fresh = [row.cell for row in trials[-_TRIED:]]
    if search.trials:
        return number * fmean(cost(cell) * rounds_left(design, Row(cell)) for cell in fresh)
    return number * len(design.seeds) * fmean(cost(cell) * cell.rounds for cell in fresh)


class Pace:
    """Work done per second in the recent half of the work: before that, the load may have been another.

    Args:
        began: when work began, in seconds of any clock.
    """

    def __init__(self, began: float) -> None:
        self._marks = deque([(began, 0.0)])  # times, and the work done by then

    def add(self, now: float, work: float, slots: int = 1) -> None:
        """Adds work that was done. Four pieces of each slot stay in sight: slots often end theirs together."""
        marks = self._marks
        marks.append((now, marks[-1][1] + work))
        while len(marks) > 1 + 4 * slots and marks[1][1] <= marks[-1][1] / 2:
            marks.popleft()

    def seconds(self, now: float, work: float) -> float | None:
        """Seconds that this work takes from the last mark on, less those that have passed since; None before any."""
        (began, before), (last, done) = self._marks[0], self._marks[-1]
        return max(0.0, work * (last - began) / (done - before) - (now - last)) if done > before else None
