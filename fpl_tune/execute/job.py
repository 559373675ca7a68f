"""Jobs, the seeds of a cell that are run together, and how every executor runs one."""

from __future__ import annotations

import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fpl_tune import checkpoint
from fpl_tune.checkpoint import Damaged, Snapshot
from fpl_tune.config import RunSpec
from fpl_tune.errors import ConfigError
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.files import atomic_write, digest, save_tensors
from fpl_tune.study.cells import Cell
from fpl_tune.trial import Record, Trial

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
    """Rounds reported before its process last died."""
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
class Setup:
    """Settings that all jobs of a study share: plain values, which can be sent to other processes."""

    folder: Path
    """The study's."""
    cache_dir: Path
    device: str = "cpu"
    threads: int = 1
    threads_given: bool = False
    """`threads` was set by the user; otherwise a trial on a GPU gets one core."""
    parallel: int = 1
    """Trials at once on this machine."""
    parallel_given: bool = False
    """`parallel` was set by the user; otherwise a cluster runs as many trials as it has cores for."""
    gpus: float | None = 0.0
    """GPUs per trial; None: a share by measured memory."""
    block: int | None = None
    graphs: bool | None = None
    """Whether steps are recorded and replayed; None: where that saves time."""
    checkpoint_every: int = 5
    address: str | None = None
    checkpoints: str | None = None
    """fsspec URL of checkpoints and prompts; None: the study's folder, which all nodes share."""
    data_roots: tuple[str, ...] = ()
    rungs: tuple[int, ...] = ()
    """Rounds after which a job may be paused: it writes a checkpoint and reports at once."""

    @property
    def study(self) -> str:
        return self.folder.name

    def trial(self, run: RunSpec, seeds: Sequence[int], warn: Callable[[str], object] = warnings.warn) -> Trial:
        """A trial with these settings, at its beginning."""
        return Trial(
            run, seeds, cache_dir=self.cache_dir, device=self.device, block=self.block, graphs=self.graphs, warn=warn
        )


@dataclass(frozen=True)
class JobOutput:
    """The results of a finished job besides its records."""

    prompts: dict[int, Path]
    """File with the learned parameters, by seed."""
    split_hash: dict[int, str]
    peak_memory_bytes: int
    """Largest resident size of the process so far."""


class JobRun:
    """Runs a job: resumes from its checkpoint, keeps its history, writes checkpoints. Raises what `Trial` raises."""

    def __init__(self, job: Job, setup: Setup) -> None:
        self.job, self.setup = job, setup
        self.folder = setup.folder / job.path
        self._place = RemoteStorage(setup.checkpoints) if setup.checkpoints else None
        if self._place:
            self._place.pull(f"{setup.study}/{job.path}", self.folder)
        self._warnings: list[str] = []
        self.trial = setup.trial(job.cell.run, job.seeds, lambda text: self._warnings.append(text))
        self.history = self._resume()
        self._reported = 0

    @property
    def done(self) -> bool:
        return self.trial.done

    def advance(self, seconds: float, stopping: Callable[[], bool] = lambda: False) -> list[list[Record]]:
        """Runs rounds until `seconds` have passed, at least one.

        Args:
            seconds: time after which no further round starts.
            stopping: whether to stop after this round with a checkpoint.

        Returns:
            Records that were not returned before, by round.
        """
        until = time.perf_counter() + seconds
        while not self.trial.done:
            self.history.append(self.trial.step())
            halt = stopping() or self.trial.round in self.setup.rungs
            if not self.trial.done and (halt or self.trial.round % self.setup.checkpoint_every == 0):
                self.checkpoint()
            if halt or time.perf_counter() >= until:
                break
        return self.unreported()

    def unreported(self) -> list[list[Record]]:
        """Records that were not returned before, by round."""
        fresh, self._reported = self.history[self._reported :], len(self.history)
        return fresh

    def warnings(self) -> list[str]:
        """Problems that did not stop the job and were not returned before."""
        fresh, self._warnings = self._warnings, []
        return fresh

    def checkpoint(self) -> None:
        """Writes a checkpoint. If that fails, older checkpoints stay and a warning is kept."""
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
        if self._place and self.folder.is_dir():
            self._place.push(self.folder, f"{self.setup.study}/{self.job.path}")

    def _resume(self) -> list[list[Record]]:
        """Loads the newest usable checkpoint. Returns its history, empty if there is none."""
        for found in checkpoint.usable(self.folder):
            try:
                if isinstance(found, Damaged):
                    raise found
                if found.meta["fingerprint"] == self.job.fingerprint:
                    rounds, number = found.meta["rounds"], found.meta["round"]
                    if not isinstance(rounds, list) or len(rounds) != number:
                        raise ValueError(f"its history does not have {number} rounds")
                    self.trial.restore(found)
                    return rounds
            except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as problem:
                self._warnings.append(f"skipped a checkpoint that cannot be used: {problem}")
        return []

    def output(self) -> JobOutput:
        """Writes the learned parameters beside the checkpoint, from where the driver moves them to the store."""
        files = {}
        deployed = self.trial.deployed()
        for seed, tensors in self.trial.prompts().items():
            leaves, facts = deployed[seed]
            if tensors:
                files[seed] = self.folder / f"prompts-{seed}.safetensors"
                with atomic_write(files[seed]) as temporary:
                    save_tensors({**tensors, **leaves}, temporary, facts)
        self._send()
        hashes = {seed: task.split_hash for seed, task in zip(self.trial.seeds, self.trial.tasks, strict=True)}
        return JobOutput(files, hashes, peak_memory())


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stop_requested(folder: Path) -> bool:
    """Whether the study is requested to stop."""
    return os.path.exists(folder / STOP_FILE)
