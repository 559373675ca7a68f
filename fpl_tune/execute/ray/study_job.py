"""A study's job in an actor: a Tune trainable that receives an assignment and reports steps."""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.job import STOP_FILE, ExecutionContext, Failure, Job, JobRun, Report, stop_requested
from fpl_tune.execute.ray.nodes import node_cache, unfit
from fpl_tune.execute.remote import RemoteStorage

STUDY = "study"
"""Key of the trainable's configuration: a pickled `Assignment`."""
REPORT = "report"
"""Key of the trainable's result: the `Report` of a step."""
STEP_SECONDS = 0.5
"""A step runs rounds for at least this long, so that Tune's cost of a step is a small share of it."""
STOP_SECONDS = 2.0
"""Time between looks at a remote stop file."""
MEASURED_ROUNDS = 2
"""Rounds after which a trial's peak of GPU memory is known."""


class ContextLost(EnvironmentProblem):
    """The process's CUDA context is useless, so the process must end."""


@dataclass(frozen=True)
class Assignment:
    """A job on its way to an actor."""

    job: Job
    setup: ExecutionContext
    versions: Mapping[str, str]
    """The driver's; an actor with others declines the job."""
    gpus: float = 0.0


def on_node(setup: ExecutionContext) -> ExecutionContext:
    """The setup with this node's paths: its feature cache and, without a shared folder, a temporary study folder."""
    if setup.address is None:
        return setup
    setup = replace(setup, cache_dir=node_cache(setup.cache_dir))
    if setup.execution.checkpoints is None:
        return setup
    own = Path(tempfile.gettempdir(), f"fpl-tune-{os.getpid()}", setup.study)
    atexit.register(shutil.rmtree, own.parent, ignore_errors=True)
    return replace(setup, folder=own)


class StudyTrainable(tune.Trainable):
    """A study's job in an actor. Failures are reported; only `ContextLost` is raised, and ends the process."""

    def setup(self, config: dict[str, Any]) -> None:
        assignment: Assignment = pickle.loads(config[STUDY])
        self._unfit = unfit(assignment.setup, assignment.versions)
        if self._unfit:
            return
        self._setup = setup = on_node(assignment.setup)
        torch.set_num_threads(setup.threads)
        if setup.device == "cuda":  # a trial that takes more than its share of the GPU is out of memory
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.set_per_process_memory_fraction(min(1.0, assignment.gpus))
        remote = setup.execution.checkpoints if setup.address else None
        self._remote = RemoteStorage(remote) if remote else None
        self._looked = time.monotonic()
        self._run: JobRun | None = JobRun(assignment.job, setup)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begins another job in the same process, which keeps towers and data."""
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Rounds for `STEP_SECONDS`; none if the study was stopped while this process started."""
        report = self._step()
        return {REPORT: report, "done": report.last}

    def _step(self) -> Report:
        if self._unfit:
            node = ray.get_runtime_context().get_node_id()
            return Report([], failure=Failure(self._unfit, "declined"), node=node)
        assert self._run is not None
        report = self._run.step(STEP_SECONDS, self._stop_requested)
        if report.failure is not None:
            if report.failure.kind == "died":  # Tune then ends the process
                raise ContextLost(f"the CUDA context is lost: {report.failure.error}")
        elif self._setup.device == "cuda" and (report.output or self._run.ran >= MEASURED_ROUNDS):
            report = replace(report, peak_device_bytes=torch.cuda.max_memory_reserved())
        return report

    def cleanup(self) -> None:
        """Frees the run, so that the next one's peak memory does not include it."""
        self._run = None
        gc.collect()

    def _stop_requested(self) -> bool:
        """Looks for the stop file in the study's folder; at a URL only every `STOP_SECONDS`."""
        if self._remote is None:
            return stop_requested(self._setup.folder)
        if time.monotonic() - self._looked < STOP_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._remote.holds(f"{self._setup.study}/{STOP_FILE}")
