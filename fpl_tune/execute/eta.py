"""The estimated time until a study is done (ETA): the work that is left over the speed of the finished work.

Work is counted in rounds of one seed, and speed by the wall clock: set-up, files and trials side by side count as they
are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fpl_tune.config import PruneSpec
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.job import Job
from fpl_tune.search.pruning import expected_cost, planned_trials, resolved
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.store import Store


class Eta(Callback):
    """Estimates the seconds until a study is done, in the process that runs it."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, int], float] = {}  # (cell id, seed) -> rounds to run
        self._trials, self._length = 0, 0.0  # trials not suggested yet, and the work of one
        self._seeds: list[int] = []
        self._running: set[str] = set()
        self._prune, self._parallel = PruneSpec(), 1
        self._pace = 0.0  # seconds of a round of one seed, besides what a trial takes at its ends
        self._done = self._ended = 0  # work since the first trial ended, whose start is not like that of others; trials
        self._began = self._last = 0.0  # times of the first end of a trial, and of the last event

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._seeds, self._prune = store.spec().seed_list(), resolved(store.spec())
        for job in jobs:
            self._queue(job.cell, job.seeds)

    def on_trials_remaining(self, trials: int) -> None:
        self._trials = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            cost = expected_cost(self._prune, cell.run, len(self._seeds))
            self._length = cost * len(self._seeds) * cell.run.rounds
            self._queue(cell, self._seeds, cost)

    def _queue(self, cell: Cell, seeds: Sequence[int], share: float = 1.0) -> None:
        """Counts a share of all rounds as left; a job that resumes a checkpoint reports its round soon."""
        if cell.run.learns:  # others take next to nothing
            self._left |= {(cell.id, seed): share * cell.run.rounds for seed in seeds}

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._queue(cell, seeds)
        self._running.add(cell.id)
        self._parallel = max(self._parallel, len(self._running))
        self._last = time.monotonic()

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._running.discard(cell.id)
        for seed in seeds:  # one paused job in `reduction` resumes
            self._left[cell.id, seed] /= self._prune.reduction

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        self._last = time.monotonic()
        for record in records if cell.run.learns else ():
            self._left[cell.id, int(record["seed"])] = cell.run.rounds - record["round"]
            self._pace = record["time/seconds"] / record["round"]
            self._done += 1

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._last = time.monotonic()
        self._running.discard(cell.id)
        for seed in self._seeds:
            self._left.pop((cell.id, seed), None)
        if cell.run.learns:
            self._ended += 1
            if self._ended == 1:
                self._began, self._done = self._last, 0

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None until a trial has trained a round."""
        left = sum(list(self._left.values())) + self._trials * self._length  # a copy: other threads read it too
        if self._ended > self._parallel and self._done:
            each = (self._last - self._began) / self._done
        else:
            each = self._pace / self._parallel
        return max(0.0, left * each - (time.monotonic() - self._last)) if self._pace or self._ended else None


def seconds_left(store: Store, since: str) -> float | None:
    """Estimates the seconds until a study is done from its results alone, in other processes than the one that runs it.

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
    if spec.search.sampler is not None:
        trials = planned_trials(spec, spec) * math.prod(len(values) for values in axes_of(spec.axes).values())
        seeds = len(spec.seed_list()) if resolved(spec).rule is None else 1
        missing += seeds * max(0, trials - sum(cell.role == "trial" for cell in cells))
    return max(0.0, missing * (ends[-1] - ends[0]) / later - max(0.0, time.time() - ends[-1]))
