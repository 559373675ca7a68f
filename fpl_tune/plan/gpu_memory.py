"""The least GPU memory of one client: a run that needs more is refused before anything starts."""

from __future__ import annotations

import math
from dataclasses import replace

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.engine import kept_bytes
from fpl_tune.errors import ConfigError
from fpl_tune.execute.packing import CONTEXT_BYTES
from fpl_tune.formatting import size
from fpl_tune.method import State
from fpl_tune.task import ClientTask


def check(run: RunSpec, task: ClientTask, state: State, free: int) -> None:
    """Refuses a run whose first step of one client does not fit into a GPU's free memory.

    Args:
        run: the run.
        task: the task of one of its seeds, with towers in float32 on the CPU and images that take no memory.
        state: that one seed begins with.
        free: bytes of the GPU that no program holds.

    Raises:
        ConfigError: it does not fit.
    """
    try:
        needed = least(run, task, state)
    except Exception:  # a method's own error: the run reports it with its place
        return
    if needed > free:
        raise ConfigError(
            f"One client of {methods.name_of(run.method)} needs at least {size(needed)} of GPU memory, but the GPU has "
            f"{size(free)} free. Lower optim.batch (now {run.optim.batch}), choose a smaller clip, set "
            "clip.dtype=bfloat16, or use execution.device=cpu."
        )


def least(run: RunSpec, task: ClientTask, state: State) -> int:
    """Bytes of the CUDA context, towers, images, one seed's state, and the activations of one step of one client.

    Activations grow in proportion to the images of a step: they are counted for one and for two images.
    """
    model = task.towers.model
    weights = sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))
    states = sum(leaf.numel() * leaf.element_size() for tree in state for leaf in tree.values())
    sets = {id(held.images): held.images for held in (task.train, task.val, *(held for _, held in task.tests.values()))}
    images = sum(math.prod(x.shape) * x.element_size() for x in sets.values())
    method = run.stages[0].method
    one, two = (kept_bytes(method, task, state, replace(run.optim, batch=n)) for n in (1, 2))
    kept = one + (run.optim.batch - 1) * max(0, two - one)
    share = 1 if run.clip.dtype == "float32" else 2
    return CONTEXT_BYTES + images + states + (weights + kept) // share
