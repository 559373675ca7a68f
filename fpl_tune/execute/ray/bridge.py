"""The study's scheduler behind Tune's hooks: a searcher that hands out jobs, a Tune scheduler that receives reports."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from fpl_tune.execute.job import ExecutionContext, Failure, Job, Report
from fpl_tune.execute.packing import Packing, Placement
from fpl_tune.execute.ray.nodes import carried, findings, slices, survey
from fpl_tune.execute.ray.study_job import REPORT, STUDY, Assignment
from fpl_tune.execute.resources import cores
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.study.versions import versions

_LOOKAHEAD = 4  # jobs per GPU among which the packing chooses
_REFRESH_SECONDS = 2.0  # between looks for nodes that have joined or are lost


class Bridge(Searcher):
    """Suggests jobs to Tune, as slots are free, and passes reports to the study's scheduler.

    Nodes that join while the study runs get trials. One that cannot run trials declines its first and gets no more.

    Tune takes an exception in its hooks for a failed trial, so exceptions are kept in `problem`.
    """

    def __init__(self, scheduler: Scheduler, setup: ExecutionContext, packing: Packing | None = None) -> None:
        super().__init__()
        self.scheduler, self.setup, self.packing = scheduler, setup, packing
        self.problem: BaseException | None = None
        self.running: dict[str, Job] = {}
        """By Tune's id of the trial."""
        self.refused: set[str] = set()
        """Ids of the nodes that get no trials."""
        self._versions = versions()
        self._waiting: list[Job] = []
        self._refresh_at = 0.0
        self._slots = setup.parallel

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
            self._refresh()
            if self._has_slot() and (placed := self._place()) is not None:
                job, gpus, node = placed
                self.running[trial_id] = job
                # Pickled: Tune keeps several copies of every configuration until the end, and copies share bytes.
                packed = pickle.dumps(Assignment(job, self.setup, self._versions, gpus))
                others = f"!in({','.join(sorted(self.refused))})" if self.refused else ""
                return {STUDY: packed, "cpus": self._cpus(job, gpus), "gpus": gpus, "node": node or others}
        return Searcher.FINISHED if self.problem is not None or self.scheduler.exhausted else None

    def _cpus(self, job: Job, gpus: float) -> float:
        """Cores of a job. On this machine all trials fit beside each other, and one that runs alone takes all cores."""
        if self.setup.address is not None:
            return float(self.setup.threads)
        alone = job.alone and not gpus
        return float(cores()) if alone else min(float(self.setup.threads), cores() / self.setup.parallel)

    def _has_slot(self) -> bool:
        """Whether another trial may start. Beside a job that runs alone on the CPU none may."""
        held_back = self.packing is None and any(job.alone for job in self.running.values())
        return len(self.running) < self._slots and not held_back

    def _place(self) -> Placement | None:
        if self.packing is None:
            job = self.scheduler.next_job()
            return None if job is None else Placement(job, self.setup.gpus or 0.0, "")
        while len(self._waiting) < _LOOKAHEAD * self.packing.count and (job := self.scheduler.next_job()) is not None:
            self._waiting.append(job)
        placed = self.packing.place(self._waiting)
        if placed is not None:
            self._waiting = [job for job in self._waiting if job is not placed.job]
        return placed

    def _refresh(self) -> None:
        """Counts the slots of the living nodes, adds the GPUs of nodes that have joined, removes those of lost ones."""
        if self.setup.address is None or time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        self._slots = carried(self.setup, self.refused)
        if self.packing is None:
            return
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")}
        self.packing.keep(alive)
        if joined := alive - self.packing.nodes - self.refused:
            nodes = survey(self.setup.storage, self.setup.cache_dir, self.setup.data_roots, only=joined)
            unfit = {node.id for node, *_ in findings(nodes, self.setup.storage)}
            self.packing.add(slices([node for node in nodes if node.id not in unfit]))
            self.refused |= joined - self.packing.nodes

    def receive(self, trial_id: str, report: Report) -> bool:
        """Passes on the report of a step. Returns whether the trial goes on."""
        job, goes_on = self.running[trial_id], False
        if report.node not in self.refused and report.failure is not None and report.failure.kind == "declined":
            self.refused.add(report.node)
            text = f"node {report.node[:6]} gets no trials: it {report.failure.error}. See `fpl-tune doctor`."
            self.scheduler.warn(job, text)
        if self.packing:
            self.packing.measured(job, report.peak_device_bytes)
        if self.problem is None:
            with self._guarded():
                goes_on = self.scheduler.receive(job, report)
        if not goes_on:
            del self.running[trial_id]
            if self.packing:
                self.packing.ended(job)
        return goes_on

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """`ReportScheduler` receives the ends of trials."""

    def save(self, checkpoint_path: str) -> None:
        """The study's store holds everything."""

    def restore(self, checkpoint_path: str) -> None:
        """The study's store holds everything."""


def cause_of_death(error: str) -> str:
    """The end of Ray's message on a dead actor: the exception that kept it from starting, or how it ended."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    return f"the process of the trial died: {lines[-1][:300] if lines else 'killed, or out of memory'}"


class ReportScheduler(FIFOScheduler):
    """Passes the reports of trials to the study's scheduler, and its decisions to Tune."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return TrialScheduler.CONTINUE if self._bridge.receive(trial.trial_id, result[REPORT]) else TrialScheduler.STOP

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        if trial.trial_id in self._bridge.running:
            self._bridge.receive(trial.trial_id, result.pop(REPORT))  # Tune keeps the last result of every trial

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if trial.trial_id in self._bridge.running:
            error = Path(trial.error_file) if trial.error_file else None  # `get_error` reads a copy that is made later
            failure = Failure(cause_of_death(error.read_text() if error and error.is_file() else ""), "died")
            self._bridge.receive(trial.trial_id, Report([], failure=failure))
