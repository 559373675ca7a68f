"""How long a study will still take, told by the process that runs it to any other that asks.

A kind of trials (`profile.cost_key`) has a pace, in seconds of a round of one seed: measured in this study, else as a
plan measured it here in the last hour, in proportion to what was measured, else the mean of the others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpl_tune.errors import FplTuneError
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import cost_key, known
from fpl_tune.execute.resources import setup_of
from fpl_tune.files import atomic_write
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.trial import Record, rounds_of

_FILE = "study.left"
_WRITE_SECONDS = 1.0  # between writings, at least
_FEW = 2.0  # seconds in which nothing can be said of how many trials really advance at once


class _Kind:
    """Trials that cost the same."""

    def __init__(self) -> None:
        self.waiting = 0.0
        """Rounds of one seed that no job was handed out for."""
        self.largest = 0.0
        """The same of the largest job."""
        self.heard = self.seconds = 0.0
        """Rounds of one seed that were measured, and what they took."""
        self.planned: float | None = None
        """Seconds a round of one seed, as a plan measured it."""


class _Job:
    """What was handed out and is under way."""

    def __init__(self, kind: _Kind, rounds: int, seeds: int) -> None:
        self.kind, self.rounds, self.seeds = kind, rounds, seeds
        self.done = 0
        self.seconds = 0.0

    @property
    def left(self) -> float:
        return float((self.rounds - self.done) * self.seeds)


class Eta(Callback):
    """Listens to a study and knows the seconds that are left; writes them to the study's folder while it runs."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._of: dict[str, tuple[_Kind, int]] = {}  # by cell: kind, and rounds of a trial
        self._waiting: dict[str, int] = {}  # by cell: seeds that no job was handed out for
        self._flying: dict[str, dict[tuple[int, ...], _Job]] = {}
        self._seeds = 1
        self._trials: list[int] = []  # rounds of what a search came up with
        self._unasked = 0  # trials that it still will
        self._parallel = self._widest = 0
        self._first: tuple[float, float] | None = None  # when something was first heard, and what it took
        self._spent = self._last = 0.0  # seconds of trials; when something was last heard
        self._folder: Path | None = None
        self._written = 0.0

    # -- what is heard ---------------------------------------------------------------------------------------

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        spec = store.spec()
        self._folder, self._seeds = store.folder, len(spec.seed_list())
        for cell in cells:
            for seed in store.seeds(cell):
                if (result := store.result(cell, seed)) and result["rounds"]:
                    kind, _ = self._known(cell)
                    kind.heard += result["rounds"]
                    kind.seconds += result["time/seconds"]
        for job in jobs:
            self._wait(job.cell, len(job.seeds))
        with suppress(FplTuneError, OSError):
            setup = setup_of(spec, store.folder)
            self._parallel = setup.parallel
            if setup.address is None:
                runs = {cost_key(job.cell.run): job.cell.run for job in jobs}
                for key, cost in known(runs, spec.seed_list(), setup).items():
                    self._kinds[key].planned = cost.seconds(runs[key]) / (rounds_of(runs[key]) * self._seeds)
        self._write()

    def on_trials_remaining(self, trials: int) -> None:
        self._unasked = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        if self._folder is not None:  # else `begin` will tell
            for cell in cells:
                self._wait(cell, self._seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        flying = self._flying.setdefault(cell.id, {})
        for key in [key for key in flying if set(key) & set(seeds)]:  # tried again, whole or in parts
            self._last = time.monotonic()
            del flying[key]
            self._wait(cell, len(key))
        self._take(cell, len(seeds))
        kind, rounds = self._known(cell)
        flying[tuple(seeds)] = _Job(kind, rounds, len(seeds))
        self._widest = max(self._widest, sum(map(len, self._flying.values())))
        if self._first is None:
            self._last = time.monotonic()

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._flying.get(cell.id, {}).pop(tuple(seeds), None)  # most paused jobs are pruned

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        job = self._flying.get(cell.id, {}).get(tuple(record["seed"] for record in records))
        if job is None:
            return
        number, seconds = max(r["round"] for r in records), sum(r["time/seconds"] for r in records)
        job.kind.heard += (number - job.done) * job.seeds
        job.kind.seconds += seconds - job.seconds
        self._spent += seconds - job.seconds
        job.done, job.seconds = number, seconds
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last, self._spent
        if self._last > self._written + _WRITE_SECONDS:
            self._write()

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._flying.pop(cell.id, None)
        self._last = time.monotonic()  # also where it failed without a word
        self._take(cell, self._waiting.get(cell.id, 0))

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.on_abort()

    def on_abort(self) -> None:
        if self._folder is not None:
            (self._folder / _FILE).unlink(missing_ok=True)

    def _known(self, cell: Cell) -> tuple[_Kind, int]:
        """A cell's kind, and the rounds of its trials."""
        if cell.id not in self._of:
            self._of[cell.id] = self._kinds.setdefault(cost_key(cell.run), _Kind()), rounds_of(cell.run)
            if cell.role == "trial":
                self._trials.append(self._of[cell.id][1])
        return self._of[cell.id]

    def _wait(self, cell: Cell, seeds: int) -> None:
        """So many seeds more of a cell wait to be handed out."""
        kind, rounds = self._known(cell)
        self._waiting[cell.id] = self._waiting.get(cell.id, 0) + seeds
        kind.waiting += seeds * rounds
        kind.largest = max(kind.largest, seeds * rounds)

    def _take(self, cell: Cell, seeds: int) -> None:
        """So many, if there are as many, do not wait any more."""
        if waiting := self._waiting.get(cell.id, 0):
            taken = min(seeds, waiting)
            self._waiting[cell.id] = waiting - taken
            kind, rounds = self._known(cell)
            kind.waiting -= taken * rounds

    # -- what is left ----------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None while nothing is known of what a round takes."""
        left = self._left()
        return None if left is None else max(0.0, left - (time.monotonic() - self._last if self._last else 0.0))

    def _left(self) -> float | None:
        """The same as it was when something was last heard."""
        paces = _paces(list(self._kinds.values()))
        if paces is None:
            return None
        jobs = [job for jobs in list(self._flying.values()) for job in list(jobs.values())]  # other threads ask too
        flying = [paces.get(job.kind, 0.0) * job.left for job in jobs]
        total = sum(flying) + sum(pace * kind.waiting for kind, pace in paces.items())
        longest = max([0.0, *flying, *(pace * min(kind.largest, kind.waiting) for kind, pace in paces.items())])
        if self._unasked and self._trials:
            rounds = self._seeds * sum(self._trials) / len(self._trials)
            total += self._unasked * rounds * sum(paces.values()) / len(paces)
        return max(total / self._at_once(), longest)

    def _at_once(self) -> float:
        """Trials that advance at once: as many as may, fewer where what is no training takes its time."""
        most = float(max(1, self._widest or self._parallel))
        if self._first is None or self._last - self._first[0] < _FEW:
            return most
        return min(most, max((self._spent - self._first[1]) / (self._last - self._first[0]), 0.1))

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._folder is not None:
            with suppress(OSError), atomic_write(self._folder / _FILE) as temporary:
                temporary.write_text(json.dumps({"seconds": self.seconds, "at": time.time()}))


def _paces(kinds: Sequence[_Kind]) -> dict[_Kind, float] | None:
    """Seconds of a round of one seed by kind; None where nothing is known of any."""
    heard = [kind for kind in kinds if kind.heard]
    rounds = sum(kind.heard for kind in heard)
    planned = sum(kind.planned * kind.heard for kind in heard if kind.planned is not None)
    slower = sum(kind.seconds for kind in heard if kind.planned is not None) / planned if planned else 1.0
    priors = [slower * kind.planned for kind in kinds if kind.planned is not None]
    others = sum(kind.seconds for kind in heard) / rounds if rounds else sum(priors) / len(priors) if priors else None
    found = {}
    for kind in kinds:
        prior = others if kind.planned is None else slower * kind.planned
        if prior is None:
            return None
        found[kind] = kind.seconds / kind.heard if kind.heard else prior
    return found


def seconds_left(folder: Path) -> float | None:
    """Seconds that the running study in a folder will still take; None where nobody knows."""
    try:
        told = json.loads((folder / _FILE).read_text())
        left = None if told["seconds"] is None else float(told["seconds"]) - (time.time() - float(told["at"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if left is None else max(0.0, left)
