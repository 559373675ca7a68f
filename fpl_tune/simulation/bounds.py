"""The memory of a trial: a run that does not fit is refused before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.core.device import activation_bytes
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted, size
from fpl_tune.method import State, Tree
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.engine import kept_bytes
from fpl_tune.simulation.task import ClientTask
from fpl_tune.simulation.worlds import draw_clients

SHARE = 0.9
"""Share of a machine's memory that a trial may fill."""
BLOCK_BYTES, BLOCK_SHARE = 1 << 30, 0.2
"""Activations kept for the backward pass of one block of clients: bytes on the CPU, a share of a GPU's memory."""


@dataclass(frozen=True)
class Memory:
    """The memory that a trial takes while it trains: bytes by part. See `estimate`."""

    towers: int
    images: int
    states: int
    """Of all seeds that are trained together."""
    batches: int
    """Of a round's table of batches: two 64-bit integers for each image of each step of each client."""
    step: int
    """Kept by one step of one client for its gradient."""
    client: int
    """One client's leaves, their gradients and the optimiser's."""
    clients: int
    """Clients of the largest round, of all seeds."""

    def of_seeds(self, seeds: int) -> Memory:
        """The memory of as many seeds trained together, from that of one."""
        return replace(self, states=seeds * self.states, batches=seeds * self.batches, clients=seeds * self.clients)

    @property
    def least(self) -> int:
        """Bytes with one client trained at a time."""
        return self.towers + self.images + self.states + self.batches + self.step + self.client

    def peak(self, room: int) -> int:
        """Bytes with as many clients at once as `clients_at_once` lets into `room`."""
        return self.least + (min(self.clients, clients_at_once(self.step, room)) - 1) * (self.step + self.client)


def estimate(run: RunSpec, task: ClientTask, state: State, step: int | None = None) -> Memory:
    """Estimates the memory of a trial of one seed from shapes; nothing is trained.

    Args:
        run: the run.
        task: its task; the images may be expanded zeros.
        state: its initial state.
        step: what `step_bytes` found; None: it is asked.
    """
    model, method = task.towers.model, checked(run.stages[0].method)
    sets = {id(data.images): data.images for data in (task.train, task.val, *(held for _, held in task.tests.values()))}
    if task.train.patched is not None:
        sets[id(task.train.patched)] = task.train.patched
    with torch.no_grad():
        local = method.start(task, state, task.size.argmax()[None])
    clients = len(draw_clients(run, task, 1, 1))
    return Memory(
        towers=sum(leaf.nbytes for leaf in (*model.parameters(), *model.buffers())) // _halved(run),
        images=sum(table.nbytes for table in sets.values()),
        states=_state_bytes(state),
        batches=_batch_bytes(run, task, clients),
        step=step_bytes(run, task, state) if step is None else step,
        client=3 * _bytes(local.params) + _bytes(local.buffers),
        clients=clients,
    )


def step_bytes(run: RunSpec, task: ClientTask, state: State) -> int:
    """Bytes that one step of one client keeps for its gradient. Those of pixels, which are costly to count, grow in
    proportion to the images of the step, and are counted for one and for two."""
    _ = task.hand_text  # encoded once and kept: no part of a step
    method, batch = checked(run.stages[0].method), run.optim.batch
    if method.needs != "pixels":
        return kept_bytes(method, task, state, run.optim) // _halved(run)
    one, two = (kept_bytes(method, task, state, replace(run.optim, batch=n)) for n in (1, 2))
    return (one + (batch - 1) * max(0, two - one)) // _halved(run)


def clients_at_once(step: int, room: int) -> int:
    """Number of clients that are trained at once where each keeps `step` bytes and all may keep `room`."""
    return max(1, room // max(1, step))


def block_room(device: torch.device) -> int:
    """Bytes that the clients that are trained at once may keep for their gradients, by the device's size alone."""
    return activation_bytes(device, cpu=BLOCK_BYTES, share=BLOCK_SHARE)


def check_state(state: State, seeds: int, memory: int | None) -> None:
    """Refuses a run whose seeds' states do not fit into memory together, but for the leaves that are mapped from files.

    Args:
        state: of one seed.
        seeds: number of seeds that are trained together.
        memory: of the machine in bytes; None: not known.

    Raises:
        ConfigError: the states need more.
    """
    leaves = {name: leaf.nbytes for tree in state for name, leaf in tree.items() if not leaf.untyped_storage().filename}
    needed = seeds * sum(leaves.values())
    if memory is not None and needed > SHARE * memory:
        name = max(leaves, key=leaves.__getitem__)
        raise ConfigError(
            f"What is learned needs at least {size(needed)} of memory, but this machine has {size(memory)}, with "
            f"{counted(seeds, 'seed')}; its largest part is {name}. Lower the number of seeds or clients, or a size of "
            "the method."
        )


def check_gpu(memory: Memory, run: RunSpec, free: int) -> None:
    """Refuses a run of which not even one client fits into a GPU.

    Args:
        found: the trial's memory.
        run: the run.
        free: bytes of the GPU that no program holds, a CUDA context aside.

    Raises:
        ConfigError: it needs more.
    """
    if memory.least > free:
        raise ConfigError(
            f"One client of {methods.name_of(run.method)} needs at least {size(memory.least)} of GPU memory, but the "
            f"GPU has {size(max(0, free))} free. Lower optim.batch (now {run.optim.batch}), choose a smaller clip, set "
            "clip.dtype=bfloat16, or use execution.device=cpu."
        )


def _batch_bytes(run: RunSpec, task: ClientTask, clients: int) -> int:
    largest, batch = max(task.train.sizes, default=0), run.optim.batch
    epochs = max((math.ceil(stage.epochs) for stage in run.stages if stage.method.learns), default=0)
    return 16 * clients * epochs * -(-largest // batch) * batch


def _state_bytes(state: State) -> int:
    return sum(_bytes(tree) for tree in state)


def _bytes(tree: Tree) -> int:
    return sum(leaf.nbytes for leaf in tree.values())


def _halved(run: RunSpec) -> int:
    """By how much towers and what they compute are smaller than the float32 that bytes are counted in."""
    return 1 if run.clip.dtype == "float32" else 2
