"""Lower bounds of a run's work and memory from its sizes, so that an infeasible run is refused before it starts."""

from __future__ import annotations

import math

from fpl_tune.config import RunSpec, Stage
from fpl_tune.core import formatting
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import State
from fpl_tune.simulation.task import ClientTask

STEPS = 100_000_000
"""Most training steps of a client in a run: days at the fastest step."""
SHARE = 0.9
"""Share of a machine's memory that a trial may fill."""


def check(run: RunSpec, task: ClientTask, seeds: int, memory: int | None) -> None:
    """Refuses a run whose rounds have too many steps, or tables that no memory holds.

    Args:
        run: the run.
        task: the task of one of its seeds.
        seeds: number of seeds that are trained together.
        memory: of the machine in bytes; None: not known.

    Raises:
        ConfigError: the run needs more.
    """
    largest, batch = max(task.train.sizes, default=0), run.optim.batch
    learning = [stage for stage in run.stages if stage.method.learns]
    steps = sum(stage.rounds * _steps(stage, largest, batch) for stage in learning)
    if steps > STEPS:
        raise ConfigError(
            f"A client takes {STEPS:,} training steps at most, but {formatting.counted(run.rounds, 'round')} over "
            f"{formatting.counted(largest, 'image')} in batches of {batch:,} make {steps:,}. Lower protocol.rounds or "
            "protocol.epochs."
        )
    cohort = math.ceil(run.protocol.participation * task.n_clients)
    rows = max((_steps(stage, largest, batch) * batch for stage in learning), default=0)
    needed = 16 * seeds * cohort * rows  # a round's plan holds two 64-bit integers for each image of each step
    if memory is not None and needed > SHARE * memory:
        raise ConfigError(
            f"{_too_much('A round', needed, memory, seeds)} and {formatting.counted(cohort, 'client')}. "
            f"Lower protocol.epochs, optim.batch, or the number of seeds."
        )


def check_state(state: State, seeds: int, memory: int | None) -> None:
    """Refuses a run whose seeds' states do not fit into memory together.

    Args:
        state: of one seed.
        seeds: number of seeds that are trained together.
        memory: of the machine in bytes; None: not known.

    Raises:
        ConfigError: the states need more.
    """
    sizes = [(leaf.nbytes, name) for tree in state for name, leaf in tree.items()]
    needed = seeds * sum(size for size, _ in sizes)
    if memory is not None and needed > SHARE * memory:
        _, name = max(sizes)
        raise ConfigError(
            f"{_too_much('What is learned', needed, memory, seeds)}; its largest part is {name}. Lower the number of "
            "seeds or clients, or a size of the method."
        )


def _steps(stage: Stage, images: int, batch: int) -> int:
    """Training steps of a client in one round."""
    return math.ceil(stage.epochs) * -(-images // batch)


def _too_much(what: str, needed: int, memory: int, seeds: int) -> str:
    return (
        f"{what} needs at least {formatting.size(needed)} of memory, but this machine has {formatting.size(memory)}, "
        f"with {formatting.counted(seeds, 'seed')}"
    )
