"""The scheduler of a study: missing seeds become jobs, an executor runs them, and the driver alone writes the store."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec

from fpl_tune.config import StudySpec
from fpl_tune.core.files import no_room
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import STOP_FILE, Failure, Job, JobOutput, Report, stop_requested
from fpl_tune.execute.queue import JobQueue
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.search.pruning import Decision, Paused, Pruner
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.fingerprints import fingerprints, stale
from fpl_tune.study.results import make_result
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store

P = ParamSpec("P")
Rounds = list[list[Record]]
"""A job's rounds so far, one record per seed in each."""
Key = tuple[str, tuple[int, ...]]
"""Cell id and seeds of a job."""


class Scheduler:
    """Hands out jobs, stores their results, requests trials of the search."""

    def __init__(
        self, store: Store, spec: StudySpec, search: Search | None, callbacks: Iterable[Callback], began: float
    ) -> None:
        self.store, self.spec, self.search = store, spec, search
        self.callbacks, self.began = list(callbacks), began
        self.queue = JobQueue(store, spec)
        """Jobs that no executor has received yet."""
        self.signal: int | None = None
        self.pruner = Pruner(spec.prune, list(axes_of(spec.axes)), search)
        self._running: dict[Key, Rounds] = {}
        self._paused: dict[Key, tuple[Job, Rounds]] = {}
        """Jobs that wait at a rung with a checkpoint; the pruner decides which resume."""
        self._seen: dict[str, Cell] = {}
        self._skipped: set[str] = set()
        self._unstamped: dict[str, dict[str, Any]] = {}  # cells are stamped when they start, not all before the first
        self._write_again = 0.0
        url = spec.execution.checkpoints
        self._storage = RemoteStorage(url) if url else None
        self._stop_sent = False

    def notify(self, event: Callable[Concatenate[Callback, P], None], *values: P.args, **named: P.kwargs) -> None:
        """Calls a method of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, event.__name__)(*values, **named)

    # -- before and after ------------------------------------------------------------------------------------

    def start(self, node: dict[str, Any], cells: Sequence[Cell]) -> None:
        """Stores the study and queues its missing seeds."""
        self._remove_stop_file()
        self.store.begin(node, cells)
        for cell in sorted(cells, key=lambda cell: cell.run.learns):  # zero-shot cells give a result within a second
            self._enqueue(cell)
        for cell in cells:
            if cell.id not in self.queue.open:
                self._report_to_search(cell)
                self._report_to_pruner(cell)
        if self.search:
            self._request(len(self.search.parts))  # one of every part: all are checked before any runs
        self.notify(Callback.on_study_start, self.store, list(self._seen.values()), list(self.queue))

    def _report_to_pruner(self, cell: Cell) -> None:
        """Shows the pruner what a finished cell reached."""
        if self.spec.prune.rule:
            histories = [self.store.history(cell, seed) for seed in self._results(cell)]
            rounds = [list(records) for records in zip(*histories, strict=False)]
            for number in range(1, len(rounds) + 1):
                self.pruner.decide(cell, rounds[:number], latest=number == len(rounds))

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
        if self.queue.add(cell, f"{now['method']}-{now['data']}"):
            self._unstamped[cell.id] = now
        else:
            self._skipped.add(cell.id)

    def finish(self) -> Outcome:
        """Writes the tables and ends the callbacks."""
        self.store.write_csv()
        self._remove_stop_file()
        outcome = self.outcome()
        self.notify(Callback.on_study_end, self.store, outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Counts the cells by their state now."""
        failures = {cell.id: self._failures(cell) for cell in self._seen.values()}
        failed = {name for name, found in failures.items() if found}
        pending = len(self.queue.open) + (self.search.remaining if self.search else 0)
        skipped = len(self._skipped - failed)
        done = len(self._seen) - len(self.queue.open) - skipped - len(failed)
        code = 1 if failed else 0
        if pending:
            code = 128 + self.signal if self.signal else 130
        listed = tuple(text for found in failures.values() for text in found)
        return Outcome(done, len(failed), skipped, pending, time.monotonic() - self.began, code, listed)

    def _failures(self, cell: Cell) -> list[str]:
        bad = {Status.FAILED} if cell.role == "trial" else FAILURES
        left = self.queue.open.get(cell.id, ())
        results = {seed: result for seed, result in self._results(cell).items() if seed not in left}
        return [f"{cell.label}, seed {s}: {r['error']}" for s, r in results.items() if r["status"] in bad]

    # -- what executors call ---------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """The study ends after the running rounds. Nodes that do not share its folder get the stop file as well."""
        found = self.signal is not None or stop_requested(self.store.folder)
        if found and self._storage and not self._stop_sent:
            self._storage.write(f"{self.store.name}/{STOP_FILE}", "")
            self._stop_sent = True
        return found

    def _remove_stop_file(self) -> None:
        (self.store.folder / STOP_FILE).unlink(missing_ok=True)
        if self._storage:
            self._storage.drop(f"{self.store.name}/{STOP_FILE}")

    def request_stop(self) -> None:
        """Requests all trials, in any process, to end after their round."""
        (self.store.folder / STOP_FILE).touch()

    @property
    def exhausted(self) -> bool:
        if self.stopping:
            return True
        left = self.queue or self._running or self._paused
        return not left and (self.search is None or self.search.unfinished == 0)

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

        Further jobs are trials of the search, then paused jobs of rungs that no other cell can reach.
        """
        promoted = self._resumed(self.pruner.promote(self._waiting_cells()))
        self.queue.extendleft(job for job, _ in reversed(promoted))
        while not self.queue:
            if self.search:
                self._request()
            more = self.search is not None and self.search.remaining
            if self.queue or not self._paused or (more and self._running) or not self._settle():
                return

    def _settle(self) -> bool:
        """Resumes or prunes the jobs that wait at rungs which nothing else can reach. False: there is no such rung."""
        running = [Paused(self._seen[key], len(rounds)) for (key, _), rounds in self._running.items()]
        promoted, pruned = self.pruner.settle(self._waiting_cells(), running)
        self.queue.extend(job for job, _ in self._resumed(promoted))
        for job, rounds in self._resumed(pruned):
            self._running[job.key] = rounds
            self._close(job, Status.PRUNED)
        return bool(promoted or pruned)

    def _waiting_cells(self) -> list[Paused]:
        """The cells of paused jobs, each once."""
        found = {(job.cell.id, len(rounds)): Paused(job.cell, len(rounds)) for job, rounds in self._paused.values()}
        return list(found.values())

    def _resumed(self, cells: Iterable[Paused]) -> list[tuple[Job, Rounds]]:
        """Removes all jobs of these cells from the paused ones."""
        found: list[tuple[Job, Rounds]] = []
        for cell, number in cells:
            for key, (job, rounds) in list(self._paused.items()):
                if job.cell.id == cell.id and len(rounds) == number:
                    del self._paused[key]
                    found.append((replace(job, reached=number), rounds))
        return found

    def _request(self, jobs: int = 1) -> None:
        """Requests trials of the search until so many jobs are queued; those with results in the store are reported."""
        assert self.search is not None
        while len(self.queue) < jobs and (cells := self.search.request()):
            self.store.add([cell for cell in cells if cell.id not in self._seen])
            for cell in cells:
                self._enqueue(cell)
                if cell.id not in self.queue.open:
                    self._report_to_search(cell)
            self.notify(Callback.on_trials_remaining, self.search.remaining)
            self.notify(Callback.on_trials_queued, [cell for cell in cells if cell.id in self.queue.open])

    def receive(self, job: Job, report: Report) -> bool:
        """Receives the report of a job's step. Returns whether the job goes on.

        Raises:
            EnvironmentProblem: the disk is full or read-only.
        """
        for text in report.warnings:
            self.warn(job, text)
        if not self._add_rounds(job, report.rounds):
            return False
        if report.failure is not None:
            self._fail(job, report.failure)
        elif report.output is not None:
            self._close(job, Status.DONE, report.output)
        return not report.last

    def _add_rounds(self, job: Job, rounds: list[list[Record]]) -> bool:
        """Adds records by round to a job's history. False: the pruner stops the job, or pauses it at its rung."""
        history = self._running[job.key]
        for place, records in enumerate(rounds, 1):
            history.append(records)
            new = len(history) > job.reached
            if new:
                self.notify(Callback.on_round_end, job.cell, records)
            decision = self.pruner.decide(job.cell, history, latest=place == len(rounds) and new)
            if decision == Decision.STOP:
                self._close(job, Status.PRUNED)
                return False
            if decision == Decision.PAUSE:
                self._paused[job.key] = job, self._running.pop(job.key)
                if self.search:
                    self.search.pause(job.cell, history)
                self.notify(Callback.on_job_pause, job.cell, job.seeds)
                return False
        return True

    def warn(self, job: Job, text: str) -> None:
        self.notify(Callback.on_warning, job.cell, text)

    def _fail(self, job: Job, failure: Failure) -> None:
        """Retries a failed job, or stores its failure.

        Seeds that were trained together are retried one by one, so that one failing seed does not fail the others.
        After a crash of its process a job resumes from its checkpoint, unless it has crashed repeatedly without a new
        round. After an out-of-memory error it resumes once, alone on its device.
        """
        if failure.kind == "disk":
            raise no_room(failure.error)
        if os.environ.get("FPL_TUNE_FULL_ERROR"):
            print(failure.trace, file=sys.stderr)
        action = self.queue.retry(job, failure, len(self._running[job.key]))
        if action == "give up":
            self._close(job, Status.DIVERGED if failure.kind == "diverged" else Status.FAILED, error=failure.error)
        elif action == "split":
            self._drop(job)
        else:
            del self._running[job.key]

    def _close(self, job: Job, status: Status, output: JobOutput | None = None, error: str | None = None) -> None:
        """Stores the results of a job's seeds. Those stored before a kill, which its checkpoint still holds, stay."""
        rounds, missing = self._running[job.key], set(self.queue.open[job.cell.id])
        folder = self.store.folder / job.path
        if output is not None and self._storage and not all((folder / n).exists() for n in output.prompts.values()):
            self._storage.pull(f"{self.store.name}/{job.path}", folder)
        for i, seed in enumerate(job.seeds):
            if seed not in missing:
                continue
            history = [records[i] for records in rounds]
            extra: dict[str, Any] = {}
            prompts = None
            if output is not None:
                extra = {"split_hash": output.split_hash[seed], "peak_memory_bytes": output.peak_memory_bytes}
                prompts = folder / output.prompts[seed] if seed in output.prompts else None
            result = make_result(status, history, error=error, **extra)
            self.store.put(job.cell, seed, history, result, prompts)
            self.queue.stored(job.cell, seed)
        self._drop(job)
        if self.queue.over(job):
            self._complete_cell(job.cell)
        if (start := time.monotonic()) > self._write_again:
            self.store.write_csv()
            end = time.monotonic()  # the table of ten thousand cells takes seconds
            self._write_again = end + max(5.0, 20 * (end - start))

    def _drop(self, job: Job) -> None:
        self._running.pop(job.key, None)
        shutil.rmtree(self.store.folder / job.path, ignore_errors=True)
        if self._storage:
            self._storage.drop(f"{self.store.name}/{job.path}")

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
