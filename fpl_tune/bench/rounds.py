"""Benchmark of a round, compared with the plain path."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fpl_tune import methods
from fpl_tune.bench.measure import BenchRow, OnProgress, Steps, TowerMeter, images_progress, once
from fpl_tune.config import RunSpec
from fpl_tune.core.formatting import counted
from fpl_tune.data import features
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientData, ClientTask

_TEST_BATCH = 100
PLAIN_STEPS = 2  # steps of the plain path that are measured, and scaled to the number of steps of a round


def bench_round(
    run: RunSpec, device: str = "cpu", *, cache_dir: Path, progress: OnProgress | None = None
) -> list[BenchRow]:
    """Measures one round of one seed, training and evaluation. It is the second one, so that experts exist."""
    trial = Simulation(run, [1], cache_dir=cache_dir, device=device, progress=images_progress(progress))
    steps, meter = Steps(7, progress), TowerMeter(trial.world.towers)
    steps("the round before", 2)
    trial.step()
    steps("the measured round", 2)
    with meter.on():
        trial.step()
    plain, measured = _plain_round(trial, cache_dir, steps)
    note = (
        f"{counted(trial.tasks[0].n_clients, 'client')}, {counted(run.protocol.epochs, 'local epoch')}, "
        f"{counted(trial.tasks[0].n_classes, 'class', 'classes')}; {measured}"
    )
    return [meter.row(f"round {methods.name_of(run.method)} {trial.world.towers.name}", plain, note)]


def plain_task(trial: Simulation, cache_dir: Path) -> ClientTask:
    """The first seed's task on the plain path, which encodes images at every use and whole sentences, without caches.

    A method that needs pixels runs the image tower itself on both paths.
    """
    task, world = trial.tasks[0], trial.world
    needs = trial.stages[0].method.needs

    class InLoop:
        """Encodes pixels at every use."""

        def normalise(self, images: Tensor) -> Tensor:
            pixels = task.towers.normalise(images)
            return pixels if needs == "pixels" else task.towers.encode_images(pixels, patches=needs == "patches")

    def seen(data: ClientData, images: Tensor) -> ClientData:
        rows = [r[m].cpu().numpy() for r, m in zip(data.rows, data.mask, strict=True)]
        labels = [r[m].cpu().numpy() for r, m in zip(data.label, data.mask, strict=True)]
        return ClientData(images, rows, labels, towers=InLoop(), dtype=data.dtype, device=data.device)  # type: ignore[arg-type]

    train, test = (
        features(pool, task.towers, needs="pixels", cache_dir=cache_dir)
        for pool in (world.dataset.train, world.dataset.test)
    )
    classes = replace(task.known, plain=True)
    tests = {task.primary: (classes, seen(task.tests[task.primary][1], test))}
    return replace(task, train=seen(task.train, train), tests=tests, known=classes, passed=0)


def _plain_round(trial: Simulation, cache_dir: Path, steps: Steps) -> tuple[float, str]:
    """Seconds of the plain path for the same round, estimated from a few steps and a test batch of one client."""
    method, task, state = trial.stages[0].method, trial.tasks[0], trial.states[0]
    plain = plain_task(trial, cache_dir)
    batch, sizes = trial.run.optim.batch, task.size.tolist()
    client = max(range(task.n_clients), key=lambda c: sizes[c])
    few = min(sizes[client], PLAIN_STEPS * batch)
    clients = torch.tensor([client], device=task.device)
    steps("the plain path: a client before its first step")
    per_client = once(torch.no_grad()(partial(method.start, plain, state, clients)), task.device)
    steps(f"the plain path: {counted(-(-few // batch), 'step')} of a client")
    per_step = _step_seconds(trial, plain, clients, few, per_client)
    n_steps = math.ceil(sum(-(-size // batch) for size in sizes) * trial.stages[0].epochs)
    test = plain.tests[task.primary][1]
    index = torch.arange(min(_TEST_BATCH, int(test.size[client])), device=task.device)[None]
    local = torch.no_grad()(method.deploy)(plain, state, clients)
    steps("the plain path: a test batch")
    per_batch = once(torch.no_grad()(lambda: method.logits(plain, local, test.batch(clients, index))), task.device)
    batches = sum(-(-int(n) // _TEST_BATCH) for data in (task.val, test) for n in data.size)
    seconds = per_client * task.n_clients + per_step * n_steps + per_batch * batches
    return seconds, (
        f"plain: {per_client:.3g} s a client before its first step, {per_step:.3g} s a step x {n_steps}, "
        f"{per_batch:.3g} s a test batch x {batches}, each measured once"
    )


def _step_seconds(trial: Simulation, task: ClientTask, clients: Tensor, few: int, before: float) -> float:
    """Seconds of a local step of one client with only a `few` images, without the seconds `before` its first step."""
    short, spec = copy(task.train), trial.run.optim
    short.size, short.sizes = torch.full_like(short.size, few), [few] * len(short.sizes)
    tasks, cohorts = [replace(task, train=short)], [Cohort(1, 99, clients)]
    method = trial.stages[0].method
    train = partial(run_round, method, tasks, [trial.states[0]], cohorts, epochs=1, spec=spec, block=1)
    return max(1e-9, once(train, task.device) - before) / -(-few // spec.batch)
