"""The work that a study has left, and the time that it takes: pure functions of its rows.

Work is counted in rounds of one seed, weighted by the cost of a round in the cell. The time left is the work left,
divided by the recent pace: work done per second of wall-clock time. So parallel slots, the overhead of jobs and a
changing load need no separate model.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from fpl_tune.search.halving import Limits, limit, used
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import CellState, Row

RoundCost = Callable[[Cell], float]
"""The cost of a round of one seed of a cell, such as its planned seconds; 1 if all cost the same."""
_TRIED = 50
"""Number of most recent trials whose mean cost is the expected cost of a further trial."""


def rounds_left(row: Row) -> float:
    """The expected number of rounds of all seeds that a cell has left.

    For a trial that halving may stop, rounds after a rung count by the chance of passing it: 1 / `reduction`, or 1 if
    the trial is hedged. A paused trial has none left: only another trial that reaches the rung makes room for it, and
    the chance of that one is counted.
    """
    now, design = row.standing, row.design
    if now.state is not CellState.QUEUED:
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


def work_left(rows: Iterable[Row], cost: RoundCost, *, slots: int = 1, more: float = 0.0) -> float:
    """The work that is left.

    Args:
        rows: the study's cells.
        cost: see `RoundCost`.
        slots: number of concurrent jobs. Slots do not share a cell, so the work is at least `slots` times the largest.
        more: work of trials that are not suggested yet; see `work_to_come`.
    """
    each = [rounds * cost(row.cell) for row in rows if (rounds := rounds_left(row))]
    return max(more + sum(each), slots * max(each, default=0.0))


def work_to_come(trials: Sequence[Row], search: Limits, n_searches: int, cost: RoundCost) -> float:
    """The work of trials that are not suggested yet: each is expected to cost as much as those of its search so far, or
    of others where it has none.

    Args:
        trials: the trials so far; without any, the work is not known, and is 0.
        search: the limits of a search.
        n_searches: number of searches that continue.
        cost: see `RoundCost`.
    """
    by_search = _by_search(trials)
    each = {name: _cost_of_trial(rows, cost, expected=search.trials is not None) for name, rows in by_search.items()}
    left = {name: max(0, limit(search) - used(rows, search)) for name, rows in by_search.items()}
    unseen = (n_searches - len(by_search)) * limit(search) * fmean(each.values() or [0.0])
    return sum(left[name] * each[name] for name in each) + unseen


def confirmation_to_come(rows: Sequence[Row], n_searches: int, cost: RoundCost, points: int = 1) -> float:
    """The work that confirms searches: their chosen and their published points run on fresh seeds.

    Args:
        rows: the study's cells; without trials, the work is not known, and is 0.
        n_searches: number of searches.
        cost: see `RoundCost`.
        points: number of points that a search is expected to choose.
    """
    by_search = _by_search([row for row in rows if row.cell.role == "trial"])
    over = {row.cell.search for row in rows if row.cell.role == "tuned"}
    each = [
        len(own[0].design.confirm) / len(own[0].design.seeds) * _cost_of_trial(own, cost)
        for name, own in by_search.items()
        if name not in over
    ]
    return (points + 1) * (n_searches - len(over)) * fmean(each or [0.0])


def _by_search(trials: Iterable[Row]) -> dict[str, list[Row]]:
    """Trials by the search that has suggested them."""
    by_search: dict[str, list[Row]] = {}
    for row in trials:
        by_search.setdefault(row.cell.search, []).append(row)
    return by_search


def _cost_of_trial(trials: Sequence[Row], cost: RoundCost, *, expected: bool = False) -> float:
    """The mean cost of recent trials if all their rounds run, or that which is expected of new ones."""
    fresh = [Row(row.cell, row.design) for row in trials[-_TRIED:]]
    rounds = [rounds_left(row) if expected else row.cell.rounds * len(row.design.seeds) for row in fresh]
    return fmean(cost(row.cell) * number for row, number in zip(fresh, rounds, strict=True))


class SearchCosts:
    """The costs of rounds in a study with searches: mean seconds of a round of one seed, by search.

    Methods and settings that are searched side by side may differ by a factor of hundred. What has not run yet is
    expected to cost as much as the others' mean.

    Args:
        rows: the study's cells, whose results are counted.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._seconds, self._rounds = defaultdict[str, float](float), Counter[str]()
        for row in rows:
            for run in row.runs.values():
                self.add(row.cell, run.costs["time/seconds"], run.rounds)

    def add(self, cell: Cell, seconds: float, rounds: int) -> None:
        """Counts rounds that have run, each of one seed."""
        key = cell.search or cell.id
        self._seconds[key] += seconds
        self._rounds[key] += rounds

    def __call__(self, cell: Cell) -> float:
        """See `RoundCost`."""
        key = cell.search or cell.id
        if self._rounds[key]:
            return self._seconds[key] / self._rounds[key]
        each = [self._seconds[name] / rounds for name, rounds in self._rounds.items() if rounds]
        return fmean(each or [1.0])


class Pace:
    """Work done per second, over the recent half of the work, since the load may have changed before.

    Args:
        began: time at which work began, in seconds of any clock.
    """

    def __init__(self, began: float) -> None:
        self._marks = deque([(began, 0.0)])  # times, and the work done by then

    def add(self, now: float, work: float, slots: int = 1) -> None:
        """Adds work that was done. At least four pieces per slot are kept, since slots often end theirs together."""
        marks = self._marks
        marks.append((now, marks[-1][1] + work))
        while len(marks) > 1 + 4 * slots and marks[1][1] <= marks[-1][1] / 2:
            marks.popleft()

    def seconds(self, now: float, work: float) -> float | None:
        """Expected seconds for this work, from the last mark on, less the time since then; None before any work."""
        (began, before), (last, done) = self._marks[0], self._marks[-1]
        return max(0.0, work * (last - began) / (done - before) - (now - last)) if done > before else None
