"""A study's job in an actor: the assignment from the driver, the steps, and their reports."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import ray
import torch

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.job import STOP_FILE, Job, JobRun, Setup, stop_requested
from fpl_tune.execute.ray.nodes import node_cache, unfit
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.execute.step import Failure, Report, attempt, step

STUDY = "study"
"""Key of a trainable's configuration under which a study puts a job; the value is a pickled `Assignment`."""
REPORT = "report"
"""Key of a trainable's result under which a study finds the `Report` of a step."""
STEP_SECONDS = 0.5
"""A study's step runs rounds for at least this long, so that Tune's cost of a step is a small share of it."""
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
    setup: Setup
    versions: Mapping[str, str]
    """The driver's; an actor with others declines the job."""
    gpus: float = 0.0


def on_node(setup: Setup) -> Setup:
    """The setup with this node's paths: its feature cache and, without a shared folder, a temporary study folder."""
    if setup.address is None:
        return setup
    setup = replace(setup, cache_dir=node_cache(setup.cache_dir))
    if setup.checkpoints is None:
        return setup
    own = Path(tempfile.gettempdir(), f"fpl-tune-{os.getpid()}", setup.study)
    atexit.register(shutil.rmtree, own.parent, ignore_errors=True)
    return replace(setup, folder=own)


class StudyWork:
    """A study's job in an actor. Failures are reported; only `ContextLost` is raised, and ends the process."""

    def __init__(self, assignment: Assignment) -> None:
        self._unfit = unfit(assignment.setup, assignment.versions)
        if self._unfit:
            return
        setup = on_node(assignment.setup)
        torch.set_num_threads(setup.threads)
        if setup.device == "cuda":  # a trial that takes more than its share of the GPU is out of memory
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.set_per_process_memory_fraction(min(1.0, assignment.gpus))
        self._setup = setup
        self._place = RemoteStorage(setup.checkpoints) if setup.checkpoints and setup.address else None
        self._looked = time.monotonic()
        self._run = None if self._stop_requested() else attempt(lambda: JobRun(assignment.job, setup))

    def step(self) -> Report:
        """Rounds for `STEP_SECONDS`; none if the study was stopped while this process started."""
        if self._unfit:
            return Report([], declined=(ray.get_runtime_context().get_node_id(), self._unfit))
        run = self._run
        if run is None:
            return Report([])
        if isinstance(run, Failure):
            report = Report([], failure=run)
        else:
            report = step(run, STEP_SECONDS, self._stop_requested)
            if report.failure is None and (run.done or run.trial.round >= MEASURED_ROUNDS):
                report = replace(report, peak_device_bytes=self._peak())
        if report.failure is not None and report.failure.kind == "died":  # Tune then ends the process
            raise ContextLost(f"the CUDA context is lost: {report.failure.error}")
        return report

    def _peak(self) -> int:
        """Largest GPU memory of the trial in bytes; 0 on the CPU."""
        return torch.cuda.max_memory_reserved() if self._setup.device == "cuda" else 0

    def _stop_requested(self) -> bool:
        """Looks for the stop file in the study's folder; at a URL only every `STOP_SECONDS`."""
        if self._place is None:
            return stop_requested(self._setup.folder)
        if time.monotonic() - self._looked < STOP_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._place.holds(f"{self._setup.study}/{STOP_FILE}")
