"""The estimated time until a study is done (ETA): the work that is left over the speed of the finished work.

The work of a trial is its rounds at the pace of its kind (`profile.cost_key`), and what every trial takes besides:
set-up and files. The speed is the finished work over the wall clock, so that trials side by side, and whatever lies
between them, count as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import Any

from fpl_tune.execute.callback import Callback
from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import Paces, cost_key
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.store import Store

STALLED_SECONDS = 1800.0
"""A trial without a round for longer is stalled: its process is suspended, or its storage does not answer."""


class Eta(Callback):
    """Estimates the seconds until a study is done, in the process that runs it."""

    def __init__(self) -> None:
        self._paces = Paces()
        self._kinds: dict[str, str] = {}  # cell id -> key of its kind
        self._trained: set[str] = set()  # kinds of runs that learn
        self._left: dict[tuple[str, int], int] = {}  # (cell id, seed) -> rounds to run
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}  # last record: round, running total of seconds
        self._running: dict[str, _Running] = {}  # by cell id
        self._overheads: list[float] = []  # seconds of finished trials besides their rounds
        self._began: float | None = None  # when the first trial ended; its start-up is not like that of others
        self._ended = 0  # trials since then
        self._spent = 0.0  # seconds of rounds since then
        self._remaining = self._length = 0  # trials not suggested yet, and the rounds of a trial
        self._seeds: list[int] = []
        self._reduction = self._parallel = 1
        self._last = 0.0  # time of the last event

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        spec = store.spec()
        self._seeds, self._reduction = spec.seed_list(), spec.prune.reduction
        self._paces.add_study(store)
        for cell in cells:
            self._kind(cell)
        for job in jobs:
            self._queue(job.cell, job.seeds)

    def on_trials_remaining(self, trials: int) -> None:
        self._remaining = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._length = cell.run.rounds
            self._queue(cell, self._seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._queue(cell, seeds)
        self._last = time.monotonic()
        self._running[cell.id] = _Running(cell.label, self._last)
        self._parallel = max(self._parallel, len(self._running))

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._end(cell)
        for seed in seeds:  # one paused job in `reduction` resumes
            done = self._seen.get((cell.id, seed), (0, 0.0))[0]
            self._left[cell.id, seed] = (cell.run.rounds - done) // self._reduction

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        self._last = time.monotonic()
        now = 0.0
        for record in records:
            key = cell.id, int(record["seed"])
            number, seconds = self._seen.get(key, (0, 0.0))
            self._seen[key] = record["round"], record["time/seconds"]
            self._left[key] = cell.run.rounds - record["round"]
            rounds, took = record["round"] - number, record["time/seconds"] - seconds
            self._paces.add(self._kind(cell), rounds, took)
            now += took / max(1, rounds)  # the rounds before a checkpoint ran earlier
        self._spent += now
        if running := self._running.get(cell.id):
            running.last, running.spent = self._last, running.spent + now

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._end(cell)
        for seed in self._seeds:
            self._left.pop((cell.id, seed), None)

    def _end(self, cell: Cell) -> None:
        self._last = time.monotonic()
        if running := self._running.pop(cell.id, None):
            self._overheads.append(max(0.0, self._last - running.began - running.spent))
            self._ended += 1
        if self._began is None:
            self._began, self._ended, self._spent = self._last, 0, 0.0

    def _kind(self, cell: Cell) -> str:
        if cell.id not in self._kinds:
            self._kinds[cell.id] = cost_key(cell.run)
            if cell.run.learns:
                self._trained.add(self._kinds[cell.id])
        return self._kinds[cell.id]

    def _queue(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Counts all rounds of these seeds as left; a job that resumes a checkpoint reports its round soon."""
        self._kind(cell)
        for seed in seeds:
            self._left[cell.id, seed] = cell.run.rounds
            self._seen.pop((cell.id, seed), None)

    @property
    def stalled(self) -> dict[str, float]:
        """Label -> seconds since its last round, of stalled trials."""
        late = {running.label: time.monotonic() - running.last for running in list(self._running.values())}
        return {label: seconds for label, seconds in late.items() if seconds > STALLED_SECONDS}

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None until a trial has trained a round."""
        mean = self._paces.of(*self._trained)  # others cost less
        if mean is None:
            return None
        each = median(self._overheads) if self._overheads else 0.0
        work: dict[str, float] = {}
        for (cell, _), rounds in list(self._left.items()):  # a copy: other threads read it too
            pace = self._paces.of(self._kinds[cell])
            begun = each if cell not in self._running else 0.0
            work[cell] = work.get(cell, begun) + rounds * (mean if pace is None else pace)
        trial = each + len(self._seeds) * self._length * mean
        total = sum(work.values()) + self._remaining * trial
        left = max([total / self._speed(each), *work.values()])
        return max(0.0, left - (time.monotonic() - self._last if self._last else 0.0))

    def _speed(self, each: float) -> float:
        """Seconds of work that are done in a second: at first the number of trials side by side."""
        if self._began is None or not self._ended:
            return self._parallel
        done = self._spent + self._ended * each
        before = done / self._ended  # as if one trial of each process had ended before
        return (done + self._parallel * before) / (self._last - self._began + before)


class _Running:
    """A running trial."""

    def __init__(self, label: str, now: float) -> None:
        self.label = label
        self.began = self.last = now
        self.spent = 0.0
        """Seconds of its rounds."""


def seconds_left(store: Store, since: str) -> float | None:
    """Estimates the seconds until a study is done from its results alone, in other processes than the one that runs it.

    The speed is the number of seeds that ended over the wall clock, from the first one on.

    Args:
        store: the study's store.
        since: when its process started, as `lock.owner` states it.

    Returns:
        None until results of two moments are stored.
    """
    spec, cells = store.spec(), store.cells()
    results = [result for cell in cells for result in store.seed_results(cell).values()]
    ends = sorted(datetime.fromisoformat(result["finished"]).timestamp() for result in results)
    ends = [end for end in ends if end >= datetime.fromisoformat(since).timestamp()]
    later = sum(end > ends[0] for end in ends)
    if not later:
        return None
    missing = sum(len(store.missing(cell, spec)) for cell in cells)
    if spec.search.sampler is not None and spec.search.trials:
        trials = spec.search.trials * math.prod(len(values) for values in axes_of(spec.axes).values())
        missing += len(spec.seed_list()) * max(0, trials - sum(cell.role == "trial" for cell in cells))
    return max(0.0, missing * (ends[-1] - ends[0]) / later - max(0.0, time.time() - ends[-1]))
