"""The scheduler of a study. What is missing becomes jobs, an executor does them, the driver alone writes the store."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import STOP_FILE, Failure, Job, JobOutput, stop_asked
from fpl_tune.execute.queue import JobQueue
from fpl_tune.execute.resources import seconds_of
from fpl_tune.files import no_room
from fpl_tune.search.pruning import Pruner
from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.results import make_result
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store
from fpl_tune.trial import Record

_DEATHS = 3  # of a job's process, none of which won a round
_CSV_SECONDS = 5.0  # between rewritings of results.csv while a study runs, at least
_CSV_SHARE = 0.05  # of the driver's time, at most: the table of ten thousand cells takes seconds


class Scheduler:
    """Hands out jobs, writes what comes back, asks the search for more."""

    def __init__(
        self, store: Store, spec: StudySpec, search: Search | None, callbacks: Iterable[Callback], began: float
    ) -> None:
        self.store, self.spec, self.search = store, spec, search
        self.callbacks, self.began = list(callbacks), began
        self.jobs = JobQueue(store, spec)
        self.signal: int | None = None
        self.pruner = Pruner(spec.prune, list(axes_of(spec.axes)))
        budget = seconds_of(spec.budget)
        self._deadline = None if budget is None else began + budget
        self._flying: dict[tuple[str, tuple[int, ...]], list[list[Record]]] = {}
        self._seen: dict[str, Cell] = {}
        self._skipped: set[str] = set()
        self._unstamped: dict[str, dict[str, Any]] = {}  # cells are stamped when they start, not all before the first
        self._write_again = 0.0

    @property
    def queue(self) -> deque[Job]:
        """Jobs that were not handed out yet."""
        return self.jobs.jobs

    # -- before and after ------------------------------------------------------------------------------------

    def start(self, node: dict[str, Any], cells: Sequence[Cell]) -> None:
        """Notes the study and queues what is missing of it."""
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        self.store.begin(node, cells)
        for cell in cells:
            self._enqueue(cell)
        for cell in cells:
            if cell.id not in self.jobs.open:
                self._inform(cell)
                self._remember(cell)
        if self.search:
            self._ask(len(self.search.parts))  # one of every part: all are checked before any runs
        for callback in self.callbacks:
            callback.on_study_start(self.store, list(self._seen.values()), list(self.queue))

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
            for callback in self.callbacks:
                callback.on_stale(cell, reasons)
        self._seen[cell.id] = cell
        if self.jobs.add(cell, f"{now['method']}-{now['data']}"):
            self._unstamped[cell.id] = now
        else:
            self._skipped.add(cell.id)

    def finish(self) -> Outcome:
        """Writes the tables and tells how it went."""
        self.store.write_csv()
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        outcome = self._outcome()
        for callback in self.callbacks:
            callback.on_study_end(self.store, outcome)
        return outcome

    @contextmanager
    def notifying(self) -> Iterator[None]:
        """However an executor breaks off, the callbacks hear of it: no record stays open."""
        try:
            yield
        except Exception:
            outcome = self._outcome()
            for callback in self.callbacks:
                with suppress(Exception):  # what broke off comes first
                    callback.on_study_end(self.store, outcome)
            raise
        except BaseException:
            for callback in self.callbacks:
                callback.on_abort()
            raise

    def _outcome(self) -> Outcome:
        failures, failed = [], set()
        for cell in self._seen.values():
            for seed in self.spec.seed_list():
                result = self.store.result(cell, seed)
                bad = {Status.FAILED} if cell.role == "trial" else FAILURES
                if result is not None and result["status"] in bad and seed not in self.jobs.open.get(cell.id, ()):
                    failures.append(f"{cell.label}, seed {seed}: {result['error']}")
                    failed.add(cell.id)
        pending = len(self.jobs.open) + (self.search.unasked if self.search else 0)
        skipped = len(self._skipped - failed)
        done = len(self._seen) - len(self.jobs.open) - skipped - len(failed)
        code = 1 if failed else 0
        if pending:
            code = 128 + self.signal if self.signal else 4 if self._late() else 130
        seconds = time.monotonic() - self.began
        return Outcome(done, len(failed), skipped, pending, seconds, code, tuple(failures))

    # -- what executors call ---------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.signal is not None or self._late() or stop_asked(self.store.folder)

    def _late(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        if late and (self._flying or self.queue):
            self.request_stop()
        return late

    def request_stop(self) -> None:
        """Asks all trials, in whatever process, to end after their round."""
        (self.store.folder / STOP_FILE).touch()

    @property
    def exhausted(self) -> bool:
        if self.stopping:
            return True
        left = self.queue or self._flying or self.jobs.waiting
        return not left and (self.search is None or self.search.left == 0)

    def next_job(self) -> Job | None:
        if self.stopping:
            return None
        self._refill()
        if not self.queue:
            return None
        job = self.queue.popleft()
        if prints := self._unstamped.pop(job.cell.id, None):
            self.store.stamp(job.cell, prints)
        self._flying[job.cell.id, job.seeds] = []
        for callback in self.callbacks:
            callback.on_job_start(job.cell, job.seeds)
        return job

    def _refill(self) -> None:
        """Where the queue is empty: trials of the search, else the next batches of a race."""
        while not self.queue:
            if self.search:
                self._ask()
            if self.queue or self._flying or not self.jobs.waiting:
                return
            for cell in self.jobs.release():
                self._tell(cell)

    def _ask(self, jobs: int = 1) -> None:
        """Requests trials of the search until so many jobs are queued; those with results in the store are reported."""
        assert self.search is not None
        while len(self.queue) < jobs and (cells := self.search.request()):
            self.store.add([cell for cell in cells if cell.id not in self._seen])
            for cell in cells:
                self._enqueue(cell)
                if cell.id not in self.jobs.open:
                    self._inform(cell)
            for callback in self.callbacks:
                callback.on_trials_remaining(self.search.unasked)
                callback.on_trials_queued([cell for cell in cells if cell.id in self.jobs.open])

    def report(self, job: Job, rounds: list[list[Record]]) -> bool:
        history = self._flying[job.cell.id, job.seeds]
        for records in rounds:
            history.append(records)
            for callback in self.callbacks:
                callback.on_round_end(job.cell, records)
            if not self.pruner.keep(job.cell, history):
                self._close(job, Status.PRUNED, None)
                return False
        return True

    def complete(self, job: Job, output: JobOutput) -> None:
        self._close(job, Status.DONE, output)

    def warn(self, job: Job, text: str) -> None:
        for callback in self.callbacks:
            callback.on_warning(job.cell, text)

    def fail(self, job: Job, failure: Failure) -> bool:
        """Whether the job will go on from its checkpoint.

        A batch of seeds that fails is taken apart, so that one bad seed does not take the others along.

        A job whose process died goes on from its checkpoint, and is given up after some deaths that won no round. One
        for which memory was not enough goes on with nothing beside it, once.

        Raises:
            EnvironmentProblem: nothing can be written any more.
        """
        if failure.kind == "disk":
            raise no_room(failure.error)
        if os.environ.get("FPL_TUNE_FULL_ERROR"):
            print(failure.trace, file=sys.stderr)
        retries = self.spec.execution.retries
        next_time = job.retry()
        if failure.kind == "died":
            next_time = job.after_crash(len(self._flying[job.cell.id, job.seeds]))
        if failure.kind == "memory" and not job.alone:
            return self._retry(job.to_run_alone())
        if failure.kind == "died" and next_time.attempt <= _DEATHS:
            return self._retry(next_time)
        if len(job.seeds) > 1:
            self._drop(job)
            bad = [s for s in reversed(job.seeds) if s in self.jobs.open[job.cell.id]]
            self.queue.extendleft(Job(job.cell, (s,), job.fingerprint) for s in bad)
        elif failure.kind not in ("diverged", "memory") and next_time.attempt <= retries:
            return self._retry(next_time)
        else:
            self._close(job, Status.DIVERGED if failure.kind == "diverged" else Status.FAILED, None, failure.error)
        return False

    def _retry(self, job: Job) -> bool:
        self._flying.pop((job.cell.id, job.seeds))
        self.queue.appendleft(job)
        return True

    def _close(self, job: Job, status: str, output: JobOutput | None, error: str | None = None) -> None:
        """Stores the results of a job's seeds."""
        rounds = self._flying[job.cell.id, job.seeds]
        for i, seed in enumerate(job.seeds):
            history = [records[i] for records in rounds]
            extra: dict[str, Any] = {}
            if output is not None:
                extra = {
                    "split_hash": output.split_hash[seed],
                    "peak_memory_bytes": output.peak_memory_bytes,
                }
            result = make_result(status, history, error=error, **extra)
            self.store.put(job.cell, seed, history, result, output.prompts.get(seed) if output else None)
            self.jobs.stored(job.cell, seed, result, history)
        self._drop(job)
        if self.jobs.over(job, any(key == job.cell.id for key, _ in self._flying)):
            self._tell(job.cell)
        if (start := time.monotonic()) > self._write_again:
            self.store.write_csv()
            end = time.monotonic()
            self._write_again = end + max(_CSV_SECONDS, (end - start) / _CSV_SHARE)

    def _drop(self, job: Job) -> None:
        self._flying.pop((job.cell.id, job.seeds), None)
        shutil.rmtree(self.store.folder / "cells" / job.cell.id / job.slot, ignore_errors=True)

    def _tell(self, cell: Cell) -> None:
        """A cell is complete: the search and the callbacks hear of it."""
        self._inform(cell)
        for callback in self.callbacks:
            callback.on_cell_end(cell, self._results(cell))

    def _inform(self, cell: Cell) -> None:
        """The search hears of a complete cell."""
        if self.search:
            histories = ((s, r, self.store.history(cell, s)) for s, r in self._results(cell).items())
            self.search.report(cell, {seed: (result, history) for seed, result, history in histories})

    def _results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        found = {seed: self.store.result(cell, seed) for seed in self.spec.seed_list()}
        return {seed: result for seed, result in found.items() if result is not None}
