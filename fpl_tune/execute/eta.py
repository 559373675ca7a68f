"""The estimated time until a study is done (ETA), shared with other processes through the study's folder.

Runs of equal cost (`profile.cost_key`) form a kind. The pace of a kind, in seconds per round and seed, is measured in
this study; before its first round, it is the plan's measurement scaled by what was measured so far, or else the mean
pace of the other kinds.

A running trial without a round for `STALLED_ROUNDS` times its pace is stalled: its process is suspended, or its storage
does not answer.
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
from fpl_tune.files import write_text
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.trial import Record

_FILE = "study.left"
_WRITE_SECONDS = 1.0  # between two writes of the file, at least
STALLED_ROUNDS = 10
"""A trial that takes this many times as long as its rounds before it is stalled."""
STALLED_SECONDS, STALLED_AT_FIRST = 120.0, 1800.0
"""No trial is stalled earlier; one whose pace is not known yet, since it loads towers and encodes images."""
_WARM_UP = 2.0  # seconds before the measured parallelism means anything


class _Kind:
    """Measurements of runs of equal cost."""

    def __init__(self, learns: bool) -> None:
        self.learns = learns
        self.rounds = self.seconds = 0.0  # measured rounds of one seed, and their seconds
        self.planned: float | None = None  # seconds per round and seed, measured by a plan


class Eta(Callback):
    """Estimates the seconds until a study is done and writes them to its folder while it runs."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}
        self._of: dict[str, tuple[_Kind, int]] = {}  # cell id -> its kind and rounds
        self._left: dict[tuple[str, int], int] = {}  # (cell id, seed) -> rounds to run
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}  # last record: round, running total of seconds
        self._running: dict[str, int] = {}  # cell id -> jobs
        self._due: dict[str, tuple[str, float, float]] = {}  # by cell: label, last event, limit
        self._remaining, self._trials = 0, [0, 0]  # trials not suggested yet; rounds and number of those suggested
        self._seeds: list[int] = []
        self._reduction = 1
        self._parallel = 1
        self._spent = self._last = 0.0  # seconds of trials; time of the last event
        self._first: tuple[float, float] | None = None  # time of the first record, and the seconds spent by then
        self._folder: Path | None = None
        self._written = 0.0

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        spec = store.spec()
        self._folder, self._seeds, self._reduction = store.folder, spec.seed_list(), spec.prune.reduction
        for cell in cells:
            for seed in store.seeds(cell):
                if (result := store.result(cell, seed)) and result["rounds"]:
                    self._kind(cell)[0].rounds += result["rounds"]
                    self._kind(cell)[0].seconds += result["time/seconds"]
        for job in jobs:
            self._queue(job.cell, job.seeds)
        with suppress(FplTuneError, OSError):
            setup = setup_of(spec, store.folder)
            self._parallel = setup.parallel
            if setup.address is None:
                runs = {cost_key(job.cell.run): job.cell.run for job in jobs}
                for key, cost in known(runs, spec.seed_list(), setup).items():
                    self._kinds[key].planned = cost.seconds(runs[key]) / (runs[key].rounds * len(self._seeds))
        self._write()

    def on_trials_remaining(self, trials: int) -> None:
        self._remaining = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        for cell in cells if self._folder is not None else ():  # else `on_study_start` lists their jobs
            self._queue(cell, self._seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._queue(cell, seeds)
        self._running[cell.id] = 1 + (self._running.get(cell.id, 0) if len(seeds) < len(self._seeds) else 0)
        self._expect(cell, len(seeds))
        self._parallel = max(self._parallel, sum(self._running.values()))
        self._write_sometimes()
        if self._first is None:
            self._last = time.monotonic()

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._running.pop(cell.id, None)
        self._due.pop(cell.id, None)
        for seed in seeds:  # one paused job in `reduction` resumes
            done = self._seen.get((cell.id, seed), (0, 0.0))[0]
            self._left[cell.id, seed] = (self._kind(cell)[1] - done) // self._reduction

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        kind, rounds = self._kind(cell)
        for record in records:
            key = cell.id, int(record["seed"])
            number, seconds = self._seen.get(key, (0, 0.0))
            self._seen[key] = record["round"], record["time/seconds"]
            self._left[key] = rounds - record["round"]
            kind.rounds += record["round"] - number
            kind.seconds += record["time/seconds"] - seconds
            self._spent += record["time/seconds"] - seconds
        self._expect(cell, len(records))
        self._last = time.monotonic()
        self._first = self._first or (self._last, self._spent)
        self._write_sometimes()

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._running.pop(cell.id, None)
        self._due.pop(cell.id, None)
        for key in [key for key in self._left if key[0] == cell.id]:
            del self._left[key]
        self._last = time.monotonic()

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.on_abort()

    def on_abort(self) -> None:
        if self._folder is not None:
            (self._folder / _FILE).unlink(missing_ok=True)

    def _expect(self, cell: Cell, seeds: int) -> None:
        """Stores the time of a running trial's last event and the longest time until its next one."""
        kind = self._kind(cell)[0]
        every = cell.run.protocol.eval_every  # rounds between two evaluations differ from those with one
        pace = seeds * every * kind.seconds / kind.rounds if kind.rounds else 0.0
        least = STALLED_SECONDS if kind.rounds else STALLED_AT_FIRST
        self._due[cell.id] = cell.label, time.time(), max(least, STALLED_ROUNDS * pace)

    @property
    def stalled(self) -> dict[str, float]:
        """Label -> seconds since its last round, of stalled trials."""
        return _late(list(self._due.values()))

    def _kind(self, cell: Cell) -> tuple[_Kind, int]:
        """A cell's kind, and the rounds of its trials."""
        if cell.id not in self._of:
            self._of[cell.id] = self._kinds.setdefault(cost_key(cell.run), _Kind(cell.run.learns)), cell.run.rounds
            if cell.role == "trial":
                self._trials = [self._trials[0] + self._of[cell.id][1], self._trials[1] + 1]
        return self._of[cell.id]

    def _queue(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Counts all rounds of these seeds as left; a job that resumes a checkpoint reports its round soon."""
        for seed in seeds:
            self._left[cell.id, seed] = self._kind(cell)[1]
            self._seen.pop((cell.id, seed), None)

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None until the pace of a kind is known."""
        kinds = list(self._kinds.values())  # copies: other threads read it too
        measured = [kind for kind in kinds if kind.rounds and kind.learns]  # others cost more
        priors = [kind.planned for kind in kinds if kind.planned is not None]
        if not measured and not priors:
            return None
        planned = sum(kind.planned * kind.rounds for kind in measured if kind.planned is not None)
        slower = sum(kind.seconds for kind in measured if kind.planned is not None) / planned if planned else 1.0
        mean = sum(k.seconds for k in measured) / sum(k.rounds for k in measured) if measured else 0.0
        mean = mean or slower * sum(priors) / max(1, len(priors))

        def pace(kind: _Kind) -> float:
            if kind.rounds:
                return kind.seconds / kind.rounds
            return mean if kind.planned is None else slower * kind.planned

        cells: dict[str, float] = {}
        for (cell, _), rounds in list(self._left.items()):
            cells[cell] = cells.get(cell, 0.0) + rounds * pace(self._of[cell][0])
        total = sum(cells.values())
        if self._remaining and self._trials[1]:
            total += self._remaining * len(self._seeds) * mean * self._trials[0] / self._trials[1]
        left = max(total / self._at_once(), *cells.values(), 0.0) if cells else total / self._at_once()
        return max(0.0, left - (time.monotonic() - self._last if self._last else 0.0))

    def _at_once(self) -> float:
        """Trials that advance at once: measured as seconds of trials per second, at most the parallel jobs."""
        if self._first is None or self._last - self._first[0] < _WARM_UP:
            return float(self._parallel)
        return min(self._parallel, max((self._spent - self._first[1]) / (self._last - self._first[0]), 0.1))

    def _write_sometimes(self) -> None:
        if time.monotonic() > self._written + _WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._folder is not None:
            with suppress(OSError):
                node = {"seconds": self.seconds, "at": time.time(), "due": list(self._due.values())}
                write_text(self._folder / _FILE, json.dumps(node))


def seconds_left(folder: Path) -> tuple[float | None, dict[str, float]]:
    """Reads what the process of the study in a folder wrote last.

    Returns:
        Seconds that the study still takes, None where unknown; and the stalled trials, see `Eta.stalled`.
    """
    try:
        node = json.loads((folder / _FILE).read_text())
        left = None if node["seconds"] is None else float(node["seconds"]) - (time.time() - float(node["at"]))
        late = _late([(str(label), float(at), float(limit)) for label, at, limit in node["due"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}
    return None if left is None else max(0.0, left), late


def _late(due: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    now = time.time()
    return {label: round(now - at, 1) for label, at, limit in due if now - at > limit}
