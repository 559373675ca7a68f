"""The share of a GPU that one trial takes, estimated before anything runs."""

from __future__ import annotations

import math
from functools import cache

from fpl_tune.config import RunSpec
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.gpus import gpus_here
from fpl_tune.execute.plan.preflight import CONTEXT_BYTES, Loaded
from fpl_tune.simulation import bounds

SLACK = 1.25
"""GPU memory reserved per estimated byte: evaluation, what PyTorch's allocator keeps, fragments."""
SMALLEST = 0.05
"""Smallest share: at most twenty trials on one GPU."""


def gpu_share(run: RunSpec, seeds: int, total: int | None = None) -> float:
    """Estimates the share of a GPU that a trial takes: the default of `execution.gpus`.

    Nothing is trained and no GPU is used. The estimate counts the CUDA context, towers, images, states and what the
    clients that are trained at once keep for their gradients. Runs that differ in floats alone (learning rates, λ)
    share one estimate.

    Args:
        run: the trial's configuration.
        seeds: number of seeds that are trained together.
        total: bytes of the GPU; None: of the smallest one of this machine.

    Returns:
        A share between `SMALLEST` and 1, in hundredths; 1 where the method fails.

    Raises:
        EnvironmentProblem: `total` is None, and this machine has no GPU.
    """
    total = total or _smallest_here()
    try:
        peak = _loaded().memory_of(run, seeds).peak(int(bounds.BLOCK_SHARE * total))
    except Exception:  # a method's own error: the trial reports it with its place
        return 1.0
    share = (SLACK * peak + CONTEXT_BYTES) / total
    return min(1.0, max(SMALLEST, math.ceil(100 * share) / 100))


@cache
def _loaded() -> Loaded:
    """Towers, data sets and estimates that earlier calls of this process loaded."""
    return Loaded()


@cache
def _smallest_here() -> int:
    totals = [total for total, _ in gpus_here()]
    if not totals:
        raise EnvironmentProblem("A share of a GPU needs a GPU, but PyTorch sees none here. Set execution.gpus.")
    return min(totals)
