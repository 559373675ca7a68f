"""The estimated time until a study is done (ETA), shared with other processes through the study's folder.

Runs of equal cost (`profile.cost_key`) form a kind. The pace of a kind, in seconds per round and seed, is measured in
this study; before its first round, it is the mean pace of the other kinds.

A running trial without a round for `STALLED_ROUNDS` times its pace is stalled: its process is suspended, or its storage
does not answer.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fpl_tune.core.files import write_text
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import cost_key
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

_FILE = "study.left"
_WRITE_SECONDS = 1.0  # between two writes of the file, at least
STALLED_ROUNDS = 10
"""A trial that takes this many times as long as its rounds before it is stalled."""
STALLED_SECONDS, STALLED_AT_FIRST = 120.0, 1800.0
"""No trial is stalled earlier; one whose pace is not known yet, since it loads towers and encodes images."""


class Eta(Callback):
    """Estimates the seconds until a study is done and writes them to its folder while it runs."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}  # cell id -> key of its kind
        self._trained: set[str] = set()  # kinds of runs that learn
        self._rounds: Counter[str] = Counter()  # by kind: measured rounds of one seed
        self._spent: dict[str, float] = defaultdict(float)  # by kind: their seconds
        self._left: dict[tuple[str, int], int] = {}  # (cell id, seed) -> rounds to run
        self._seen: dict[tuple[str, int], tuple[int, float]] = {}  # last record: round, running total of seconds
        self._due: dict[str, tuple[str, float, float]] = {}  # running cells: label, last event, limit
        self._remaining = self._length = 0  # trials not suggested yet, and the rounds of a trial
        self._seeds: list[int] = []
        self._reduction = self._parallel = 1
        self._last = 0.0  # time of the last event
        self._folder: Path | None = None
        self._written = 0.0

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        spec = store.spec()
        self._folder, self._seeds, self._reduction = store.folder, spec.seed_list(), spec.prune.reduction
        for cell in cells:
            for result in store.seed_results(cell).values():
                if result["rounds"]:
                    self._rounds[self._kind(cell)] += result["rounds"]
                    self._spent[self._kind(cell)] += result["time/seconds"]
        for job in jobs:
            self._queue(job.cell, job.seeds)
        self._write()

    def on_trials_remaining(self, trials: int) -> None:
        self._remaining = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self._length = cell.run.rounds
            if self._folder is not None:  # else `on_study_start` lists their jobs
                self._queue(cell, self._seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._queue(cell, seeds)
        self._expect(cell, len(seeds))
        self._parallel = max(self._parallel, len(self._due))
        self._last = self._last or time.monotonic()

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._due.pop(cell.id, None)
        for seed in seeds:  # one paused job in `reduction` resumes
            done = self._seen.get((cell.id, seed), (0, 0.0))[0]
            self._left[cell.id, seed] = (cell.run.rounds - done) // self._reduction

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        kind = self._kind(cell)
        for record in records:
            key = cell.id, int(record["seed"])
            number, seconds = self._seen.get(key, (0, 0.0))
            self._seen[key] = record["round"], record["time/seconds"]
            self._left[key] = cell.run.rounds - record["round"]
            self._rounds[kind] += record["round"] - number
            self._spent[kind] += record["time/seconds"] - seconds
        self._last = time.monotonic()
        self._expect(cell, len(records))

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._due.pop(cell.id, None)
        for seed in self._seeds:
            self._left.pop((cell.id, seed), None)
        self._last = time.monotonic()

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.on_abort()

    def on_abort(self) -> None:
        if self._folder is not None:
            (self._folder / _FILE).unlink(missing_ok=True)

    def _kind(self, cell: Cell) -> str:
        if cell.id not in self._kinds:
            self._kinds[cell.id] = cost_key(cell.run)
            if cell.run.learns:
                self._trained.add(self._kinds[cell.id])
        return self._kinds[cell.id]

    def _pace(self, *kinds: str) -> float | None:
        """Seconds per round and seed over kinds; None until one has run a round."""
        rounds = sum(self._rounds[kind] for kind in kinds)
        return sum(self._spent[kind] for kind in kinds) / rounds if rounds else None

    def _queue(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Counts all rounds of these seeds as left; a job that resumes a checkpoint reports its round soon."""
        self._kind(cell)
        for seed in seeds:
            self._left[cell.id, seed] = cell.run.rounds
            self._seen.pop((cell.id, seed), None)

    def _expect(self, cell: Cell, seeds: int) -> None:
        """Stores the time of a running trial's last event and the longest time until its next one."""
        pace = self._pace(self._kind(cell))
        limit = STALLED_AT_FIRST
        if pace is not None:  # rounds between two evaluations differ from those with one
            limit = max(STALLED_SECONDS, STALLED_ROUNDS * seeds * cell.run.protocol.eval_every * pace)
        self._due[cell.id] = cell.label, time.time(), limit
        if time.monotonic() > self._written + _WRITE_SECONDS:
            self._write()

    @property
    def stalled(self) -> dict[str, float]:
        """Label -> seconds since its last round, of stalled trials."""
        return _late(list(self._due.values()))

    @property
    def seconds(self) -> float | None:
        """Seconds until the study is done; None until a trial has trained a round."""
        mean = self._pace(*self._trained)  # others cost less
        if mean is None:
            return None
        cells: dict[str, float] = defaultdict(float)
        for (cell, _), rounds in list(self._left.items()):  # a copy: other threads read it too
            pace = self._pace(self._kinds[cell])
            cells[cell] += rounds * (mean if pace is None else pace)
        total = sum(cells.values()) + self._remaining * len(self._seeds) * self._length * mean
        left = max([total / self._parallel, *cells.values()])
        return max(0.0, left - (time.monotonic() - self._last if self._last else 0.0))

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
        at, left = time.time() - node["at"], node["seconds"]
        return None if left is None else max(0.0, left - at), _late(node["due"])
    except (OSError, ValueError, KeyError, TypeError):
        return None, {}


def _late(due: Iterable[Sequence[Any]]) -> dict[str, float]:
    now = time.time()
    return {label: round(now - at, 1) for label, at, limit in due if now - at > limit}
