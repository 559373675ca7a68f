"""The scheduler of a study: reports become events, events become writes. The driver alone writes the store.

Trials are handed out leg by leg (`study.trial`). The end of a leg writes the results of its seeds, then the trial's new
state, and then drops checkpoints that no leg needs any more, so that a kill between two of them leaves what a start
finishes: what is decided again is decided alike.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from fpl_tune.config import Study
from fpl_tune.core.errors import EnvironmentProblem, FplTuneError
from fpl_tune.core.files import no_room
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Failure, Job, Output, Report
from fpl_tune.execute.manage import stop_requested
from fpl_tune.execute.remote import RemoteStorage, StorageError
from fpl_tune.execute.trials import begun
from fpl_tune.search.pruning import HALVING, Halving, objective_of, resolved, score
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import Fingerprints, stale
from fpl_tune.study.lock import STOP_FILE
from fpl_tune.study.looks import Judge
from fpl_tune.study.results import make_result
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store
from fpl_tune.study.trial import Event, State, Trial, ended, legs_of

P = ParamSpec("P")
_CRASHES = 3  # of a job's process in a row without a new round
_log = logging.getLogger(__name__)


class Scheduler:
    """Hands out legs, stores what comes of them, requests trials of the search.

    Args:
        store: the study's store, whose lock is held.
        spec: the study.
        search: its search, opened before `start`.
        callbacks: receive its events. An exception in one is a warning, and the study goes on.
        began: when the command started, in seconds of the monotonic clock.
        retry: whether seeds that diverged run again.
        judge: says which cells run on where seeds are added until comparisons are decided.
    """

    def __init__(
        self,
        store: Store,
        spec: Study,
        search: Search | None,
        callbacks: Iterable[Callback],
        began: float,
        *,
        retry: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self._judge = judge if spec.declared_looks() else None
        self.store, self.spec, self.search = store, spec, search
        self.callbacks, self.began, self.retry = list(callbacks), began, retry
        self.cells: dict[str, Cell] = {}
        """All cells that are known by now, by id."""
        self.trials: dict[str, Trial] = {}
        """Their trials."""
        self.jobs: OrderedDict[str, Job] = OrderedDict()
        """The present leg of each trial that is not over, by its cell's id, in the order of handing out."""
        self.signal: int | None = None
        self.prune = resolved(spec)
        hedged = search.hedged if search else None
        self._halving = Halving(spec, self.cells, self.trials, lambda: search.published if search else (), hedged)
        self._fingerprints, self._prints = Fingerprints(), dict[str, dict[str, Any]]()
        self._started = False
        self._skipped: set[str] = set()
        self._apart: set[str] = set()  # cells whose seeds failed together, and so have one retry less
        self._stale: dict[str, list[str]] = {}
        self._warned: set[tuple[str, str]] = set()
        url = spec.execution.checkpoints
        self._storage = RemoteStorage(url) if url else None
        if store.exists:
            store.check()  # seeds with a damaged file have no result

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

    def jobs_with(self, state: State) -> list[Job]:
        """The jobs of trials in a state, in their order."""
        return [self.jobs[key] for key in self._keys(state)]

    # -- before and after ------------------------------------------------------------------------------------

    def plan(self, cells: Iterable[Cell]) -> None:
        """Adds cells: their trials as the store has them, reopened where the study asks for more. Writes nothing."""
        for cell in cells:
            if (known := self.cells.get(cell.id)) is not None:
                self._unite(known, cell)
                continue
            self._prints[cell.id] = self._fingerprints(cell.run)
            trial, reasons = begun(self.store, cell, self.spec, self._prints[cell.id], retry=self.retry)
            self.cells[cell.id], self.trials[cell.id] = cell, trial
            if reasons and not trial.over:
                self._stale[cell.id] = reasons
            if trial.over:
                self._skipped.add(cell.id)
            else:
                self.jobs[cell.id] = self._job(cell)

    def _unite(self, known: Cell, cell: Cell) -> None:
        """Makes one cell of a reference and a trial of the same configuration."""
        if cell.role == "trial" and known.role != "trial":
            self.cells[cell.id] = replace(cell, reference=known.label if known.role == "reference" else "")
            if cell.id in self.jobs:
                self.jobs[cell.id].cell = self.cells[cell.id]

    def _job(self, cell: Cell) -> Job:
        """The job of a trial's next leg."""
        left = self.trials[cell.id].left
        mine = [leg.rounds for leg in left if leg.seeds == left[0].seeds]
        rungs = tuple(n for n in mine if n < cell.run.rounds)
        return Job(cell, left[0].seeds, self._prints[cell.id], rungs, attempt=int(cell.id in self._apart))

    def start(self) -> None:
        """Stores the study and its trials, and finishes what a kill left undone."""
        cells = list(self.cells.values())
        self.store.begin(self.spec, cells, self._stays)
        for key in self.jobs if self.retry else ():  # before anything runs, so that a kill does not lose the request
            for seed, result in self.store.seed_results(self.cells[key]).items():
                if result["status"] == Status.DIVERGED and seed in self.trials[key].seeds_left:
                    self.store.forget(self.cells[key], seed)
        under_way = set[str]()
        for cell in cells:
            before = self.store.trial(cell)
            running = before.state is State.RUNNING
            under_way |= {cell.id} if running else set()
            if running and cell.id in self.jobs and self._left_ended(cell, before):
                self.trials[cell.id] = before
                self._end_leg(cell.id)
            else:
                self._save(cell.id)
        for key in sorted(self.jobs, key=lambda key: (not self._quick(key), key not in under_way, self._place(key))):
            self.jobs.move_to_end(key)
        for key, reasons in self._stale.items():
            self.notify(Callback.on_stale, self.cells[key], reasons)
        self._look(silent=True)
        self._promote()  # as before a kill: ahead of a new trial, which learns from what a promoted one gives
        if self.search:
            self._request(len(self.search.parts))
            self.notify(Callback.on_trials_queued, [], self.search.remaining)
        queued = [*self.jobs_with(State.QUEUED), *self.jobs_with(State.WAITING)]
        self._started = True
        self.notify(Callback.on_study_start, self.store, list(self.cells.values()), queued)

    def _stays(self, cell: Cell) -> bool:
        """Whether an earlier cell stays in the tables: it has results, and they are of today's method and data."""
        trial, results = self.store.trial(cell), self.store.seed_results(cell)
        try:
            prints = self._fingerprints(cell.run)
        except FplTuneError:  # its data are no longer there: nothing says that it is out of date
            return True
        return (trial.over or bool(trial.counts)) and not any(stale(result, prints) for result in results.values())

    def _left_ended(self, cell: Cell, trial: Trial) -> bool:
        """Whether a leg had ended when the process died: its results are there, the trial's next state is not."""
        results = self._fresh(cell)
        return (
            all(
                (result := results.get(seed)) is not None
                and result["status"] != Status.FAILED
                and (result["status"] != Status.PARTIAL or result["rounds"] == trial.present.rounds)
                for seed in trial.present.seeds
            )
            and self.trials[cell.id].legs == trial.legs
        )

    def _quick(self, key: str) -> bool:
        """Whether a cell gives a result within a second, such as zero-shot CLIP."""
        return not self.cells[key].run.learns

    def _place(self, key: str) -> tuple[int, int]:
        """Order of the trials that were promoted before the process ended: as they were, the furthest first."""
        trial = self.trials[key]
        behind = trial.legs[trial.leg - 1].rounds if trial.leg else 0
        return -behind, self._halving.rank(key, behind) if behind else 0

    def finish(self) -> Outcome:
        """Writes the tables and ends the callbacks."""
        self.store.write_csv()
        self._stop_file.unlink(missing_ok=True)
        outcome = self.outcome()
        self.notify(Callback.on_study_end, self.store, outcome)
        return outcome

    def outcome(self) -> Outcome:
        """Counts the cells by their state now."""
        failures: dict[str, list[str]] = {}
        for key, cell in self.cells.items():
            bad = {Status.FAILED} if cell.role == "trial" else FAILURES
            for seed, result in self._fresh(cell).items() if self.trials[key].over else ():
                if seed in self.spec.seed_list() and result["status"] in bad:
                    failures.setdefault(key, []).append(f"{cell.label}, seed {seed}: {result['error']}")
        pending = len(self.jobs) + (self.search.remaining if self.search else 0)
        skipped = len(self._skipped - failures.keys())
        done = len(self.cells) - len(self.jobs.keys() | failures.keys()) - skipped
        code = 1 if failures else 0
        if pending:
            code = 128 + self.signal if self.signal else 130
        listed = tuple(text for found in failures.values() for text in found)
        return Outcome(done, len(failures), skipped, pending, time.monotonic() - self.began, code, listed)

    # -- what executors call ---------------------------------------------------------------------------------

    @cached_property
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
        """Hands out the next leg; None if none may start now."""
        if self.stopping:
            return None
        self._refill()
        job = next(iter(self.jobs_with(State.QUEUED)), None)
        if job is None:
            return None
        self._change(job.cell.id, Event.HANDED_OUT)
        job.rounds = []
        self.notify(Callback.on_job_start, job.cell, job.seeds)
        return job

    def receive(self, job: Job, report: Report) -> bool:
        """Receives the report of a job's step. Returns whether the job goes on.

        Raises:
            EnvironmentProblem: the disk is full or read-only, a URL fails, or a node cannot run trials.
        """
        for text in report.warnings:
            self.notify(Callback.on_warning, job.cell, text)
        for place, records in enumerate(report.rounds, 1):
            if not self._add_round(job, records, latest=place == len(report.rounds)):
                return False
        if report.failure is not None:
            self._fail(job, report.failure)
        elif report.output is not None:
            self._end_job(job, report.output)
        self._look()
        return not report.last

    # -- what is handed out next -----------------------------------------------------------------------------

    def _refill(self) -> None:
        """Queues the waiting trials that their rung promotes; if none is queued then, further trials.

        Further ones are those of the search, then those that wait at rungs which no other trial can reach.
        """
        self._promote()
        while not self.jobs_with(State.QUEUED):
            if self.search:
                self._request()
            if self.jobs_with(State.QUEUED):
                return
            more = self.search is not None and self.search.remaining and self.jobs_with(State.RUNNING)
            if more or not self.jobs_with(State.WAITING) or not self._settle():
                return

    def _promote(self) -> None:
        """Queues the waiting trials that their rung promotes, ahead of the others."""
        for key in reversed(self._halving.promote(self._keys(State.WAITING))):
            self._change(key, Event.PROMOTED)
            self.jobs.move_to_end(key, last=False)

    def _settle(self) -> bool:
        """Promotes or prunes what waits at rungs that nothing else can reach. False: there is no such rung."""
        promoted, pruned = self._halving.settle(self._keys(State.WAITING), self._keys(State.RUNNING))
        for key in promoted:
            self._change(key, Event.PROMOTED)
            self.jobs.move_to_end(key)
        for key in pruned:
            self._change(key, Event.SETTLED)
        return bool(promoted or pruned)

    def _keys(self, state: State) -> list[str]:
        """Ids of the cells of the trials in a state, in their order."""
        return [key for key in self.jobs if self.trials[key].state is state]

    def _request(self, jobs: int = 1) -> None:
        """Requests trials of the search until so many are queued; those with results in the store are over at once."""
        assert self.search is not None
        while len(self.jobs_with(State.QUEUED)) < jobs and (cell := self.search.request()):
            known = self.cells.get(cell.id)
            self.plan([cell])
            if known is None or known is not self.cells[cell.id]:
                self.store.add([self.cells[cell.id]])
                self._save(cell.id)
            self._note(cell.id)
            queued = cell.id in self.jobs
            self.notify(Callback.on_trials_queued, [self.cells[cell.id]] if queued else [], self.search.remaining)

    def _look(self, *, silent: bool = False) -> None:
        """Once no trial is left, looks at the comparisons: the cells of undecided ones run on to the next look."""
        if self._judge is None or self.jobs or (look := self._judge(self.store)) is None:
            return
        for key in (key for key in look.goes_on if key in self.cells):  # a cell of an earlier run stays as it is
            cell, before = self.cells[key], self.trials[key]
            known = self._fresh(cell)
            if more := [seed for seed in look.further if seed not in known]:
                self.trials[key] = before.after(Event.REOPENED, legs=legs_of(more, cell.run.rounds), leg=0)
                self.jobs[key] = self._job(cell)
                self._save(key, before)
                self._skipped.discard(key)
        if not silent:
            self.notify(Callback.on_look, look, list(self.jobs.values()))

    # -- what comes of a leg ---------------------------------------------------------------------------------

    def _add_round(self, job: Job, records: list[Record], *, latest: bool) -> bool:
        """Adds the records of a round. False: the job ends here, at a rung or by a pruner."""
        job.rounds.append(records)
        number, new = len(job.rounds), len(job.rounds) > job.reached
        if new:
            self.notify(Callback.on_round_end, job.cell, records)
        if number >= job.cell.run.rounds:
            return True
        if number == self.trials[job.cell.id].present.rounds:
            return self._end_job(job)
        if latest and new and self._stopped(job):
            self._put(job, Status.PARTIAL)
            self._change(job.cell.id, Event.STOPPED)
            return False
        return True

    def _stopped(self, job: Job) -> bool:
        """Whether a pruner of Optuna stops the trial after this round."""
        if self.search is None or self.prune.rule in (None, HALVING) or not job.cell.candidate:
            return False
        name, number = objective_of(self.spec), len(job.rounds)
        value = score(job.rounds[-1:], name)
        return value is not None and bool(self.search.should_prune(job.cell, number, value))

    def _end_job(self, job: Job, output: Output | None = None) -> bool:
        """Stores the results of a leg that has ended. Returns whether the job goes on with the trial's next leg."""
        self._put(job, Status.PARTIAL if output is None else Status.DONE, output)
        self._end_leg(job.cell.id)
        trial = self.trials[job.cell.id]
        if output is not None or trial.state is not State.QUEUED or trial.present.seeds != job.seeds:
            return False
        self._change(job.cell.id, Event.HANDED_OUT)
        return True

    def _put(self, job: Job, status: Status, output: Output | None = None, error: str | None = None) -> None:
        """Stores the results of a job's seeds, but for those that ran whole before a kill."""
        folder, fresh = self.store.folder / job.path, self._fresh(job.cell)
        if output is not None and self._storage:
            self._storage.pull(f"{self.store.name}/{job.path}", folder)
        for i, seed in enumerate(job.seeds):
            if seed in fresh and fresh[seed]["status"] == Status.DONE:
                continue
            split, prompts = output[seed] if output is not None else ("", None)
            history = [records[i] for records in job.rounds]
            result = make_result(status, history, error=error, fingerprints=job.prints, split_hash=split)
            self.store.put(job.cell, seed, history, result, folder / prompts if prompts else None)

    def _end_leg(self, key: str) -> None:
        """Decides what follows a leg whose results are stored, and writes it."""
        cell, trial = self.cells[key], self.trials[key]
        results, leg = self._fresh(cell), trial.present
        last = trial.leg + 1 == len(trial.legs)
        if bad := [seed for seed in leg.seeds if results[seed]["status"] in FAILURES]:
            halved = cell.role == "trial" or any(each.decides for each in trial.legs)
            ahead = tuple(leg for leg in trial.legs[trial.leg + 1 :] if not set(leg.seeds) <= set(bad))
            if ahead and not halved:  # the others of a cell of a grid
                self._change(key, Event.PASSED, legs=(*trial.legs[: trial.leg + 1], *ahead))
                return
            last = True
        elif leg.decides:
            seeds = [seed for each in trial.legs[: trial.leg + 1] if each.rounds == leg.rounds for seed in each.seeds]
            rounds = zip(*(self.store.history(cell, seed)[: leg.rounds] for seed in seeds), strict=False)
            value = score([list(records) for records in rounds], objective_of(self.spec))
            if value is not None:
                self.trials[key] = trial = replace(trial, values={**trial.values, leg.rounds: value})
            if not self._halving.passes(key):
                self._change(key, Event.HELD)
                return
        if last:
            statuses = {seed: result["status"] for seed, result in results.items()}
            wanted = [statuses[seed] for seed in self.spec.seed_list() if seed in statuses]
            whole = tuple(seed for seed, status in statuses.items() if status == Status.DONE)
            self._change(key, ended(wanted), counts=whole)
        else:
            self._change(key, Event.PASSED)

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
        key, crashed, retries = job.cell.id, failure.kind == "died", self.spec.execution.retries
        job.attempt = 0 if crashed and len(job.rounds) > job.reached else job.attempt + 1
        given_up = job.attempt > {"died": _CRASHES, "error": retries}.get(failure.kind, 0)
        if failure.kind == "memory" and not job.alone:
            job.alone = True
        elif len(job.seeds) > 1 and (given_up if crashed else failure.kind != "error" or retries):
            self.trials[key] = self.trials[key].apart()
            if failure.kind == "error":
                self._apart.add(key)
            self._change(key, Event.INTERRUPTED)
            return
        elif given_up:
            self._put(job, Status.DIVERGED if failure.kind == "diverged" else Status.FAILED, error=failure.error)
            self._end_leg(key)
            return
        job.reached = max(job.reached, len(job.rounds)) if crashed else job.reached
        self._change(key, Event.INTERRUPTED)
        self.jobs.move_to_end(key, last=False)

    # -- changes of state ------------------------------------------------------------------------------------

    def _change(self, key: str, event: Event, **changes: Any) -> None:
        """Changes a trial: writes its state, drops what that makes superfluous, and tells search and callbacks."""
        cell, before = self.cells[key], self.trials[key]
        self.trials[key] = trial = before.after(event, **changes)
        self._save(key, before)
        if event is Event.HANDED_OUT:
            return
        job = self.jobs[key]
        others = not trial.over and job.seeds != trial.left[0].seeds
        if event is Event.HELD:
            job.reached = max(job.reached, len(job.rounds))
        if trial.over:
            del self.jobs[key]
        elif others:
            self.jobs[key] = self._job(cell)
            self.jobs.move_to_end(key, last=False)
        self._note(key)
        if trial.over:
            self._forget_stale(cell)
        if not self._started:  # what a kill left undone: callbacks hear of nothing before the study starts
            return
        if trial.over:
            self.notify(Callback.on_cell_end, cell, self.store.shown_results(cell))
        elif event is Event.HELD or (event is Event.PASSED and others):
            self.notify(Callback.on_job_pause, cell, job.seeds)

    def _save(self, key: str, before: Trial | None = None) -> None:
        """Writes a trial's state, then removes the checkpoints that none of its legs needs any more.

        Args:
            key: the cell's id.
            before: the trial before; None at the start, which removes what a kill left.
        """
        cell, trial = self.cells[key], self.trials[key]
        self.store.put_trial(cell, trial)
        needed = {Job(cell, leg.seeds).path for leg in trial.left}
        slots = (self.store.folder / "cells" / key).glob("ckpt-*")
        for path in {f"cells/{key}/{slot.name}" for slot in slots} - needed:
            shutil.rmtree(self.store.folder / path, ignore_errors=True)
        if self._storage:
            held = trial.legs if before is None else (*before.left, before.present)
            for path in {Job(cell, leg.seeds).path for leg in held} - needed:
                try:
                    self._storage.drop(f"{self.store.name}/{path}")
                except StorageError as problem:
                    self.notify(Callback.on_warning, cell, f"An old checkpoint could not be removed. {problem}")

    def note_all(self) -> None:
        """Tells the search where all cells stand, after it was opened."""
        for key in self.cells:
            self._note(key)

    def _note(self, key: str) -> None:
        """Tells the search where a cell stands."""
        if self.search is None:
            return
        cell, trial = self.cells[key], self.trials[key]
        fresh = self._fresh(cell)
        seeds = trial.counts if trial.counts and trial.state is not State.FAILED else self.spec.seed_list()
        self.search.note(cell, trial, {seed: self.store.history(cell, seed) for seed in seeds if seed in fresh})

    def _fresh(self, cell: Cell) -> dict[int, dict[str, Any]]:
        """The stored results of today's method and data by seed."""
        prints = self._prints[cell.id]
        return {seed: r for seed, r in self.store.seed_results(cell).items() if not stale(r, prints)}

    def _forget_stale(self, cell: Cell) -> None:
        """Removes results of another method or other data, once there are new ones."""
        for seed in set(self.store.seeds(cell)) - self._fresh(cell).keys():
            self.store.forget(cell, seed)
