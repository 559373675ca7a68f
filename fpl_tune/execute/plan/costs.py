"""The time and the memory of a trial, known before it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch

from fpl_tune.config import RunSpec
from fpl_tune.core import plugins
from fpl_tune.execute.job import ExecutionContext
from fpl_tune.execute.plan.preflight import Loaded

Basis = Literal["earlier runs", "measured", "typical"]
"""Where an estimated time comes from."""

TRIAL_SECONDS = 0.5
"""Typical seconds of a trial besides its rounds: its set-up, and its files."""
_STEP, _PER_BYTE, _GPU = 0.5e-3, 4e-9, 0.05
"""Typical seconds of one client's step on a core: of any step, and for each byte that it keeps for its gradient; and
the share of it that a GPU takes. Measured on methods from prompts to whole models; a factor of two is usual."""
_MEASURED = 2  # rounds


def typical_pace(run: RunSpec, loaded: Loaded, device: str) -> float:
    """Typical seconds of a round of one seed, from the number of its steps and what they keep for their gradients."""
    task, memory = loaded.task_of(run), loaded.memory_of(run)
    stages = [stage for stage in run.stages if stage.method.learns]
    epochs = sum(stage.rounds * stage.epochs for stage in stages) / max(1, run.rounds)
    steps = run.protocol.participation * epochs * sum(-(-n // run.optim.batch) for n in task.train.sizes)
    return (0.01 + steps * (_STEP + _PER_BYTE * memory.step)) * (1 if device == "cpu" else _GPU)


@plugins.located()
def measured_pace(run: RunSpec, seeds: Sequence[int], setup: ExecutionContext) -> float:
    """Seconds of a round of one seed: the last of two rounds that this process trains now."""
    torch.set_num_threads(setup.threads)
    trial = setup.simulation(run, seeds)
    seconds = 0.0
    for _ in range(min(_MEASURED, trial.rounds)):
        began = time.perf_counter()
        trial.step()
        seconds = time.perf_counter() - began
    return seconds / len(seeds)
