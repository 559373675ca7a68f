"""The scheduler of a study: missing seeds become jobs, an executor runs them, and the driver alone writes the store."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.execute.callback import Callback, Notifier, Outcome
from fpl_tune.execute.job import STOP_FILE, Job, JobOutput, stop_requested
from fpl_tune.execute.paused import PausedJobs
from fpl_tune.execute.queue import JobQueue
from fpl_tune.execute.resources import seconds_of
from fpl_tune.execute.step import Failure
from fpl_tune.files import no_room
from fpl_tune.search.pruning import Decision, Pruner
from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.fingerprints import fingerprints, stale
from fpl_tune.study.results import make_result
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store
from fpl_tune.trial import Record

_CSV_SECONDS = 5.0  # between rewritings of results.csv while a study runs, at least
_CSV_SHARE = 0.05  # of the driver's time, at most: the table of ten thousand cells takes seconds


class Scheduler:
    """Hands out jobs, stores their results, requests trials of the search."""

    def __init__(
        self, store: Store, spec: StudySpec, search: Search | None, callbacks: Iterable[Callback], began: float
    ) -> None:
        self.store, self.spec, self.search = store, spec, search
        self.notify, self.began = Notifier(callbacks), began
        self.jobs = JobQueue(store, spec)
        self.signal: int | None = None
        self.pruner = Pruner(spec.prune, list(axes_of(spec.axes)))
        budget = seconds_of(spec.budget)
        self._deadline = None if budget is None else began + budget
        self._running: dict[tuple[str, tuple[int, ...]], list[list[Record]]] = {}
        self._seen: dict[str, Cell] = {}
        self._paused = PausedJobs(self.pruner)
        self._skipped: set[str] = set()
        self._unstamped: dict[str, dict[str, Any]] = {}  # cells are stamped when they start, not all before the first
        self._write_again = 0.0

    @property
    def queue(self) -> deque[Job]:
        """Jobs that no executor has received yet."""
        return self.jobs.jobs

    # -- before and after ------------------------------------------------------------------------------------

    def start(self, node: dict[str, Any], cells: Sequence[Cell]) -> None:
        """Stores the study and queues its missing seeds."""
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        self.store.begin(node, cells)
        for cell in sorted(cells, key=lambda cell: cell.run.learns):  # zero-shot cells give a result within a second
            self._enqueue(cell)
        for cell in cells:
            if cell.id not in self.jobs.open:
                self._report_to_search(cell)
                self._paused.remember(cell, [self.store.history(cell, seed) for seed in self._results(cell)])
        if self.search:
            self._request(len(self.search.parts))  # one of every part: all are checked before any runs
        self.notify(Callback.on_study_start, self.store, list(self._seen.values()), list(self.queue))
        for job, rounds in self._paused.restore(list(self.queue), self.jobs.resumable):
            self.queue.remove(job)
            self._pause(job, rounds)

    def _pause(self, job: Job, rounds: list[list[Record]]) -> None:
        """Pauses a job at its rung; its checkpoint stays."""
        self._paused.add(job, rounds)
        self.jobs.pause(job, rounds)
        if self.search:
            self.search.pause(job.cell, sum(float(record["time/seconds"]) for record in rounds[-1]))
        self.notify(Callback.on_job_pause, job.cell, job.seeds)

    def _enqueue(self, cell: Cell) -> None:
        """Queues the seeds of a cell without a final result; stale results are removed first."""
        if cell.id in self._seen:
            return
        now = fingerprints(cell.run)
        if reasons := stale(self.store, cell, now):
            for seed in self.store.seeds(cell):
                self.store.forget(cell, seed)
            self.notify(Callback.on_stale, cell, reasons)
        self._seen[cell.id] = cell
        if self.jobs.add(cell, f"{now['method']}-{now['data']}"):
            self._unstamped[cell.id] = now
        else:
            self._skipped.add(cell.id)

    def finish(self) -> Outcome:
        """Writes the tables and ends the callbacks."""
        self.store.write_csv()
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        outcome = self.outcome()
        self.notify(Callback.on_study_end, self.store, outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Counts the cells by their state now."""
        failures = {cell.id: self._failures(cell) for cell in self._seen.values()}
        failed = {name for name, found in failures.items() if found}
        pending = len(self.jobs.open) + (self.search.remaining if self.search else 0)
        skipped = len(self._skipped - failed)
        done = len(self._seen) - len(self.jobs.open) - skipped - len(failed)
        code = 1 if failed else 0
        if pending:
            code = 128 + self.signal if self.signal else 4 if self._late() else 130
        listed = tuple(text for found in failures.values() for text in found)
        return Outcome(done, len(failed), skipped, pending, time.monotonic() - self.began, code, listed)

    def _failures(self, cell: Cell) -> list[str]:
        bad = {Status.FAILED} if cell.role == "trial" else FAILURES
        left = self.jobs.open.get(cell.id, ())
        results = {seed: result for seed, result in self._results(cell).items() if seed not in left}
        return [f"{cell.label}, seed {s}: {r['error']}" for s, r in results.items() if r["status"] in bad]

    # -- what executors call ---------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self.signal is not None or self._late() or stop_requested(self.store.folder)

    def _late(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        if late and (self._running or self.queue):
            self.request_stop()
        return late

    def request_stop(self) -> None:
        """Requests all trials, in any process, to end after their round."""
        (self.store.folder / STOP_FILE).touch()

    @property
    def exhausted(self) -> bool:
        if self.stopping:
            return True
        left = self.queue or self._running or self._paused or self.jobs.waiting
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
        self._running[job.key] = []
        self.notify(Callback.on_job_start, job.cell, job.seeds)
        return job

    def _refill(self) -> None:
        """Queues the paused jobs that their rung promotes; if the queue is still empty, further jobs.

        Further jobs are, in this order: trials of the search, paused jobs of rungs that no other cell can reach, and
        the next batch of a race.
        """
        self.queue.extendleft(reversed(self._paused.promote()))
        while not self.queue:
            if self.search:
                self._request()
            more = self.search is not None and self.search.remaining
            if not self.queue and self._paused and not (more and self._running) and self._settle():
                continue
            if self.queue or self._running or not self.jobs.waiting:
                return
            for cell in self.jobs.release():
                self._complete_cell(cell)

    def _settle(self) -> bool:
        """Resumes or prunes the jobs that wait at rungs which nothing else can reach. False: there is no such rung."""
        running = [(self._seen[key], len(rounds)) for (key, _), rounds in self._running.items()]
        promoted, pruned = self._paused.settle(running)
        self.queue.extend(promoted)
        for job, rounds in pruned:
            self._running[job.key] = rounds
            self._close(job, Status.PRUNED, None)
        return bool(promoted or pruned)

    def _request(self, jobs: int = 1) -> None:
        """Requests trials of the search until so many jobs are queued; those with results in the store are reported."""
        assert self.search is not None
        while len(self.queue) < jobs and (cells := self.search.request()):
            self.store.add([cell for cell in cells if cell.id not in self._seen])
            for cell in cells:
                self._enqueue(cell)
                if cell.id not in self.jobs.open:
                    self._report_to_search(cell)
            self.notify(Callback.on_trials_remaining, self.search.remaining)
            self.notify(Callback.on_trials_queued, [cell for cell in cells if cell.id in self.jobs.open])

    def report(self, job: Job, rounds: list[list[Record]]) -> bool:
        """Receives records by round, one per seed, none twice. False: the job is to stop."""
        history = self._running[job.key]
        known = self._paused.reported(job)
        for place, records in enumerate(rounds, 1):
            history.append(records)
            if len(history) > known:
                self.notify(Callback.on_round_end, job.cell, records)
            decision = self.pruner.decide(job.cell, history, latest=place == len(rounds) and len(history) > known)
            if decision == Decision.STOP:
                self._close(job, Status.PRUNED, None)
                return False
            if decision == Decision.PAUSE:
                self._pause(job, self._running.pop(job.key))
                return False
        return True

    def complete(self, job: Job, output: JobOutput) -> None:
        self._close(job, Status.DONE, output)

    def warn(self, job: Job, text: str) -> None:
        self.notify(Callback.on_warning, job.cell, text)

    def fail(self, job: Job, failure: Failure) -> bool:
        """Retries a failed job, or stores its failure.

        Seeds that were trained together are retried one by one, so that one failing seed does not fail the others.
        After a crash of its process a job resumes from its checkpoint, unless it has crashed repeatedly without a new
        round. After an out-of-memory error it resumes once, alone on its device.

        Returns:
            Whether the job will resume from its checkpoint.

        Raises:
            EnvironmentProblem: the disk is full or read-only.
        """
        if failure.kind == "disk":
            raise no_room(failure.error)
        if os.environ.get("FPL_TUNE_FULL_ERROR"):
            print(failure.trace, file=sys.stderr)
        action = self.jobs.retry(job, failure, len(self._running[job.key]))
        if action == "give up":
            self._close(job, Status.DIVERGED if failure.kind == "diverged" else Status.FAILED, None, failure.error)
        elif action == "split":
            self._drop(job)
        else:
            self._running.pop(job.key)
        return action == "resume"

    def _close(self, job: Job, status: str, output: JobOutput | None, error: str | None = None) -> None:
        """Stores the results of a job's seeds. Those stored before a kill, which its checkpoint still holds, stay."""
        rounds, missing = self._running[job.key], set(self.jobs.open[job.cell.id])
        for i, seed in enumerate(job.seeds):
            if seed not in missing:
                continue
            history = [records[i] for records in rounds]
            extra: dict[str, Any] = {}
            if output is not None:
                extra = {"split_hash": output.split_hash[seed], "peak_memory_bytes": output.peak_memory_bytes}
            result = make_result(status, history, error=error, **extra)
            self.store.put(job.cell, seed, history, result, output.prompts.get(seed) if output else None)
            self.jobs.stored(job.cell, seed, result, history)
        self._drop(job)
        if self.jobs.over(job, self._runs(job.cell)):
            self._complete_cell(job.cell)
        if (start := time.monotonic()) > self._write_again:
            self.store.write_csv()
            end = time.monotonic()
            self._write_again = end + max(_CSV_SECONDS, (end - start) / _CSV_SHARE)

    def _runs(self, cell: Cell) -> bool:
        """Whether a job of the cell is running or paused."""
        return any(key == cell.id for key, _ in self._running) or self._paused.holds(cell)

    def _drop(self, job: Job) -> None:
        self._running.pop(job.key, None)
        shutil.rmtree(self.store.folder / job.path, ignore_errors=True)

    def _complete_cell(self, cell: Cell) -> None:
        self._report_to_search(cell)
        self.notify(Callback.on_cell_end, cell, self._results(cell))

    def _report_to_search(self, cell: Cell) -> None:
        """Reports a complete cell to the search."""
        if self.search:
            results = self._results(cell).items()
            self.search.report(cell, {seed: (result, self.store.history(cell, seed)) for seed, result in results})

    def _results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        found = {seed: self.store.result(cell, seed) for seed in self.spec.seed_list()}
        return {seed: result for seed, result in found.items() if result is not None}
