"""What runs in the actors."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from fpl_tune.execute.inline import attempt
from fpl_tune.execute.job import STOP_FILE, Failure, Job, JobOutput, JobRun, Setup, stop_asked
from fpl_tune.execute.packing import CudaMeter, NoMeter
from fpl_tune.execute.ray.nodes import node_cache, unfit
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.trial import Record

STOP_SECONDS = 2.0
STEP_SECONDS = 0.5
"""Rounds of one step: at least so long, so that what a step costs Ray is a small share of it."""


@dataclass(frozen=True)
class Told:
    """What a step tells the driver, as one leaf of Tune's result."""

    rounds: list[list[Record]]
    output: JobOutput | None = None
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    declined: tuple[str, str] | None = None
    """Id of the node and why it must not run trials: nothing was done."""


class Ticket:
    """A job on its way to an actor, short in Tune's own names and tables."""

    def __init__(self, number: int, job: Job, gpus: float = 0.0) -> None:
        self.number, self.job, self.gpus = number, job, gpus

    def __repr__(self) -> str:
        return self.job.cell.id


def on_node(setup: Setup) -> Setup:
    """The setup with the paths of this node: its own feature cache, and where nothing is shared a folder of its own."""
    if setup.address is None:
        return setup
    setup = replace(setup, cache_dir=node_cache(setup.cache_dir))
    if setup.checkpoints is None:
        return setup
    own = Path(tempfile.gettempdir(), f"fpl-tune-{os.getpid()}", setup.study)
    atexit.register(shutil.rmtree, own.parent, ignore_errors=True)
    return replace(setup, folder=own)


class StopSign:
    """Whether the study is to stop: a file in its folder, or at its URL, which is looked at less often."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._place = RemoteStorage(setup.checkpoints) if setup.checkpoints and setup.address else None
        self._looked = time.monotonic()

    def seen(self) -> bool:
        if self._place is None:
            return stop_asked(self._setup.folder)
        if time.monotonic() - self._looked < STOP_SECONDS:
            return False
        self._looked = time.monotonic()
        return self._place.holds(f"{self._setup.study}/{STOP_FILE}")


class TrialActor(tune.Trainable):
    """Jobs one after the other on one actor; towers and features stay loaded in between."""

    def setup(self, config: dict[str, Any]) -> None:
        self._unfit = unfit(config["setup"], config["versions"])
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._take(new_config)
        return True

    def _take(self, config: dict[str, Any]) -> None:
        if self._unfit:
            return
        import torch

        self._setup = on_node(config["setup"])
        torch.set_num_threads(self._setup.threads)
        ticket: Ticket = config["ticket"]
        self._meter = CudaMeter() if self._setup.device == "cuda" else NoMeter()
        self._meter.begin(ticket.gpus)
        self._stop = StopSign(self._setup)
        self._running = attempt(lambda: JobRun(ticket.job, self._setup))

    def step(self) -> dict[str, Any]:
        if self._unfit:
            node = ray.get_runtime_context().get_node_id()
            return {"told": Told([], declined=(node, self._unfit)), "done": True}
        running = self._running
        if isinstance(running, Failure):
            return {"told": Told([], failure=running), "done": True}
        halted = False

        def stopping() -> bool:
            nonlocal halted
            halted = self._stop.seen()
            return halted

        rounds = attempt(lambda: running.advance(STEP_SECONDS, stopping))
        warnings = running.warnings()
        if isinstance(rounds, Failure):
            # What was heard by then counts: the rounds before the one that failed.
            return {"told": Told(running.unreported(), failure=rounds, warnings=warnings), "done": True}
        if not running.done:
            return {"told": Told(rounds, warnings=warnings), "done": halted}
        output = attempt(lambda: replace(running.output(), peak_device_bytes=self._meter.peak()))
        if isinstance(output, Failure):
            return {"told": Told(rounds, failure=output, warnings=warnings), "done": True}
        return {"told": Told(rounds, output=output, warnings=warnings), "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Checkpoints lie in the study's folder."""
