"""The study's scheduler behind Tune's hooks: a searcher that hands out jobs, a Tune scheduler that receives reports."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

import ray
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from fpl_tune.execute.job import STOP_FILE, Job, JobOutput, stop_requested
from fpl_tune.execute.packing import Packing, Placement
from fpl_tune.execute.ray.nodes import Node, slices, storage_of, survey
from fpl_tune.execute.ray.slots import Slots
from fpl_tune.execute.ray.study_job import REPORT, STUDY, Assignment
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.execute.step import Failure, Report
from fpl_tune.study.versions import versions

DIED = "the process of the trial died"
_MANY = 1 << 20  # trials that a study wants while its scheduler has more
_LOOKAHEAD = 4  # jobs per GPU among which the packing chooses
_FOLLOW_SECONDS = 10.0  # between looks for nodes with GPUs that have joined


def _beside(action: Callable[[], list[Node]]) -> Future[list[Node]]:
    """Runs `action` in a daemon thread and returns the future of its result."""
    found: Future[list[Node]] = Future()

    def run() -> None:
        try:
            found.set_result(action())
        except BaseException as problem:
            found.set_exception(problem)

    Thread(target=run, daemon=True).start()
    return found


class Bridge(Searcher):
    """Suggests jobs to Tune, as slots are free, and passes reports to the study's scheduler.

    Tune takes an exception in its hooks for a failed trial, so exceptions are kept in `problem`.
    """

    def __init__(self, scheduler: Scheduler, slots: Slots, packing: Packing | None = None) -> None:
        super().__init__()
        self.scheduler, self.slots, self.packing = scheduler, slots, packing
        self.problem: BaseException | None = None
        self._versions = versions()
        self._running: dict[str, Job] = {}  # by Tune's id of the trial
        self._waiting: list[Job] = []
        self._declined: list[Job] = []  # by nodes that cannot run trials
        self._dry = False
        self._followed = time.monotonic()
        self._survey: Future[list[Node]] | None = None
        setup = slots.setup
        self._storage = RemoteStorage(setup.checkpoints) if setup.checkpoints else None
        self._stop_sent = False
        if self._storage:
            self._storage.drop(f"{setup.study}/{STOP_FILE}")

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its hooks for a restore that is never used; databases do not pickle

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            self.problem = problem

    def suggest(self, trial_id: str) -> Any:
        """The configuration of the next trial; None while there is no job or no slot for it."""
        with self._guarded():
            self._send_stop()
            if self._has_slot() and (placed := self._pack() if self.packing else self._plain()) is not None:
                job, gpus, node = placed
                self._running[trial_id] = job
                # Pickled: Tune keeps several copies of every configuration until the end, and copies share bytes.
                packed = pickle.dumps(Assignment(job, self.slots.setup, self._versions, gpus))
                return {STUDY: packed, "gpus": gpus, "node": node, "alone": job.alone}
        return Searcher.FINISHED if self.exhausted else None

    def _has_slot(self) -> bool:
        """Whether another trial may start. Beside a job that runs alone on the CPU none may."""
        wanted = len(self._running) + len(self._waiting) if self._dry else _MANY
        held_back = self.packing is None and any(job.alone for job in self._running.values())
        return len(self._running) < self.slots.count(wanted) and not held_back

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """`ReportScheduler` receives the ends of trials."""

    def save(self, checkpoint_path: str) -> None:
        """The study's store holds everything."""

    def restore(self, checkpoint_path: str) -> None:
        """The study's store holds everything."""

    def _plain(self) -> Placement | None:
        job = self._ask()
        return None if job is None else Placement(job, self.slots.setup.gpus or 0.0, "")

    def _pack(self) -> Placement | None:
        assert self.packing is not None
        self._follow_nodes(self.packing)
        while len(self._waiting) < _LOOKAHEAD * self.packing.count and (job := self._ask()) is not None:
            self._waiting.append(job)
        placed = self.packing.place(self._waiting)
        if placed is not None:
            self._waiting = [job for job in self._waiting if job is not placed.job]
        return placed

    def _follow_nodes(self, packing: Packing) -> None:
        """Adds the GPUs of nodes that have joined, removes those of lost nodes.

        The check of a node with GPUs takes up to a minute, so it runs in a thread while trials on other nodes continue.
        """
        setup = self.slots.setup
        if setup.address is None or time.monotonic() - self._followed < _FOLLOW_SECONDS:
            return
        self._followed = time.monotonic()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")}
        packing.keep(alive)
        joined = alive - packing.nodes - set(self.slots.refused)
        if self._survey is None and joined:
            looked = partial(survey, storage_of(setup), setup.cache_dir, setup.data_roots, only=joined)
            self._survey = _beside(looked)
        elif self._survey is not None and self._survey.done():
            done, self._survey = self._survey, None
            packing.add([gpu for gpu in slices(done.result()) if gpu.node in joined])

    def _ask(self) -> Job | None:
        stopping = self.scheduler.stopping
        job = self._declined.pop() if self._declined and not stopping else self.scheduler.next_job()
        self._dry = job is None
        return job

    @property
    def exhausted(self) -> bool:
        """No further trial will start."""
        if self.problem is not None or self.scheduler.stopping:
            return True
        return not self._waiting and not self._declined and self.scheduler.exhausted

    def report(self, trial_id: str, report: Report) -> bool:
        """Passes on the report of a step. False: stop the trial."""
        if self.problem is None:
            with self._guarded():
                job = self._running[trial_id]
                self._send_stop()
                if self.packing:
                    self.packing.measured(job, report.peak_device_bytes)
                for text in report.warnings:
                    self.scheduler.warn(job, text)
                return not report.rounds or self.scheduler.report(job, report.rounds)
        return False

    def ended(self, trial_id: str, report: Report, *, stopped: bool = False) -> None:
        """A trial has ended: by itself, because its process died, or because the scheduler stopped it."""
        job = self._running.pop(trial_id)
        if self.packing:
            self.packing.ended(job, report.peak_device_bytes)
        if self.problem is not None:
            return
        with self._guarded():
            if report.declined:
                self._declined.append(job)
                self.slots.refuse(*report.declined)
                return
            if stopped:
                return
            if report.failure is not None:
                over = not self.scheduler.fail(job, report.failure)  # else it resumes from its checkpoint
            elif over := report.output is not None:  # else it has stopped with a checkpoint
                self.scheduler.complete(job, self._fetched(job, report.output))
            if over and self._storage:
                self._storage.drop(f"{self.slots.setup.study}/{job.path}")

    def _fetched(self, job: Job, output: JobOutput) -> JobOutput:
        """Fetches the files of a job's output from the remote storage."""
        if self._storage is None:
            return output
        setup = self.slots.setup
        folder = setup.folder / job.path
        self._storage.pull(f"{setup.study}/{job.path}", folder)
        return replace(output, prompts={seed: folder / path.name for seed, path in output.prompts.items()})

    def _send_stop(self) -> None:
        """Copies the stop file to the remote storage, for nodes that do not share the study's folder."""
        if self._storage and not self._stop_sent and stop_requested(self.slots.setup.folder):
            self._storage.write(f"{self.slots.setup.study}/{STOP_FILE}", "")
            self._stop_sent = True


def cause_of_death(error: str) -> str:
    """The reason in Ray's message on a dead actor: the exception that kept it from starting, or how it ended."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    if any("creation task" in line for line in lines):
        return f"the process of the trial could not start: {lines[-1][:300]}"
    if lost := [line for line in lines if "the CUDA context is lost" in line]:
        return f"{DIED}: {lost[-1].partition('ContextLost: ')[2][:300]}"
    detail = next((line.partition("Worker exit detail:")[2] for line in lines if "Worker exit detail:" in line), "")
    killed = not detail or "connection error code" in detail
    return f"{DIED} ({'out of memory, or killed' if killed else detail.strip().partition('. ')[0][:300]})."


class ReportScheduler(FIFOScheduler):
    """Passes the reports of trials to the study's scheduler, and its decisions to Tune."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge
        self._closed: set[str] = set()

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        report: Report = result[REPORT]
        if self._bridge.report(trial.trial_id, report):
            return TrialScheduler.CONTINUE
        self._close(trial, report, stopped=True)
        return TrialScheduler.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id not in self._closed:
            report: Report = result.pop(REPORT)  # Tune keeps the last result of every trial
            self._close(trial, report, stopped=not self._bridge.report(trial.trial_id, report))

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if trial.trial_id not in self._closed:
            self._close(trial, Report([], failure=Failure(cause_of_death(str(trial.get_error() or "")), "died")))

    def _close(self, trial: Any, report: Report, *, stopped: bool = False) -> None:
        self._closed.add(trial.trial_id)
        self._bridge.ended(trial.trial_id, report, stopped=stopped)
