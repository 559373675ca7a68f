"""Running a study: what is missing becomes jobs, an executor does them, the driver alone writes the store."""

from __future__ import annotations

import importlib
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.study import preflight, prune
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.job import STOP_FILE, Failure, Job, Product, stop_asked
from fpl_tune.study.lock import locked
from fpl_tune.study.prune import Pruner
from fpl_tune.study.resources import seconds_of, setup_of
from fpl_tune.study.results import make_result
from fpl_tune.study.search import Search
from fpl_tune.study.store import FINAL, Store
from fpl_tune.trial import Record

EXECUTORS = {"inline": "fpl_tune.study.inline", "ray": "fpl_tune.tune"}
_CSV_SECONDS = 5.0  # between rewritings of results.csv while a study runs


class Listener:
    """Base of what follows a study. Nothing it does changes the study."""

    def begin(self, store: Store, cells: Sequence[Cell], todo: Sequence[Job]) -> None:
        """Before the first job; `cells` of the axes, `todo` what is missing."""

    def stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        """Stored results of a cell are no longer valid and run again."""

    def started(self, cell: Cell, seeds: Sequence[int]) -> None:
        """A job was handed out."""

    def progress(self, cell: Cell, records: Sequence[Record]) -> None:
        """A round, one record per seed that runs."""

    def finished(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        """All seeds of a cell have a result; by seed."""

    def end(self, store: Store, outcome: Outcome) -> None:
        """After the last job, however the study ended."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a study ended; numbers of cells."""

    done: int
    failed: int
    skipped: int
    """Finished before."""
    pending: int
    """Left for the next time."""
    seconds: float
    exit_code: int
    """0 done, 1 with failed cells, 4 budget ended, 130 or 143 stopped."""
    failures: tuple[str, ...] = ()
    """label, seed and error of what failed."""


def run_study(spec: StudySpec, node: dict[str, Any], *, root: Path, listeners: Iterable[Listener] = ()) -> Outcome:
    """Runs what is missing of a study, or continues it.

    Raises:
        ConfigError: nothing was started: the study is wrong, infeasible, or run by another process.
        EnvironmentProblem: the machine lacks something.
    """
    began = time.monotonic()
    check_seeds(spec)
    seconds_of(spec.budget)
    prune.check(spec.prune)
    search = Search.plan(spec, node)
    cells = search.references if search else expand(spec, node)
    setup = setup_of(spec, root / spec.name)
    with locked(root / spec.name):
        store = Store(root, spec.name)
        driver = Driver(store, spec, search, listeners, began)
        driver.begin(node, [*cells, *(search.open(store.folder) if search else ())])
        if not driver.exhausted:
            preflight.check([job.cell.run for job in driver.queue], setup)
            with _signals(driver):
                importlib.import_module(EXECUTORS[spec.execution.executor]).execute(driver, setup)
        return driver.end()


def check_seeds(spec: StudySpec) -> None:
    """Raises `ConfigError` unless there is at least one seed and none twice."""
    seeds = spec.seed_list()
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"seeds must be a number >= 1 or a list of different seeds, but is {spec.seeds!r}. Write seeds=3."
        )


class Driver:
    """The desk of a study: hands out jobs, writes what comes back, asks the search for more. Implements `Desk`."""

    def __init__(
        self, store: Store, spec: StudySpec, search: Search | None, listeners: Iterable[Listener], began: float
    ) -> None:
        self.store, self.spec, self.search = store, spec, search
        self.listeners, self.began = list(listeners), began
        self.queue: deque[Job] = deque()
        self.signal: int | None = None
        self.pruner = Pruner(spec.prune)
        budget = seconds_of(spec.budget)
        self._deadline = None if budget is None else began + budget
        self._flying: dict[tuple[str, tuple[int, ...]], list[list[Record]]] = {}
        self._open: dict[str, set[int]] = {}
        self._prints: dict[str, str] = {}
        self._seen: dict[str, Cell] = {}
        self._skipped: set[str] = set()
        self._written = 0.0

    # -- before and after ------------------------------------------------------------------------------------

    def begin(self, node: dict[str, Any], cells: Sequence[Cell]) -> None:
        """Notes the study and queues what is missing of it."""
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        self.store.begin(node, cells)
        for cell in cells:
            self._enqueue(cell)
        for cell in cells:
            if cell.id not in self._open:
                self._inform(cell)
                self._remember(cell)
        if self.search:
            self._ask()
        for listener in self.listeners:
            listener.begin(self.store, cells, list(self.queue))

    def _remember(self, cell: Cell) -> None:
        """What finished cells reached at the rungs counts for those that come."""
        histories = [self.store.history(cell, seed) for seed in self._results(cell)]
        rounds = [list(records) for records in zip(*histories, strict=False)]
        for number in range(1, len(rounds) + 1 if self.spec.prune.rule else 0):
            self.pruner.keep(cell, rounds[:number])

    def _enqueue(self, cell: Cell) -> None:
        """Queues the seeds of a cell that have no final result; stale results are taken away first."""
        if cell.id in self._seen:
            return
        now = fingerprints(cell.run)
        stored = self.store.fingerprints(cell)
        reasons = why_stale(stored, now) if stored and self.store.seeds(cell) else []
        if reasons:
            for seed in self.store.seeds(cell):
                self.store.forget(cell, seed)
            for listener in self.listeners:
                listener.stale(cell, reasons)
        self._seen[cell.id] = cell
        missing = [s for s in self.spec.seed_list() if not self.store.finished(cell, s)]
        if missing:
            self.store.stamp(cell, now)
            self._open[cell.id] = set(missing)
            self.queue.append(Job(cell, tuple(missing), f"{now['method']}-{now['data']}"))
        else:
            self._skipped.add(cell.id)

    def end(self) -> Outcome:
        """Writes the tables and tells how it went."""
        self.store.write_csv()
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        outcome = self._outcome()
        for listener in self.listeners:
            listener.end(self.store, outcome)
        return outcome

    def _outcome(self) -> Outcome:
        failures, failed = [], set()
        for cell in self._seen.values():
            for seed in self.spec.seed_list():
                result = self.store.result(cell, seed)
                bad = ("failed",) if cell.role == "trial" else ("failed", "diverged")
                if result is not None and result["status"] in bad and seed not in self._open.get(cell.id, ()):
                    failures.append(f"{cell.label}, seed {seed}: {result['error']}")
                    failed.add(cell.id)
        pending = len(self._open) + (self.search.unasked if self.search else 0)
        done = len(self._seen) - len(self._open) - len(self._skipped - failed) - len(failed)
        code = 1 if failed else 0
        if pending:
            code = 128 + self.signal if self.signal else 4 if self._late() else 130
        return Outcome(
            done,
            len(failed),
            len(self._skipped - failed),
            pending,
            time.monotonic() - self.began,
            code,
            tuple(failures),
        )

    # -- the desk --------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.signal is not None or self._late() or stop_asked(self.store.folder)

    def _late(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        if late and (self._flying or self.queue):
            self.halt()
        return late

    def halt(self) -> None:
        """Asks all trials, in whatever process, to end after their round."""
        (self.store.folder / STOP_FILE).touch()

    @property
    def exhausted(self) -> bool:
        if self.stopping:
            return True
        return not self.queue and not self._flying and (self.search is None or self.search.left == 0)

    def next(self) -> Job | None:
        if self.stopping:
            return None
        if not self.queue and self.search:
            self._ask()
        if not self.queue:
            return None
        job = self.queue.popleft()
        self._flying[job.cell.id, job.seeds] = []
        for listener in self.listeners:
            listener.started(job.cell, job.seeds)
        return job

    def _ask(self) -> None:
        """Asks the search for as many trials as it gives; what the store knows already is told at once."""
        assert self.search is not None
        while cells := self.search.ask():
            self.store.add([cell for cell in cells if cell.id not in self._seen])
            for cell in cells:
                self._enqueue(cell)
                if cell.id not in self._open:
                    self._inform(cell)

    def heard(self, job: Job, rounds: list[list[Record]]) -> bool:
        history = self._flying[job.cell.id, job.seeds]
        for records in rounds:
            history.append(records)
            for listener in self.listeners:
                listener.progress(job.cell, records)
            if not self.pruner.keep(job.cell, history):
                self._close(job, "pruned", None)
                return False
        return True

    def finished(self, job: Job, product: Product) -> None:
        self._close(job, "done", product)

    def failed(self, job: Job, failure: Failure) -> None:
        """A batch of seeds that fails is taken apart, so that one bad seed does not take the others along."""
        if len(job.seeds) > 1:
            self._drop(job)
            self.queue.extendleft(Job(job.cell, (s,), job.fingerprint) for s in reversed(job.seeds))
        elif not failure.diverged and job.attempt < self.spec.execution.retries:
            self._flying.pop((job.cell.id, job.seeds))
            self.queue.appendleft(job.again())
        else:
            self._close(job, "diverged" if failure.diverged else "failed", None, failure.error)

    def _close(self, job: Job, status: str, product: Product | None, error: str | None = None) -> None:
        """Stores the results of a job's seeds."""
        rounds = self._flying[job.cell.id, job.seeds]
        for i, seed in enumerate(job.seeds):
            history = [records[i] for records in rounds]
            extra: dict[str, Any] = {}
            if product is not None:
                extra = {
                    "split_hash": product.split_hash[seed],
                    "peak_memory_bytes": product.peak_memory_bytes,
                }
            result = make_result(status, history, error=error, **extra)
            self.store.put(job.cell, seed, history, result, product.prompts.get(seed) if product else None)
            self._open[job.cell.id].discard(seed)
        self._drop(job)
        if not self._open[job.cell.id]:
            del self._open[job.cell.id]
            self._tell(job.cell)
        if time.monotonic() - self._written > _CSV_SECONDS:
            self.store.write_csv()
            self._written = time.monotonic()

    def _drop(self, job: Job) -> None:
        self._flying.pop((job.cell.id, job.seeds), None)
        shutil.rmtree(self.store.folder / "cells" / job.cell.id / job.slot, ignore_errors=True)

    def _tell(self, cell: Cell) -> None:
        """A cell is complete: the search and the listeners hear of it."""
        self._inform(cell)
        for listener in self.listeners:
            listener.finished(cell, self._results(cell))

    def _inform(self, cell: Cell) -> None:
        """The search hears of a complete cell."""
        if self.search:
            histories = ((s, r, self.store.history(cell, s)) for s, r in self._results(cell).items())
            self.search.tell(cell, {seed: (result, history) for seed, result, history in histories})

    def _results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        found = {seed: self.store.result(cell, seed) for seed in self.spec.seed_list()}
        return {seed: result for seed, result in found.items() if result is not None}


@contextmanager
def _signals(driver: Driver) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends trials after their round with a checkpoint, the second ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if driver.signal is not None:
            raise KeyboardInterrupt
        driver.signal = number
        driver.halt()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["FINAL", "Driver", "Listener", "Outcome", "run_study"]
