"""A study as one run of Ray Tune: a searcher that hands out jobs, a Tune scheduler that passes on their reports."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from fpl_tune.core.device import cores
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.driver import Driver
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.job import ExecutionContext, Failure, Job, Report
from fpl_tune.execute.plan.preflight import gpu_share
from fpl_tune.execute.ray.connect import connected
from fpl_tune.execute.ray.nodes import NodeWatch, check_nodes, reject_unfit, slots
from fpl_tune.execute.ray.trainable import JOB, REPORT, FederatedTrainable, SentJob

_CAUSE = 600
"""Maximum characters of Ray's sentences on a dead process; none is cut."""
LOG_FILE = "ray.log"
"""File in the study's folder with Ray's own messages."""


def run(driver: Driver, context: ExecutionContext) -> None:
    """Runs all legs of the study.

    Raises:
        EnvironmentProblem: Ray cannot be started or joined, or a node cannot run trials.
        ConfigError: a trial asks for more than any node has.
    """
    lost = partial(driver.notify, Callback.on_abort)
    with connected(context.address, log=context.folder / LOG_FILE, on_lost=lost) as folder:
        if driver.stopping:
            return
        jobs = JobSearcher(driver, settle(context))
        tuner = tune.Tuner(
            tune.with_resources(FederatedTrainable, _resources),
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=jobs,
                scheduler=JobScheduler(jobs),
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=f"{context.study}-{os.getpid()}",  # unique on a cluster that others also use
                storage_path=folder,  # for Tune's own files, which are not read
                stop=StopAll(jobs),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),  # the study counts failures since the last round
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # jobs write their own
                callbacks=[ForgetResults()],
            ),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuner.fit()
        if jobs.problem is not None:
            raise jobs.problem


def settle(context: ExecutionContext) -> ExecutionContext:
    """The context resolved for this machine or cluster, with the memory of the smallest GPU if it is needed.

    Raises:
        EnvironmentProblem: a node cannot run trials.
        ConfigError: a trial asks for more than any node has.
    """
    gpu_bytes: list[int] = []
    if context.address is not None:
        nodes = check_nodes(context.storage, context.data_roots)
        if context.device == "auto":
            context = replace(context, device="cuda" if any(node.gpus for node in nodes) else "cpu")
        if context.device == "cpu":
            context = replace(context, gpus=context.gpus or 0.0)
        elif context.execution.threads is None:
            context = replace(context, threads=1)
        reject_unfit(nodes, context.threads, 0.01 if context.gpus is None else context.gpus)
        gpu_bytes = [total for node in nodes for total in node.gpu_bytes]
    elif context.gpus is None:
        gpu_bytes = [total for total, _ in gpus_here()]
    if context.gpus is None and not gpu_bytes:
        raise EnvironmentProblem(
            "PyTorch sees no GPU where trials run. Install a PyTorch with CUDA there, or use execution.device=cpu."
        )
    return replace(context, gpu_bytes=min(gpu_bytes, default=0))


def _resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """The resources of a trial from its configuration, which `JobSearcher` suggests."""
    return tune.PlacementGroupFactory([{name: config[name] for name in ("CPU", "GPU") if config[name]}])


class JobSearcher(Searcher):
    """Suggests jobs to Tune while slots are free, and passes reports to the driver.

    Nodes that join while the study runs get trials.

    Tune treats an exception in its hooks as a failed trial, so exceptions are kept in `problem`.

    Args:
        driver: the study's driver.
        context: the context of its jobs; see `settle`.
    """

    def __init__(self, driver: Driver, context: ExecutionContext) -> None:
        super().__init__()
        self.driver, self.context = driver, context
        self.problem: BaseException | None = None
        self.running: dict[str, Job] = {}
        """Running jobs by Tune's id of the trial."""
        self._absence = NodeWatch(context.address)
        self._reported = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its hooks for a restore that is never used; databases do not pickle

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as problem:
            self.problem = problem

    def suggest(self, trial_id: str) -> Any:
        """The configuration of the next trial; None while there is no job or no free slot."""
        with self._guarded():
            if self._has_slot() and (job := self.driver.next_leg()) is not None:
                self.running[trial_id] = job
                return {JOB: SentJob.of(job, self.context), **self._resources(job)}
        return Searcher.FINISHED if self.problem is not None or self.driver.over else None

    def _has_slot(self) -> bool:
        """True if another trial may start. At most one job waits for a free share of a GPU, so Ray can fill the GPUs.

        Raises:
            EnvironmentProblem: no node has been alive for too long.
        """
        most = slots(self.context) if self.context.address else self.context.parallel
        self._absence.check(most > 0, idle=time.monotonic() - self._reported)
        free = len(self.running) < most
        used = sum(job.gpus for job in self.running.values())
        return free and (self.context.device == "cpu" or used < ray.cluster_resources().get("GPU", 0.0))

    def _resources(self, job: Job) -> dict[str, float]:
        """Cores and GPU share of a job; the whole device after it ran out of memory next to others.

        Without a cluster, cores are shared so that all parallel trials fit.
        """
        context, cpu = self.context, float(self.context.threads)
        if context.address is None:
            cpu = min(cpu, cores() / context.parallel)
        if context.device == "cpu" or context.gpus == 0:
            return {"CPU": float(cores()) if job.alone and context.address is None else cpu, "GPU": 0.0}
        job.gpus = 1.0 if job.alone else context.gpus or gpu_share(job.cell.run, len(job.seeds), context.gpu_bytes)
        return {"CPU": cpu, "GPU": job.gpus}

    def receive(self, trial_id: str, report: Report) -> bool:
        """Passes on the report of a step. Returns True if the trial continues."""
        goes_on = False
        if report.failure is None:
            self._reported = time.monotonic()
        with self._guarded():
            goes_on = self.problem is None and self.driver.receive(self.running[trial_id], report)
            goes_on = goes_on and not (self.context.no_shared_folder and self.driver.stopping)
        if not goes_on:
            del self.running[trial_id]
        return goes_on

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Does nothing: `JobScheduler` receives the ends of trials."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: everything is in the study's store."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: everything is in the study's store."""


class JobScheduler(FIFOScheduler):
    """Passes the reports of trials to the driver, and its decisions to Tune."""

    def __init__(self, jobs: JobSearcher) -> None:
        super().__init__()
        self._jobs = jobs

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        return TrialScheduler.CONTINUE if self._jobs.receive(trial.trial_id, result[REPORT]) else TrialScheduler.STOP

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if trial.trial_id in self._jobs.running:
            error = Path(trial.error_file) if trial.error_file else None  # `get_error` reads a copy that is made later
            failure = Failure(cause_of_death(error.read_text() if error and error.is_file() else ""), "died")
            warning = f"{failure.error}. Ray's messages are in {self._jobs.context.folder / LOG_FILE}."
            self._jobs.receive(trial.trial_id, Report([], failure=failure, warnings=[warning]))


class StopAll(tune.Stopper):
    """Stops all trials once there is a problem, including those that wait for a node or do not answer."""

    def __init__(self, jobs: JobSearcher) -> None:
        self._jobs = jobs

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._jobs.problem is not None


class ForgetResults(tune.Callback):
    """Empties the last result of every trial, which Tune keeps until the end with statistics of all its numbers."""

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        for name in result.keys() - {"done"}:
            del result[name]


def cause_of_death(error: str) -> str:
    """The end of Ray's message on a dead actor: the exception at its start, or how and where it ended."""
    lines = [" ".join(line.split()) for line in error.splitlines() if line.strip()]
    node = next((line.removeprefix("ip: ") for line in lines if line.startswith("ip: ")), "")
    why = ""
    for sentence in re.split(r"(?<=[.!?]) (?=[A-Z(])", lines[-1]) if lines else ():
        if len(why) + len(sentence) > _CAUSE:
            break
        why = f"{why} {sentence}".strip()
    why = why.rstrip(".") or "killed, or out of memory"
    return f"the process of the trial died: {why}{f' (node {node})' if node else ''}"
