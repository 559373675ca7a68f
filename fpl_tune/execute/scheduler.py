"""The scheduler of a study: missing seeds become jobs, an executor runs them, and the driver alone writes the store."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from fpl_tune.config import Study
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.files import no_room
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Failure, Job, JobStatus, Key, Output, Report
from fpl_tune.execute.manage import stop_requested
from fpl_tune.execute.remote import RemoteStorage, StorageError
from fpl_tune.search.pruning import HALVING, Decision, Paused, Pruner, resolved, rungs
from fpl_tune.search.search import Search
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Snapshot
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.fingerprints import fingerprints, stale
from fpl_tune.study.lock import STOP_FILE
from fpl_tune.study.results import make_result
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store

P = ParamSpec("P")
_CRASHES = 3  # of a job's process in a row without a new round


class Scheduler:
    """Hands out jobs, stores their results, requests trials of the search."""

    def __init__(
        self, store: Store, spec: Study, search: Search | None, callbacks: Iterable[Callback], began: float
    ) -> None:
        self.store, self.spec, self.search = store, spec, search
        self.callbacks, self.began = list(callbacks), began
        self.jobs: OrderedDict[Key, Job] = OrderedDict()
        """All jobs that are not over, in the order in which they run."""
        self.cells: dict[str, Cell] = {}
        """All cells that are known by now, by id."""
        self.signal: int | None = None
        self.prune = resolved(spec)
        self.pruner = Pruner(self.prune, list(axes_of(spec.axes)), search, spec.seed_list())
        self._skipped: set[str] = set()
        url = spec.execution.checkpoints
        self._storage = RemoteStorage(url) if url else None

    def notify(self, event: Callable[Concatenate[Callback, P], None], *values: P.args, **named: P.kwargs) -> None:
        """Calls a method of all callbacks."""
        for callback in self.callbacks:
            getattr(callback, event.__name__)(*values, **named)

    def jobs_with(self, status: JobStatus) -> list[Job]:
        """The jobs of a status, in their order."""
        return [job for job in self.jobs.values() if job.status is status]

    # -- before and after ------------------------------------------------------------------------------------

    def start(self, cells: Sequence[Cell]) -> None:
        """Stores the study and queues its missing seeds."""
        self.store.begin(self.spec, cells)
        for cell in sorted(cells, key=lambda cell: cell.run.learns):  # zero-shot cells give a result within a second
            self._enqueue(cell)
        for cell in cells:
            if cell.id in self._skipped:
                self._report_to_search(cell)
            if self.prune.rule == HALVING and (rounds := self._first_rounds(cell)):
                waits = any(result["status"] == Status.PRUNED for result in self._results(cell).values())
                self.pruner.restore(cell, rounds, passed=not waits)
        if self.search:
            self._request(len(self.search.parts))  # one of every part: all are checked before any runs
            self.notify(Callback.on_trials_queued, [], self.search.remaining)
        self.notify(Callback.on_study_start, self.store, list(self.cells.values()), self.jobs_with(JobStatus.QUEUED))

    def _first_rounds(self, cell: Cell) -> list[list[Record]]:
        """The stored rounds of a cell by the seeds that run first."""
        histories = (self.store.history(cell, seed) for seed in self.pruner.first_seeds(cell))
        return [list(records) for records in zip(*filter(None, histories), strict=False)]

    def _further_seeds(self, cell: Cell) -> tuple[int, ...]:
        """Seeds of a cell that wait for the result of its first one."""
        first = self.pruner.first_seeds(cell)
        return tuple(seed for seed in self.spec.seed_list() if seed not in first)

    def _enqueue(self, cell: Cell) -> None:
        """Queues the seeds of a cell without a final result; stale results are removed first.

        Seeds with a common checkpoint stay together, even if some are stored already. Checkpoints that no job can use,
        such as those that a kill after the last result left, are removed.
        """
        if cell.id in self.cells:
            return
        prints = fingerprints(cell.run)
        if reasons := stale(self.store, cell, prints):
            for seed in self.store.seeds(cell):
                self.store.forget(cell, seed)
            self.notify(Callback.on_stale, cell, reasons)
        self.cells[cell.id] = cell
        left = set(self.store.missing(cell, self.spec))
        left = left.intersection(self.pruner.first_seeds(cell)) or left
        if not left:
            rounds, waits = self._first_rounds(cell), self.search and self.search.waits_for(cell)
            if waits and self._further_seeds(cell) and len(rounds) == cell.run.rounds and len(self._results(cell)) == 1:
                self._add_seeds(cell, prints, allowed=False)  # until all cells of the rung are known: see `_refill`
            else:
                self._skipped.add(cell.id)
        for slot in sorted(self.store.folder.glob(f"cells/{cell.id}/ckpt-*")):
            meta = next((s.meta for s in checkpoint.usable(slot) if isinstance(s, Snapshot)), {"seeds": []})
            seeds = meta["seeds"]
            job = self._job(cell, seeds, left.intersection(seeds), prints)
            if job.missing and set(seeds) <= set(self.spec.seed_list()) and self.store.folder / job.path == slot:
                self.jobs[job.key] = job
                left -= job.missing
                if job.seeds == self.pruner.first_seeds(cell) and meta["fingerprint"] == job.fingerprint:
                    self.pruner.restore(cell, meta["rounds"], passed=False)
            else:
                shutil.rmtree(slot, ignore_errors=True)
        if left:
            job = self._job(cell, [seed for seed in self.spec.seed_list() if seed in left], left, prints)
            self.jobs[job.key] = job

    def _job(self, cell: Cell, seeds: Sequence[int], missing: set[int], prints: Mapping[str, Any]) -> Job:
        """A job. Seeds that wait for a trial's first one have passed all rungs but the last."""
        job = Job(cell, tuple(seeds), missing, prints)
        if set(seeds) <= set(self._further_seeds(cell)):
            job.rung = cell.run.rounds
        elif cell.candidate:
            job.rungs = rungs(self.prune, cell.run)
        return job

    def _add_seeds(self, cell: Cell, prints: Mapping[str, Any], allowed: bool) -> None:
        """Queues the seeds of a trial that wait for its first one, or pauses them until they are allowed."""
        seeds = self._further_seeds(cell)
        job = self._job(cell, seeds, set(seeds), prints)
        self.jobs[job.key] = job
        if allowed:
            self._queue_first(job)
        else:
            job.status = JobStatus.PAUSED
            if self.search:
                self.search.pause(cell, self._first_rounds(cell))

    def finish(self) -> Outcome:
        """Writes the tables and ends the callbacks."""
        self.store.write_csv()
        self._stop_file.unlink(missing_ok=True)
        outcome = self.outcome()
        self.notify(Callback.on_study_end, self.store, outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Counts the cells by their state now."""
        missing: dict[str, set[int]] = {}
        for job in self.jobs.values():
            missing.setdefault(job.cell.id, set()).update(job.missing)
        failures: dict[str, list[str]] = {}
        for cell in self.cells.values():
            bad = {Status.FAILED} if cell.role == "trial" else FAILURES
            for seed, result in self._results(cell).items():
                if seed not in missing.get(cell.id, ()) and result["status"] in bad:
                    failures.setdefault(cell.id, []).append(f"{cell.label}, seed {seed}: {result['error']}")
        pending = len(missing) + (self.search.remaining if self.search else 0)
        skipped = len(self._skipped - failures.keys())
        done = len(self.cells) - len(missing.keys() | failures.keys()) - skipped
        code = 1 if failures else 0
        if pending:
            code = 128 + self.signal if self.signal else 130
        listed = tuple(text for found in failures.values() for text in found)
        return Outcome(done, len(failures), skipped, pending, time.monotonic() - self.began, code, listed)

    # -- what executors call ---------------------------------------------------------------------------------

    @property
    def _stop_file(self) -> Path:
        return self.store.folder / STOP_FILE

    @property
    def stopping(self) -> bool:
        """The study ends after the running rounds."""
        return self.signal is not None or stop_requested(self.store.folder)

    def request_stop(self) -> None:
        """Requests all trials, in any process, to end after their round."""
        self._stop_file.touch()

    @property
    def exhausted(self) -> bool:
        """No job is left, or the study stops."""
        return self.stopping or not (self.jobs or (self.search and self.search.unfinished))

    def next_job(self) -> Job | None:
        """Hands out the next job; None if none may start now."""
        if self.stopping:
            return None
        self._refill()
        job = next((job for job in self.jobs.values() if job.status is JobStatus.QUEUED), None)
        if job is None:
            return None
        job.status, job.rounds = JobStatus.RUNNING, []
        for seed, result in self._results(job.cell).items() if job.rung else ():
            if result["status"] == Status.PRUNED:  # it waited for room
                history = self.store.history(job.cell, seed)
                self.store.put(job.cell, seed, history, {**result, "status": Status.DONE})
        self.notify(Callback.on_job_start, job.cell, job.seeds)
        return job

    def _refill(self) -> None:
        """Queues the paused jobs that their rung promotes; if none is queued then, further jobs.

        Further jobs are trials of the search, then paused jobs of rungs that no other cell can reach.
        """
        for job in reversed(self._paused(self.pruner.promote(self._waiting_cells()))):
            self._queue_first(job)
        while not self.jobs_with(JobStatus.QUEUED):
            if self.search:
                self._request()
            if self.jobs_with(JobStatus.QUEUED):
                return
            more = self.search is not None and self.search.remaining and self.jobs_with(JobStatus.RUNNING)
            if more or not self.jobs_with(JobStatus.PAUSED) or not self._settle():
                return

    def _settle(self) -> bool:
        """Resumes or prunes the jobs that wait at rungs which nothing else can reach. False: there is no such rung."""
        running = [Paused(job.cell, job.round) for job in self.jobs_with(JobStatus.RUNNING)]
        promoted, pruned = self.pruner.settle(self._waiting_cells(), running)
        for job in self._paused(promoted):
            job.status, job.reached = JobStatus.QUEUED, len(job.rounds)
            self.jobs.move_to_end(job.key)
        for job in self._paused(pruned):
            self._close(job, Status.PRUNED)
        return bool(promoted or pruned)

    def _waiting_cells(self) -> list[Paused]:
        """The cells of paused jobs, each once."""
        found = [Paused(job.cell, job.round) for job in self.jobs_with(JobStatus.PAUSED)]
        return list({(cell.id, number): Paused(cell, number) for cell, number in found}.values())

    def _paused(self, cells: Iterable[Paused]) -> list[Job]:
        """The paused jobs of these cells."""
        paused = self.jobs_with(JobStatus.PAUSED)
        return [job for cell, n in cells for job in paused if job.cell.id == cell.id and job.round == n]

    def _queue_first(self, job: Job) -> None:
        """Queues a job that goes on, before all others."""
        job.status, job.reached = JobStatus.QUEUED, max(job.reached, len(job.rounds))
        self.jobs.move_to_end(job.key, last=False)

    def _request(self, jobs: int = 1) -> None:
        """Requests trials of the search until so many jobs are queued; those with results in the store are reported."""
        assert self.search is not None
        while len(self.jobs_with(JobStatus.QUEUED)) < jobs and (cell := self.search.request()):
            if cell.id not in self.cells:
                self.store.add([cell])
            self._enqueue(cell)
            queued = any(job.cell.id == cell.id for job in self.jobs.values())
            if not queued:
                self._report_to_search(cell)
            self.notify(Callback.on_trials_queued, [cell] if queued else [], self.search.remaining)

    def receive(self, job: Job, report: Report) -> bool:
        """Receives the report of a job's step. Returns whether the job goes on.

        Raises:
            EnvironmentProblem: the disk is full or read-only, a URL fails, or a node cannot run trials.
        """
        for text in report.warnings:
            self.notify(Callback.on_warning, job.cell, text)
        if not self._add_rounds(job, report.rounds):
            return False
        if report.failure is not None:
            self._fail(job, report.failure)
        elif report.output is not None:
            self._close(job, Status.DONE, report.output)
        return not report.last

    def _add_rounds(self, job: Job, rounds: list[list[Record]]) -> bool:
        """Adds records by round to a job's history. False: the pruner stops the job, or pauses it at its rung."""
        for place, records in enumerate(rounds, 1):
            job.rounds.append(records)
            new = len(job.rounds) > job.reached
            if new:
                self.notify(Callback.on_round_end, job.cell, records)
            decision = self.pruner.decide(job.cell, job.rounds, latest=place == len(rounds) and new)
            if decision == Decision.STOP:
                self._close(job, Status.PRUNED)
                return False
            if decision == Decision.PAUSE:
                job.status = JobStatus.PAUSED
                if self.search:
                    self.search.pause(job.cell, job.rounds)
                self.notify(Callback.on_job_pause, job.cell, job.seeds)
                return False
        return True

    def _fail(self, job: Job, failure: Failure) -> None:
        """Retries a failed job, or stores its failure.

        Seeds that were trained together are retried one by one, so that one failing seed does not fail the others.
        After a crash of its process a job resumes from its checkpoint, unless it has crashed repeatedly without a new
        round. After an out-of-memory error it resumes once, alone on its device.
        """
        if failure.kind == "disk":
            raise no_room(failure.error)
        if failure.kind == "environment":
            raise EnvironmentProblem(failure.error)
        if os.environ.get("FPL_TUNE_FULL_ERROR"):
            print(failure.trace, file=sys.stderr)
        crashed = failure.kind == "died"
        job.attempt = 0 if crashed and len(job.rounds) > job.reached else job.attempt + 1
        given_up = job.attempt > {"died": _CRASHES, "error": self.spec.execution.retries}.get(failure.kind, 0)
        if failure.kind == "memory" and not job.alone:
            job.alone = True
        elif len(job.seeds) > 1 and (given_up or not crashed):
            self._drop(job)
            for seed in sorted(job.missing, reverse=True):
                alone = self._job(job.cell, (seed,), {seed}, job.prints)
                self.jobs[alone.key] = alone
                self._queue_first(alone)
            return
        elif given_up:
            status = Status.DIVERGED if failure.kind == "diverged" else Status.FAILED
            self._close(job, status, error=failure.error)
            return
        if not crashed:
            job.rounds = []  # its rounds are heard again
        self._queue_first(job)

    def _close(self, job: Job, status: Status, output: Output | None = None, error: str | None = None) -> None:
        """Stores the results of a job's seeds. Those stored before a kill, which its checkpoint still holds, stay.

        The first seed of a trial counts as pruned while the trial waits for room for its other seeds.
        """
        further: set[int] = set()
        if status is Status.DONE and job.seeds == self.pruner.first_seeds(job.cell):
            further = set(self.store.missing(job.cell, self.spec)).intersection(self._further_seeds(job.cell))
        allowed = not further or self.pruner.allows_seeds(job.cell, job.rounds)
        folder = self.store.folder / job.path
        if output is not None and self._storage:
            self._storage.pull(f"{self.store.name}/{job.path}", folder)
        for i, seed in enumerate(job.seeds):
            if seed in job.missing and (job.rounds or status is not Status.PRUNED):
                split, prompts = output[seed] if output is not None else ("", None)
                history = [records[i] for records in job.rounds]
                kept = status if allowed else Status.PRUNED
                result = make_result(kept, history, error=error, fingerprints=job.prints, split_hash=split)
                self.store.put(job.cell, seed, history, result, folder / prompts if prompts else None)
        self._drop(job)
        if further:
            self.notify(Callback.on_job_pause, job.cell, job.seeds)
            self._add_seeds(job.cell, job.prints, allowed)
        elif all(other.cell.id != job.cell.id for other in self.jobs.values()):
            self._report_to_search(job.cell)
            self.notify(Callback.on_cell_end, job.cell, self._results(job.cell))

    def _drop(self, job: Job) -> None:
        del self.jobs[job.key]
        shutil.rmtree(self.store.folder / job.path, ignore_errors=True)
        if self._storage:
            try:
                self._storage.drop(f"{self.store.name}/{job.path}")
            except StorageError as problem:
                self.notify(Callback.on_warning, job.cell, f"An old checkpoint could not be removed. {problem}")

    def _report_to_search(self, cell: Cell) -> None:
        """Reports a complete cell to the search."""
        if self.search:
            self.search.report(cell, self._finished(cell))

    def _results(self, cell: Cell) -> dict[int, dict[str, Any]]:
        found = {seed: self.store.result(cell, seed) for seed in self.spec.seed_list()}
        return {seed: result for seed, result in found.items() if result is not None}

    def _finished(self, cell: Cell) -> dict[int, tuple[dict[str, Any], list[Record]]]:
        """Result and history of a cell by seed."""
        return {seed: (result, self.store.history(cell, seed)) for seed, result in self._results(cell).items()}
