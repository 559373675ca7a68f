"""A job: the seeds of a cell that are to be run. What every executor does with one is here, so that they agree."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file

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

    def again(self, *seeds: int) -> Job:
        """The same once more, with all seeds or with some."""
        return replace(self, seeds=seeds or self.seeds, attempt=self.attempt + 1)

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
    gpus: float = 0.0
    block: int | None = None
    checkpoint_every: int = 5
    address: str | None = None


@dataclass(frozen=True)
class Product:
    """What a finished job leaves besides its records."""

    prompts: dict[int, Path]
    """Per seed, the file with what was learned."""
    split_hash: dict[int, str]
    peak_memory_bytes: int
    """Largest resident size of the process so far."""


@dataclass(frozen=True)
class Failure:
    """Why a job ended early."""

    error: str
    diverged: bool = False


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

    def finished(self, job: Job, product: Product) -> None: ...

    def failed(self, job: Job, failure: Failure) -> None: ...


class Running:
    """A job under way: continues from its checkpoint, keeps its history, writes checkpoints.

    Raises whatever `Trial` raises.
    """

    def __init__(self, job: Job, setup: Setup) -> None:
        self.job, self.setup = job, setup
        self.folder = setup.folder / "cells" / job.cell.id / job.slot
        self.trial = Trial(job.cell.run, job.seeds, cache_dir=setup.cache_dir, device=setup.device, block=setup.block)
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

    def checkpoint(self) -> None:
        """History first, state last: a history that is ahead of its state is cut when it is read."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / "history.json.part"
        temporary.write_text(json.dumps({"fingerprint": self.job.fingerprint, "rounds": self.history}))
        temporary.replace(self.folder / "history.json")
        self.trial.save(self.folder)

    def _resume(self) -> list[list[Record]]:
        """The checkpoint's history, its state loaded; empty where there is none that can be used."""
        if not (self.folder / "state.safetensors").is_file():
            return []
        with suppress(OSError, ValueError, KeyError):
            stored = json.loads((self.folder / "history.json").read_text())
            if stored["fingerprint"] == self.job.fingerprint:
                self.trial.load(self.folder)
                return stored["rounds"][: self.trial.round]
        shutil.rmtree(self.folder, ignore_errors=True)
        return []

    def product(self) -> Product:
        """Writes what was learned beside the checkpoint, for the driver to take."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {}
        for seed, tensors in self.trial.prompts().items():
            if tensors:
                files[seed] = self.folder / f"prompts-{seed}.safetensors"
                save_file(tensors, files[seed])
        hashes = {seed: task.split_hash for seed, task in zip(self.trial.seeds, self.trial.tasks, strict=True)}
        return Product(files, hashes, peak_memory())


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def stop_asked(folder: Path) -> bool:
    """Whether the study is to stop."""
    return os.path.exists(folder / STOP_FILE)
