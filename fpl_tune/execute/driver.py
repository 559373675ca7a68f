"""The driver of a study: decides, writes, hands out, receives. Nothing else writes the store.

Executors call `next_leg` and `receive`. Both take the same step: `decide.next_action` computes what follows from the
files on disk. So a start after a kill, a start after an edit and the next step of a running study are the same.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, Notice
from fpl_tune.core.files import no_room
from fpl_tune.core.formatting import some
from fpl_tune.core.metrics import metric, of_method
from fpl_tune.execute.asked import Asked
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.decide import (
    Action,
    Ask,
    Confirm,
    Done,
    Pass,
    Start,
    next_action,
    remaining,
    rows_of,
    suggested,
    unconfirmed,
)
from fpl_tune.execute.job import Failure, Job, Output, Report
from fpl_tune.execute.manage import stop_requested
from fpl_tune.execute.progress import ProgressMeter
from fpl_tune.execute.remote import RemoteStorage, StorageError
from fpl_tune.findings.choice import objectives_of, sign
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.lock import STOP_FILE
from fpl_tune.study.results import FAILURES, Status, make_result
from fpl_tune.study.schema import Effective
from fpl_tune.study.standing import CellState, Leg, Row
from fpl_tune.study.store import Store

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch

P = ParamSpec("P")
_CRASHES = 3  # of a job's process in a row without a new round
_PROGRESS_EVERY = 0.2  # seconds between two values of the progress while rounds end, at least
_ENDED = (CellState.DONE, CellState.DIVERGED, CellState.FAILED)
_log = logging.getLogger(__name__)


class Driver:
    """Runs a study: hands out legs, stores their results, asks its searches for trials.

    Args:
        store: the study's store, which the caller has locked.
        asked: what the study asks for, to which the driver adds what its searches suggest.
        callbacks: receive its events. An exception in one is a warning, and the study goes on.
        began: when the command started, in seconds of the monotonic clock.
    """

    def __init__(self, store: Store, asked: Asked, callbacks: Iterable[Callback], began: float) -> None:
        spec = asked.study.spec
        self.store, self.spec, self.asked, self.table, self.searches = store, spec, asked, asked.table, asked.searches
        self.callbacks, self.began = list(callbacks), began
        self.signal: int | None = None
        self.paces: dict[str, float] = {}
        """Planned seconds of a round of one seed, by the cell's id."""
        self.order: dict[str, float] = {}
        """Sort keys of cells that do not start in the study's order, by id."""
        self._meter, self._reported_at = ProgressMeter(self.table, self.searches, spec, self.paces), -math.inf
        self._running: dict[str, Leg] = {}
        self._jobs: dict[str, Job] = {}  # the last one of each cell, which counts its attempts
        self._singly: dict[str, set[int]] = {}  # seeds that failed together, and are tried one by one, by cell
        self._retried: set[str] = set()  # ids of those cells whose seeds raised an error: one retry is already used
        self._ran: set[str] = set()
        self._skipped: set[str] = set()
        self._action: Action | None = None
        self._prints, self._exhausted = asked.prints, asked.exhausted
        self._warned: set[tuple[str, str]] = set()
        url = spec.execution.checkpoints
        self._storage = RemoteStorage(url) if url else None

    def notify(self, event: Callable[Concatenate[Callback, P], None], *values: P.args, **named: P.kwargs) -> None:
        """Calls a method of all callbacks."""
        for callback in self.callbacks:
            try:
                getattr(callback, event.__name__)(*values, **named)
            except Exception as problem:
                where = type(callback).__name__, event.__name__
                if where not in self._warned:
                    self._warned.add(where)
                    _log.warning("%s.%s failed, and the study goes on: %s: %s", *where, type(problem).__name__, problem)
                    _log.debug("its traceback", exc_info=problem)

    def _report_progress(self, *, every: float = 0.0) -> None:
        """Reports the progress to the callbacks, unless that was done less than `every` seconds ago."""
        if (now := time.monotonic()) - self._reported_at >= every:
            jobs = [self._jobs[key] for key in self._running]
            progress = self._meter.measure(jobs, self._exhausted, ending=self.stopping)
            self._reported_at = now
            self.notify(Callback.on_progress, progress)

    # -- the table -------------------------------------------------------------------------------------------

    def _set(self, row: Row) -> None:
        self.table.rows[row.cell.id] = row
        self._action = None

    def _under_way(self, key: str, leg: Leg | None) -> None:
        """Records the running leg of a cell; None: it has ended."""
        if leg is None:
            del self._running[key]
        else:
            self._running[key] = leg
        self._action = None

    def queued(self) -> list[Job]:
        """Jobs of the legs that are left, those of paused trials last."""
        rows = [sorted(self.table.having(state), key=self._place) for state in (CellState.QUEUED, CellState.PAUSED)]
        return [self._job(row, row.standing.left[0]) for some in rows for row in some]

    @property
    def remaining(self) -> int:
        """Number of trials that are still to be suggested."""
        return sum(remaining(self.table, search) for search in self.searches if str(search) not in self._exhausted)

    def _place(self, row: Row) -> tuple[Any, ...]:
        """Sort key of queued cells: quick ones first, such as zero-shot CLIP, then those with the most rounds, the best
        of them in the first objective first, then those that were running when the process ended."""
        names, first = self.table.design.objectives, row.runs.get(self.table.design.seeds[0])
        rounds = max((run.rounds for run in row.runs.values()), default=0)
        values = row.objectives_after(first.rounds) if first and row.cell.role == "trial" else None
        values = values or [0.0] * len(names)
        rank = [-sign(name) * value for name, value in zip(names, values, strict=True)]
        return row.cell.run.learns, -rounds, rank, not row.together, self.order.get(row.cell.id, 0), row.cell.number

    # -- before and after ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Stores the study and its cells, and removes the results of seeds that run again."""
        rows, design = self.table.rows, self.table.design
        named = [name for name in {self.spec.report.metric, *objectives_of(self.spec)} if of_method(name)]
        effective = Effective(
            halving=design.reduction is not None,
            confirm=[*design.confirm],
            spaces=self.asked.spaces,
            metrics=[metric(name) for name in sorted(named)],
        )
        self.store.begin(self.spec, [row.cell for row in rows.values()], self._prints, effective)
        for cell, seed in self.asked.again:  # before anything runs, so that a kill does not lose the request
            self.store.forget(cell, seed)
        for row in rows.values():
            self._drop_checkpoints(row, row.together)
        states = {key: row.standing.state for key, row in rows.items()}
        over = {*_ENDED, CellState.PAUSED} if self.asked.complete else {*_ENDED}
        self._skipped = {key for key, state in states.items() if state in over}
        for key, row in rows.items():
            if row.stale and states[key] is CellState.QUEUED:
                self.notify(Callback.on_stale, row.cell, row.stale)
        for search in self.searches:
            if not rows_of(self.table, search):
                search.warn()
        self._look(silent=True)
        if isinstance(action := self._pass_on(), Ask):  # so that the study starts with something to run
            self._ask(action.search)
        cells = [row.cell for row in self.table.rows.values()]
        self.notify(Callback.on_study_start, self.store, cells, self.queued())
        self._report_progress()

    def finish(self) -> Outcome:
        """Stores how the study has ended, and ends the callbacks."""
        complete = isinstance(self._next(), Done)
        self.store.end(complete=complete, exhausted=self._exhausted)
        self._report_progress()
        self._stop_file.unlink(missing_ok=True)
        pruned = complete and (self._ran or not self.asked.complete)
        for row in self.table.having(CellState.PAUSED) if pruned else ():
            self.notify(Callback.on_cell_end, replace(row, complete=True))
        outcome = self.outcome()
        self.notify(Callback.on_study_end, self.store, outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Counts the cells by their present state."""
        failed, by_error, over = set[str](), dict[str, list[str]](), [*_ENDED]
        ended = isinstance(self._next(), Done)
        over += [CellState.PAUSED] if ended else []
        states = {key: row.standing.state for key, row in self.table.rows.items()}
        for key, row in self.table.rows.items():
            bad = {Status.FAILED} if row.cell.role == "trial" else FAILURES
            for seed in row.wanted if states[key] in over else ():
                if seed not in row.runs or row.runs[seed].status not in bad:
                    continue
                failed.add(key)
                by_error.setdefault(str(row.runs[seed].error), []).append(f"{row.cell.label}, seed {seed}")
        failures = [f"{some(names, 3)}: {error}" for error, names in by_error.items()]
        empty = [search.name for search in self.searches if ended and not rows_of(self.table, search)]
        failures += [f"{name}: none of its suggestions can run" for name in empty]
        left = {key for key, state in states.items() if state not in over}
        skipped = self._skipped - self._ran - failed - left
        done = len(states) - len(left | failed | skipped)
        ahead = 0 if ended else len(unconfirmed(self.table, self.searches))
        pending, code = len(left) + self.remaining + ahead, 1 if failures else 0
        if pending:
            code = 128 + self.signal if self.signal else 130
        taken = time.monotonic() - self.began
        return Outcome(done, len(failed), len(skipped), pending, taken, code, tuple(failures))

    # -- what executors call ---------------------------------------------------------------------------------

    @cached_property
    def _stop_file(self) -> Path:
        return self.store.folder / STOP_FILE

    @property
    def stopping(self) -> bool:
        """True if the study ends after the running rounds."""
        return self.signal is not None or stop_requested(self.store.folder)

    def request_stop(self) -> None:
        """Asks all running jobs, in any process, to stop after the current round."""
        self._stop_file.touch()

    @property
    def over(self) -> bool:
        """True if nothing is queued or running, or the study is stopping."""
        return self.stopping or isinstance(self._next(), Done)

    def next_leg(self) -> Job | None:
        """Hands out the next leg; None if none can start now."""
        while not self.stopping:
            match self._pass_on():
                case Ask(search):
                    self._ask(search)
                case Start(row, leg):
                    return self._hand_out(row, leg)
                case _:
                    return None
        return None

    def receive(self, job: Job, report: Report) -> bool:
        """Receives the report of a job's step. Returns True if the job continues.

        Raises:
            EnvironmentProblem: the disk is full or read-only, a URL fails, or a node cannot run trials.
        """
        for text in report.warnings:
            self.notify(Callback.on_warning, job.cell, text)
        if report.rounds and not report.resumed:
            self._meter.ran(job, report.rounds)
        for records in report.rounds:
            if not self._add_round(job, records):
                return False
        if report.failure is not None:
            self._fail(job, report.failure)
        elif report.output is not None:
            self._end_leg(job, Status.DONE, report.output)
        self._look()
        return not report.last

    # -- decide ----------------------------------------------------------------------------------------------

    def _next(self) -> Action:
        """The next action; computed again only once the table has changed."""
        if self._action is None:
            self._action = next_action(self.table, self.searches, self._running, self._exhausted, self._place)
        return self._action

    def _pass_on(self) -> Action:
        """Lets trials pass their rungs, confirms searches, and returns the action that follows."""
        while True:
            match action := self._next():
                case Pass(rows):
                    for row in rows:
                        self._mark(row, passed=row.passed | {row.standing.rung})
                case Confirm(cells):
                    self._add(cells)
                case _:
                    return action

    def _add(self, cells: Sequence[Cell]) -> None:
        """Adds cells of a search to the study, with their stored results, and stores them."""
        for row in self.asked.add(cells):
            self.store.add(row.cell, self._prints[row.cell.id])
        self._action = None

    def _ask(self, search: CellSearch) -> None:
        """Asks a search for a trial, and stores it."""
        from fpl_tune.search.ask import ask  # with Optuna

        try:
            if (cell := ask(search, self.table.design, suggested(self.table, search))) is not None:
                self._add([cell])
                return
        except ConfigError as problem:
            warnings.warn(f"{search.name}: {problem}", Notice, stacklevel=2)
        self._exhausted.add(str(search))
        self._action = None

    def _look(self, *, silent: bool = False) -> None:
        """Looks at the comparisons once nothing is left: cells of undecided ones get the seeds of the next look."""
        if not self.table.design.looks or not isinstance(self._next(), Done):
            return
        from fpl_tune.findings import comparisons, findings  # imports pandas, which other studies do not need here

        if (look := comparisons.look(findings.Findings(self.spec, self.table))) is None:
            return
        for row in map(self.table.rows.__getitem__, look.goes_on):
            self._mark(row, passed=row.passed | {look.further[-1]})
        if not silent:
            self._report_progress()
            self.notify(Callback.on_look, look, self.queued())

    # -- write -----------------------------------------------------------------------------------------------

    def _mark(self, row: Row, **changes: Any) -> Row:
        """Changes the marks of a cell."""
        marked = replace(row, **changes)
        self.store.put_marks(marked, self._prints[row.cell.id])
        self._set(marked)
        return marked

    def _put(self, job: Job, status: Status, output: Output | None = None, error: str | None = None) -> None:
        """Stores the results of a job's seeds, except those that had completed before a kill."""
        folder, row = self.store.folder / job.path, self.table.rows[job.cell.id]
        if output is not None and self._storage:
            self._storage.pull(f"{self.store.name}/{job.path}", folder)
        runs = dict(row.runs)
        for i, seed in enumerate(job.seeds):
            if seed in runs and runs[seed].status == Status.DONE:
                continue
            split, prompts = output[seed] if output is not None else ("", None)
            history = [records[i] for records in job.rounds]
            run = make_result(status, history, error=error, fingerprints=job.prints, split_hash=split)
            self.store.put(job.cell, seed, run, folder / prompts if prompts else None)
            runs[seed] = replace(run, records=partial(self.store.records, job.cell, seed))
        self._set(replace(row, runs=runs))

    def _drop_checkpoints(self, row: Row, *uploaded: tuple[int, ...]) -> None:
        """Removes checkpoints that no leg of a cell needs any more; `uploaded` are seeds that may have one at a URL."""
        left = row.standing.left
        groups = [leg.seeds for leg in left]
        open_ = {s for s in row.together if s not in row.runs or not row.runs[s].ended(row.cell.rounds)}
        if open_ - self._singly.get(row.cell.id, set()):  # also where the study does not ask for them any more
            groups.append(row.together)
        needed = {Job(row.cell, seeds).path for seeds in groups if seeds}
        for slot in (self.store.folder / "cells" / row.cell.id).glob("ckpt-*"):
            if f"cells/{row.cell.id}/{slot.name}" not in needed:
                shutil.rmtree(slot, ignore_errors=True)
        if self._storage is None:
            return
        for path in {Job(row.cell, seeds).path for seeds in uploaded if seeds} - needed:
            try:
                self._storage.drop(f"{self.store.name}/{path}")
            except StorageError as problem:
                self.notify(Callback.on_warning, row.cell, f"An old checkpoint could not be removed. {problem}")

    # -- hand out --------------------------------------------------------------------------------------------

    def _job(self, row: Row, leg: Leg) -> Job:
        """The job of a leg: its seeds together, unless they failed together, or some share a checkpoint with others."""
        key, seeds = row.cell.id, leg.seeds
        if alone := [seed for seed in seeds if seed in self._singly.get(key, ())]:
            seeds = (alone[0],)
        elif row.together != seeds and {*row.together} & {*seeds} and self._has_checkpoint(row):
            seeds = row.together
        job = self._jobs.get(key)
        if job is None or job.seeds != seeds:
            job = Job(row.cell, seeds, self._prints[key], attempt=int(key in self._retried))
        left = row.standing.left
        job.cell, job.rungs = row.cell, tuple(each.rounds for each in left if each.seeds == seeds and each.rung)
        job.rungs = tuple(rounds for rounds in job.rungs if rounds < row.cell.rounds)
        return job

    def _has_checkpoint(self, row: Row) -> bool:
        """True if the seeds that were started together last have a checkpoint."""
        path = Job(row.cell, row.together).path
        if self._storage is not None:
            return self._storage.holds(f"{self.store.name}/{path}")
        return (self.store.folder / path).is_dir()

    def _hand_out(self, row: Row, leg: Leg) -> Job:
        key = row.cell.id
        job = self._jobs[key] = self._job(row, leg)
        job.rounds = []
        self._mark(row, together=job.seeds)
        self._under_way(key, leg._replace(seeds=job.seeds))
        if not self._ran:
            data, clip = job.cell.run.data.name, job.cell.run.clip.name
            self.notify(Callback.on_setup, f"loading {data} and {clip} (the first time, images are encoded)")
        self._ran.add(key)
        self.notify(Callback.on_job_start, job.cell, job.seeds)
        return job

    # -- receive ---------------------------------------------------------------------------------------------

    def _add_round(self, job: Job, records: list[Record]) -> bool:
        """Adds the records of a round. Returns False if the job ends here, at a rung."""
        job.rounds.append(records)
        number = len(job.rounds)
        if number > job.reached:
            self.notify(Callback.on_round_end, job.cell, records)
            self._report_progress(every=_PROGRESS_EVERY)
        leg = self._running[job.cell.id]
        if number < job.cell.rounds and number == leg.rounds:
            return self._end_leg(job, Status.PARTIAL)
        return True

    def _end_leg(self, job: Job, status: Status, output: Output | None = None, error: str | None = None) -> bool:
        """Stores the results of a leg that has ended. Returns True if the job continues with the next one."""
        key = job.cell.id
        self._put(job, status, output, error)
        self._under_way(key, None)
        self._pass_on()
        row = self.table.rows[key]
        now = row.standing
        if status == Status.PARTIAL and now.state is CellState.QUEUED and now.left[0].seeds == job.seeds:
            self._under_way(key, now.left[0])
            return True
        job.reached = max(job.reached, len(job.rounds))
        self._drop_checkpoints(row, job.seeds)
        if now.state in _ENDED:
            self._report_progress()
            self.notify(Callback.on_cell_end, row)
        else:
            self.notify(Callback.on_job_pause, row.cell, job.seeds)
        return False

    def _fail(self, job: Job, failure: Failure) -> None:
        """Retries a failed leg, or stores its failure.

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
        if failure.kind == "rejected":  # it would be again
            self._reject(job, failure.error)
            return
        key, crashed, retries = job.cell.id, failure.kind == "died", self.spec.execution.retries
        job.attempt += not crashed
        job.crashes = 0 if not crashed or len(job.rounds) > job.reached else job.crashes + 1
        given_up = job.crashes > _CRASHES if crashed else job.attempt > (retries if failure.kind == "error" else 0)
        if failure.kind == "memory" and not job.alone:
            job.alone = True
        elif len(job.seeds) > 1 and (given_up if crashed else failure.kind != "error" or retries):
            self._singly.setdefault(key, set()).update(job.seeds)
            self._retried |= {key} if failure.kind == "error" else set()
        elif given_up:
            self._end_leg(job, Status.DIVERGED if failure.kind == "diverged" else Status.FAILED, error=failure.error)
            return
        job.reached = max(job.reached, len(job.rounds)) if crashed else job.reached
        self._under_way(key, None)

    def _reject(self, job: Job, error: str) -> None:
        """Takes a trial whose configuration cannot run out of the study; other cells have failed."""
        row = self.table.rows[job.cell.id]
        alone = row.cell.role == "trial" and not row.cell.reference and not row.cell.step
        if not alone or row.runs or job.rounds:
            self._end_leg(job, Status.FAILED, error=error)
            return
        if not any(other.cell.search == row.cell.search for other in self.table.rejected.values()):
            self.notify(Callback.on_warning, row.cell, f"It cannot run, and costs nothing: {error}")
        self.notify(Callback.on_job_pause, row.cell, job.seeds)
        self.table.rejected[row.cell.id] = self._mark(row, rejected=error)
        del self.table.rows[row.cell.id]
        self.store.remove(row.cell)
        self._under_way(row.cell.id, None)
