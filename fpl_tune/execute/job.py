"""Jobs, the seeds of a cell that are run together, and how every executor runs one step by step."""

from __future__ import annotations

import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fpl_tune.config import ExecutionSpec, RunSpec
from fpl_tune.core import plugins
from fpl_tune.core.device import is_out_of_memory, is_poisoned
from fpl_tune.core.errors import ConfigError, FplTuneError
from fpl_tune.core.files import atomic_write, digest, refused, save_tensors
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.simulation import checkpoint
from fpl_tune.simulation.checkpoint import Damaged, Snapshot
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell

STOP_FILE = "study.stop"
"""While this file is in the study's folder, trials stop after their round with a checkpoint."""


@dataclass(frozen=True)
class Job:
    """Seeds of one cell, trained together."""

    cell: Cell
    seeds: tuple[int, ...]
    fingerprint: str = ""
    """Fingerprint of the method's source; a checkpoint with another one is not used."""
    attempt: int = 0
    """Failed attempts so far."""
    reached: int = 0
    """Rounds reported before it was paused or its process died."""
    alone: bool = False
    """Runs without other trials on its device, after an out-of-memory error beside some."""

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """Cell id and seeds: no two jobs of a study have the same."""
        return self.cell.id, self.seeds

    @property
    def path(self) -> str:
        """Path of the checkpoint's folder in the study's, also below a URL."""
        return f"cells/{self.cell.id}/{self.slot}"

    @property
    def slot(self) -> str:
        """Name of the checkpoint's folder."""
        text = "-".join(map(str, self.seeds))
        return f"ckpt-{text if len(text) <= 24 else digest(text, 6)}"


@dataclass(frozen=True)
class ExecutionContext:
    """Settings that all jobs of a study share: plain values, which can be sent to other processes."""

    folder: Path
    """The study's."""
    cache_dir: Path
    execution: ExecutionSpec = field(default_factory=ExecutionSpec)
    """As the user set it; the fields below are resolved for this machine or cluster."""
    device: str = "cpu"
    threads: int = 1
    parallel: int = 1
    """Trials at once on this machine."""
    gpus: float | None = 0.0
    """GPUs per trial; None: a share by measured memory."""
    address: str | None = None
    data_roots: tuple[str, ...] = ()
    rungs: tuple[int, ...] = ()
    """Rounds after which a job may be paused: it writes a checkpoint and reports at once."""

    @property
    def study(self) -> str:
        return self.folder.name

    @property
    def storage(self) -> str:
        """Folder or fsspec URL of checkpoints and prompts, which all nodes share."""
        return self.execution.checkpoints or str(self.folder)

    def trial(self, run: RunSpec, seeds: Sequence[int], warn: Callable[[str], object] = warnings.warn) -> Simulation:
        """A trial with these settings, at its beginning."""
        graphs = None if self.execution.graphs == "auto" else self.execution.graphs
        return Simulation(
            run,
            seeds,
            cache_dir=self.cache_dir,
            device=self.device,
            block=self.execution.block,
            graphs=graphs,
            warn=warn,
        )


@dataclass(frozen=True)
class JobOutput:
    """The results of a finished job besides its records."""

    prompts: dict[int, str]
    """Name of the file with the learned parameters in the job's folder, by seed."""
    split_hash: dict[int, str]
    peak_memory_bytes: int
    """Largest resident size of the process so far."""


Kind = Literal["error", "diverged", "memory", "died", "disk", "declined"]


@dataclass(frozen=True)
class Failure:
    """Why a job ended early."""

    error: str
    kind: Kind = "error"
    """error: an exception; diverged: NaN or inf; memory: out of memory; died: the process ended; disk: a full or
    read-only disk; declined: the node cannot run trials, and nothing was done."""
    trace: str = ""
    """The traceback."""

    @classmethod
    def of(cls, problem: Exception) -> Failure:
        """The failure by an exception: one line, with the place of a plug-in."""
        error = " ".join(str(problem).split()) if isinstance(problem, FplTuneError) else plugins.describe_error(problem)
        kinds: dict[Kind, bool] = {
            "diverged": isinstance(problem, Diverged),
            "died": is_poisoned(problem),
            "memory": is_out_of_memory(problem),
            "disk": refused(problem),
            "error": True,
        }
        kind: Kind = next(kind for kind, holds in kinds.items() if holds)
        return cls(error, kind, "".join(traceback.format_exception(problem)))


@dataclass(frozen=True)
class Report:
    """The report of a step."""

    rounds: list[list[Record]]
    """Records by round, one per seed in each; none was reported before."""
    output: JobOutput | None = None
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    last: bool = True
    """No step follows."""
    peak_device_bytes: int = 0
    """Largest GPU memory so far; 0 where it is not known."""
    node: str = ""
    """Id of the node that declined the job."""


class JobRun:
    """Runs a job: resumes from its checkpoint, keeps its history, writes checkpoints."""

    def __init__(self, job: Job, setup: ExecutionContext) -> None:
        self.job, self.setup = job, setup
        self.folder = setup.folder / job.path
        self.trial: Simulation | None = None
        self.history: list[list[Record]] = []
        self.ran = 0
        """Rounds that this process has run."""
        self._storage: RemoteStorage | None = None
        self._warnings: list[str] = []
        self._reported = 0

    def step(self, seconds: float, stopping: Callable[[], bool]) -> Report:
        """Runs rounds until `seconds` have passed, at least one.

        The first step loads the trial. Where it finds a checkpoint, it only reports the checkpoint's rounds, after
        which the scheduler may pause or stop the job.

        Args:
            seconds: time after which no further round starts.
            stopping: whether to stop after this round with a checkpoint.

        Returns:
            The report. Failures are in it, not raised.
        """
        if self.trial is None and stopping():
            return Report([])
        output = failure = None
        stopped = False
        try:
            resumed = self.trial is None
            trial = self.trial or self._begin()
            resumed = resumed and trial.round > 0
            until = time.perf_counter() + seconds
            while not trial.done and not resumed:
                self.history.append(trial.step())
                self.ran += 1
                stopped = stopping()
                at_rung = trial.round in self.setup.rungs
                if not trial.done and (stopped or at_rung or trial.round % self.setup.execution.checkpoint_every == 0):
                    self.checkpoint()
                if stopped or at_rung or time.perf_counter() >= until:
                    break
            if trial.done:
                output = self._output(trial)
        except Exception as problem:
            failure = Failure.of(problem)
        fresh, self._reported = self.history[self._reported :], len(self.history)
        return Report(fresh, output, failure, self.warnings(), last=stopped or bool(output or failure))

    def warnings(self) -> list[str]:
        """Problems that did not stop the job and were not returned before."""
        fresh, self._warnings = self._warnings, []
        return fresh

    def _begin(self) -> Simulation:
        """Loads the trial, and the newest usable checkpoint with its history."""
        if url := self.setup.execution.checkpoints:
            self._storage = RemoteStorage(url)
            self._storage.pull(f"{self.setup.study}/{self.job.path}", self.folder)
        trial = self.setup.trial(self.job.cell.run, self.job.seeds, self._warnings.append)
        for found in checkpoint.usable(self.folder):
            try:
                if isinstance(found, Damaged):
                    raise found
                if found.meta["fingerprint"] == self.job.fingerprint:
                    rounds, number = found.meta["rounds"], found.meta["round"]
                    if not isinstance(rounds, list) or len(rounds) != number:
                        raise ValueError(f"its history does not have {number} rounds")
                    trial.restore(found)
                    self.history = rounds
                    break
            except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as problem:
                self._warnings.append(f"skipped a checkpoint that cannot be used: {problem}")
        self.trial = trial
        return trial

    def checkpoint(self) -> None:
        """Writes a checkpoint. If that fails, older checkpoints stay and a warning is kept."""
        assert self.trial is not None
        tensors, meta = self.trial.snapshot()
        meta |= {"fingerprint": self.job.fingerprint, "rounds": self.history}
        try:
            checkpoint.write(self.folder, Snapshot(tensors, meta))
            self._send()
        except OSError as problem:
            self._warnings.append(
                f"A checkpoint after round {self.trial.round} could not be written ({problem.strerror}) to "
                f"{self.folder}. The study goes on; a kill would lose rounds since the one before. Free some space."
            )

    def _send(self) -> None:
        if self._storage and self.folder.is_dir():
            self._storage.push(self.folder, f"{self.setup.study}/{self.job.path}")

    def _output(self, trial: Simulation) -> JobOutput:
        """Writes the learned parameters beside the checkpoint, from where the driver moves them to the store."""
        names = {}
        deployed = trial.deployed()
        for seed, tensors in trial.prompts().items():
            leaves, facts = deployed[seed]
            if tensors:
                names[seed] = f"prompts-{seed}.safetensors"
                with atomic_write(self.folder / names[seed]) as temporary:
                    save_tensors({**tensors, **leaves}, temporary, facts)
        self._send()
        hashes = {seed: task.split_hash for seed, task in zip(trial.seeds, trial.tasks, strict=True)}
        return JobOutput(names, hashes, peak_memory())


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stop_requested(folder: Path) -> bool:
    """Whether the study is requested to stop."""
    return os.path.exists(folder / STOP_FILE)
