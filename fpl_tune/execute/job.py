"""A job: the seeds of a cell that are to be run. What every executor does with one is here, so that they agree."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from fpl_tune import checkpoint
from fpl_tune.checkpoint import Damaged, Snapshot
from fpl_tune.errors import ConfigError
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.files import atomic_write, save_tensors
from fpl_tune.study.cells import Cell
from fpl_tune.trial import Record, Trial

STOP_FILE = "study.stop"
"""While it lies in the study's folder, trials end after their round with a checkpoint."""


@dataclass(frozen=True)
class Job:
    """Seeds of one cell, trained together."""

    cell: Cell
    seeds: tuple[int, ...]
    fingerprint: str = ""
    """Of the method's source: a checkpoint of another one is not continued."""
    attempt: int = 0
    reached: int = 0
    """Rounds heard before its process died the last time."""
    alone: bool = False
    """Memory was not enough beside others: it gets a device of its own."""

    def again(self, *seeds: int) -> Job:
        """The same once more, with all seeds or with some."""
        return replace(self, seeds=seeds or self.seeds, attempt=self.attempt + 1)

    def by_itself(self) -> Job:
        """The same, with nothing beside it."""
        return replace(self, alone=True)

    def after_death(self, reached: int) -> Job:
        """The same from its checkpoint; a first attempt again where it has come further than before."""
        attempt = 0 if reached > self.reached else self.attempt + 1
        return replace(self, attempt=attempt, reached=max(reached, self.reached))

    @property
    def slot(self) -> str:
        """Name of the checkpoint's folder."""
        text = "-".join(map(str, self.seeds))
        return f"ckpt-{text if len(text) <= 24 else hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"


@dataclass(frozen=True)
class Setup:
    """What all jobs of a study share: plain values, so that it travels to other processes."""

    folder: Path
    """The study's."""
    cache_dir: Path
    device: str = "cpu"
    threads: int = 1
    parallel: int = 1
    """Trials at once on this machine."""
    parallel_given: bool = False
    """The user said so; else a cluster runs as many as it has cores for."""
    gpus: float | None = 0.0
    """Of a trial; None: measured."""
    block: int | None = None
    checkpoint_every: int = 5
    address: str | None = None
    checkpoints: str | None = None
    """fsspec URL of checkpoints and prompts; None: the study's folder, which all nodes share."""
    data_roots: tuple[str, ...] = ()

    @property
    def study(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class Product:
    """What a finished job leaves besides its records."""

    prompts: dict[int, Path]
    """Per seed, the file with what was learned."""
    split_hash: dict[int, str]
    peak_memory_bytes: int
    """Largest resident size of the process so far."""
    peak_device_bytes: int = 0
    """Most that the job took of its GPU."""


Kind = Literal["error", "diverged", "memory", "died", "disk"]


@dataclass(frozen=True)
class Failure:
    """Why a job ended early."""

    error: str
    kind: Kind = "error"
    """`error` was raised, `diverged` left the finite numbers, `memory` was not enough, `died`: its process is gone,
    `disk`: what it made could not be written."""
    trace: str = ""
    """Where it was raised, in many lines."""


class Desk(Protocol):
    """What an executor works for: hands out jobs, hears records, decides."""

    @property
    def stopping(self) -> bool:
        """Trials are to end after their round."""
        ...

    @property
    def exhausted(self) -> bool:
        """No further job will come, whatever finishes."""
        ...

    def next(self) -> Job | None:
        """The next job; None: none now."""
        ...

    def heard(self, job: Job, rounds: list[list[Record]]) -> bool:
        """Records by round, one per seed, none twice. False: stop this job."""
        ...

    def warn(self, job: Job, text: str) -> None:
        """Something went wrong that does not stop the job."""
        ...

    def finished(self, job: Job, product: Product) -> None: ...

    def failed(self, job: Job, failure: Failure) -> bool:
        """True: it will go on from its checkpoint."""
        ...


class Running:
    """A job under way: continues from its checkpoint, keeps its history, writes checkpoints.

    Raises whatever `Trial` raises.
    """

    def __init__(self, job: Job, setup: Setup) -> None:
        self.job, self.setup = job, setup
        self.folder = setup.folder / "cells" / job.cell.id / job.slot
        self._place = RemoteStorage(setup.checkpoints) if setup.checkpoints else None
        if self._place:
            self._place.pull(remote_name(job, setup.study), self.folder)
        self.trial = Trial(job.cell.run, job.seeds, cache_dir=setup.cache_dir, device=setup.device, block=setup.block)
        self._warnings: list[str] = []
        self.history = self._resume()
        self._told = 0

    @property
    def done(self) -> bool:
        return self.trial.done

    def advance(self, seconds: float, stopping: Callable[[], bool] = lambda: False) -> list[list[Record]]:
        """Rounds until `seconds` have passed, at least one; what has not been told before, by round.

        When `stopping` says so, a checkpoint is written after the round.
        """
        until = time.perf_counter() + seconds
        while not self.trial.done:
            self.history.append(self.trial.step())
            halt = stopping()
            if not self.trial.done and (halt or self.trial.round % self.setup.checkpoint_every == 0):
                self.checkpoint()
            if halt or time.perf_counter() >= until:
                break
        return self.untold()

    def untold(self) -> list[list[Record]]:
        """Rounds that have not been told before."""
        fresh, self._told = self.history[self._told :], len(self.history)
        return fresh

    def warnings(self) -> list[str]:
        """What went wrong without stopping the job, and has not been told before."""
        fresh, self._warnings = self._warnings, []
        return fresh

    def checkpoint(self) -> None:
        """Writes a checkpoint. Where it cannot be written the job goes on with those before, and a warning is kept."""
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
            self._place.push(self.folder, remote_name(self.job, self.setup.study))

    def _resume(self) -> list[list[Record]]:
        """The history of the newest checkpoint that can be used, its state loaded; empty where there is none."""
        for found in checkpoint.usable(self.folder):
            try:
                if isinstance(found, Damaged):
                    raise found
                if found.meta["fingerprint"] == self.job.fingerprint:
                    rounds, number = found.meta["rounds"], found.meta["round"]
                    if not isinstance(rounds, list) or len(rounds) != number:
                        raise ValueError(f"its history is not of {number} rounds")
                    self.trial.restore(found)
                    return rounds
            except (ConfigError, KeyError, TypeError, ValueError, AttributeError) as problem:
                self._warnings.append(f"A checkpoint is not used, but the one before or none: {problem}")
        return []

    def product(self) -> Product:
        """Writes what was learned beside the checkpoint, for the driver to take."""
        files = {}
        for seed, tensors in self.trial.prompts().items():
            if tensors:
                files[seed] = self.folder / f"prompts-{seed}.safetensors"
                with atomic_write(files[seed]) as temporary:
                    save_tensors(tensors, temporary)
        self._send()
        hashes = {seed: task.split_hash for seed, task in zip(self.trial.seeds, self.trial.tasks, strict=True)}
        return Product(files, hashes, peak_memory())


def remote_name(job: Job, study: str) -> str:
    """Where a job's checkpoints lie below the URL."""
    return f"{study}/cells/{job.cell.id}/{job.slot}"


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stop_asked(folder: Path) -> bool:
    """Whether the study is to stop."""
    return os.path.exists(folder / STOP_FILE)
