"""A study's job in an actor: the assignment from the driver, the steps, and their reports."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray
import torch

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.inline import attempt
from fpl_tune.execute.job import STOP_FILE, Failure, Job, JobOutput, JobRun, Setup, stop_asked
from fpl_tune.execute.ray.nodes import node_cache, unfit
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.trial import Record

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


@dataclass(frozen=True)
class Report:
    """The report of a step to the driver."""

    rounds: list[list[Record]]
    peak_device_bytes: int = 0
    """Largest GPU memory so far, from the second round on."""
    output: JobOutput | None = None
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    declined: tuple[str, str] | None = None
    """Id of the node and why it cannot run trials; nothing was done."""
    last: bool = True
    """No step follows."""


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
        self._run = None if self._stop_asked() else attempt(lambda: JobRun(assignment.job, setup))

    def step(self) -> Report:
        """Rounds for `STEP_SECONDS`; none if the study was stopped while this process started."""
        if self._unfit:
            return Report([], declined=(ray.get_runtime_context().get_node_id(), self._unfit))
        run = self._run
        if run is None:
            return Report([])
        if isinstance(run, Failure):
            return Report([], failure=_in_a_usable_process(run))
        stopped = False

        def stopping() -> bool:
            nonlocal stopped
            stopped = self._stop_asked()
            return stopped

        rounds = attempt(lambda: run.advance(STEP_SECONDS, stopping))
        warnings = run.warnings()
        if isinstance(rounds, Failure):
            return Report(run.unreported(), failure=_in_a_usable_process(rounds), warnings=warnings)
        if not run.done:
            peak = self._peak() if run.trial.round >= MEASURED_ROUNDS else 0
            return Report(rounds, peak, warnings=warnings, last=stopped)
        output = attempt(lambda: replace(run.output(), peak_device_bytes=self._peak()))
        if isinstance(output, Failure):
            return Report(rounds, failure=output, warnings=warnings)
        return Report(rounds, output=output, warnings=warnings)

    def _peak(self) -> int:
        """Largest GPU memory of the trial in bytes; 0 on the CPU."""
        return torch.cuda.max_memory_reserved() if self._setup.device == "cuda" else 0

    def _stop_asked(self) -> bool:
        """Looks for the stop file in the study's folder; at a URL only every `STOP_SECONDS`."""
        if self._place is None:
            return stop_asked(self._setup.folder)
        if time.monotonic() - self._looked < STOP_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._place.holds(f"{self._setup.study}/{STOP_FILE}")


def _in_a_usable_process(failure: Failure) -> Failure:
    """Returns the failure. Raises `ContextLost` if it left the process useless: Tune then ends the process."""
    if failure.kind == "died":
        raise ContextLost(f"the CUDA context is lost: {failure.error}")
    return failure
