"""Exact bytes of a run, without training: they depend on cohorts and shapes, not on values."""

from __future__ import annotations

import torch

from fpl_tune.clip import Towers
from fpl_tune.config import RunSpec
from fpl_tune.data import Dataset
from fpl_tune.method import Method, State, Traffic, derive
from fpl_tune.simulation.simulation import BYTES_PER_SCALAR
from fpl_tune.simulation.task import ClientTask, SharedData
from fpl_tune.simulation.worlds import draw_clients, task_of

_STEADY = 3  # equal rounds after which a stage with everybody in every round stays as it is


def bytes_of(run: RunSpec, seed: int, towers: Towers, dataset: Dataset) -> tuple[int, int]:
    """Bytes sent up and down by all clients over the whole run.

    Every round is played with `start` and `merge` alone on images that are all zero; nothing is encoded or trained.
    """
    task = hollow_task(run, seed, towers, dataset)
    up = down = number = 0
    state: State | None = None
    for stage in run.stages:
        state = stage.method.init(task, torch.Generator().manual_seed(derive("init", seed)), state)
        if number == 0 and not stage.method.start(task, state, torch.arange(1)).params:
            return _scalars_of(stage.method, task, state, torch.arange(task.n_clients))
        recent: list[tuple[int, int]] = []
        for within in range(stage.rounds):
            number += 1
            now = task.during(within + 1, stage.rounds, key=0)
            who = draw_clients(run, now, seed, number)
            sent = _scalars_of(stage.method, now, state, who)
            up, down = up + sent[0], down + sent[1]
            recent = [*recent[1 - _STEADY :], sent]
            if run.protocol.participation == 1 and len(recent) == _STEADY and len(set(recent)) == 1:
                left = stage.rounds - within - 1
                up, down, number = up + left * sent[0], down + left * sent[1], number + left
                break
            with torch.no_grad():
                state = stage.method.merge(now, state, who, stage.method.start(now, state, who))
    return up, down


def hollow_task(run: RunSpec, seed: int, towers: Towers, dataset: Dataset) -> ClientTask:
    """A task whose images are zeros that take no memory."""
    needs = run.stages[0].method.needs
    size = towers.image_size
    shape = {
        "pooled": (towers.embed_dim,),
        "patches": (towers.n_patches or 1, towers.embed_dim),
        "pixels": (3, size, size),
    }[needs]
    dtype = torch.uint8 if needs == "pixels" else torch.float32
    images = [torch.zeros(1, dtype=dtype).expand(max(1, len(pool)), *shape) for pool in (dataset.train, dataset.test)]
    world = SharedData(towers, dataset, run.clip, images[0], images[1])
    return task_of(world, run, seed)


def _scalars_of(method: Method, task: ClientTask, state: State, who: torch.Tensor) -> tuple[int, int]:
    with torch.no_grad():
        sent: Traffic = method.traffic(task, state, who)
    totals = []
    for way in (sent.up, sent.down):
        scalars = sum(int(v.sum()) if isinstance(v, torch.Tensor) else v * len(who) for v in way.values())
        totals.append(scalars * BYTES_PER_SCALAR)
    return totals[0], totals[1]
