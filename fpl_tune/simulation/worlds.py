"""The world, the cohorts and the threads of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip.load import weights_print
from fpl_tune.config import RunSpec
from fpl_tune.core.device import cores
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.core.seeds import generator
from fpl_tune.core.tensors import some_of
from fpl_tune.data import load
from fpl_tune.data.spec import cross_data
from fpl_tune.data.transform import PATCH, View
from fpl_tune.method import Method, State, derive, same_leaves
from fpl_tune.simulation.batches import Cohort, draw_cohort
from fpl_tune.simulation.evaluate import OWN
from fpl_tune.simulation.poison import poisoned
from fpl_tune.simulation.task import ClientTask, SharedData


def task_of(shared: SharedData, run: RunSpec, seed: int) -> ClientTask:
    """The task of one seed of a run."""
    task, protocol = shared.task(run.data, run.partition, seed), run.protocol
    n_clients = task.n_clients
    if protocol.unseen:
        n_unseen = round(protocol.unseen * n_clients)
        if not 0 < n_unseen < n_clients:
            raise ConfigError(
                f"protocol.unseen must leave out some of {n_clients} clients and not all, but {protocol.unseen:g} of "
                f"them are {n_unseen}. Set protocol.unseen=0.5 or partition.n_clients."
            )
        order = torch.randperm(n_clients, generator=generator("unseen", seed)).to(task.device)
        task = task.without(order < n_unseen)
    classes, main = task.tests[task.primary]
    if protocol.global_model:
        task.tests["global"] = classes, main
    if protocol.own_classes:
        task.tests[OWN] = classes, main.only((task.counts > 0).gather(1, main.label))
    task.slow = _some(run.clients.slow.share, task, seed, "slow")
    if (liars := _some(run.clients.malicious.share, task, seed, "malicious")) is not None:
        task = poisoned(task.judged_without(liars), run.clients.malicious, shared, seed)
    if protocol.validation == "everyone":
        judged = task.train.size > 0 if liars is None else (task.train.size > 0) & ~liars.to(task.device)
        task.validation = (task.validation or task.val).pooled().only(judged[:, None])
    trained = max(1, sum(size > 0 for size in task.train.sizes))
    task.cohort = len(draw_clients(run, task, seed, 2))
    task.malicious = 0 if liars is None else round(int(liars.sum()) * task.cohort / trained)
    uniform = protocol.sampling == "uniform" and not (protocol.first_round_all and task.cohort < trained)
    task.participation = task.cohort / trained if uniform else None
    return task


def _some(share: float, task: ClientTask, seed: int, kind: str) -> Tensor | None:
    """[N] bool, on the CPU: a share of the clients that train, at least one, drawn by the seed; None if it is 0."""
    if not share:
        return None
    trained = torch.tensor([client for client, size in enumerate(task.train.sizes) if size])
    number = some_of(share, len(trained))
    if number >= len(trained):
        raise ConfigError(
            f"clients.{kind}.share must leave some of {counted(len(trained), 'client')} as they are, but {share:g} of "
            f"them are {number}. Lower it, or raise partition.n_clients."
        )
    order = torch.randperm(len(trained), generator=generator(kind, seed))
    return torch.zeros(task.n_clients, dtype=torch.bool).index_fill(0, trained[order[:number]], True)


def initial_state(method: Method, task: ClientTask, seed: int, before: State | None = None) -> State:
    """The state before a stage: that of the stage `before` it if it has the same leaves, else the method's own."""
    state = method.init(task, torch.Generator().manual_seed(derive("init", seed)), before)
    return before if before is not None and same_leaves(before, state) else state


def draw_clients(run: RunSpec, task: ClientTask, seed: int, number: int) -> torch.Tensor:
    """[C] the cohort of a round, counted from 1, in the order drawn: clients that have training images."""
    protocol = run.protocol
    trained = torch.tensor([client for client, size in enumerate(task.train.sizes) if size])
    drawn = draw_cohort(
        len(trained),
        protocol.participation,
        seed,
        number,
        everyone=number == 1 and protocol.first_round_all,
        domain=task.domain.cpu()[trained] if protocol.sampling == "domain" else None,
    )
    return trained[drawn]


def work_of(run: RunSpec, task: ClientTask) -> dict[int, float] | None:
    """The share of the local epochs that slow clients do, by client; None if there are none, or the server does not
    wait for them."""
    slow = run.clients.slow
    if task.slow is None or slow.late == "drop":
        return None
    return dict.fromkeys(task.slow.nonzero()[:, 0].tolist(), slow.steps)


def cohort_of(run: RunSpec, task: ClientTask, seed: int, number: int, first: int) -> Cohort:
    """The cohort of a round, and how many clients trained before each of it in the stage that began with `first`."""
    drawn, clients = draw_clients(run, task, seed, number), run.clients
    # All rounds have as many clients, but for the first one, which may take all.
    earlier = [] if number == first else [len(draw_clients(run, task, seed, first))]
    earlier += [len(drawn)] * (number - first - 1)
    before, drawn = sum(earlier) + drawn.argsort(), drawn.sort().values
    absent = torch.rand(task.n_clients, generator=generator("drop", seed, number)) < clients.drop
    work = work_of(run, task)
    late = task.slow if work is None else None
    absent = (absent if late is None else absent | late)[drawn]
    here, liars = drawn[~absent], task.liars
    lying = liars is not None and number >= clients.malicious.from_round and bool(liars[here].any())
    return Cohort(
        seed, number, here, before[~absent], work=work,
        liars=liars[here] if liars is not None and lying else None,
        absent=drawn[absent] if clients.drop or late is not None else None,
    )  # fmt: skip


_worlds: dict[str, SharedData] = {}


def world_of(run: RunSpec, *, cache_dir: Path, device: str = "cpu", progress: Any = None) -> SharedData:
    """The world of a run, built once per process and shared by all trials that agree on towers, data and needs.

    Raises:
        EnvironmentProblem: data or weights are missing, or change while they are read.
    """
    (needs, view, blocks), patch = needs_of(run), patch_of(run)
    dataset = load(run.data, run.partition.file)
    cross = {name: load(cross_data(run.data, name)) for name in run.protocol.cross}
    weights = weights_print(run.clip.name, run.clip.pretrained)
    prints = [each.fingerprint for each in (dataset, *cross.values())]
    settings = [vars(run.clip), weights, vars(run.data), prints, [*cross], needs, view, blocks, patch, device]
    key = json.dumps(settings, sort_keys=True)
    if key not in _worlds:
        _worlds.clear()  # one world at a time: features of a large data set are the bulk of a trial's memory
        _worlds[key] = SharedData.build(
            run.clip, weights, dataset, run.data.views, needs, view, cross, blocks, patch,
            cache_dir=cache_dir, device=device, progress=progress,
        )  # fmt: skip
    return _worlds[key]


def needs_of(run: RunSpec) -> tuple[str, str | None, int | None]:
    """Kind of images and of second views that all stages see, and the last blocks of the image tower that one of them
    changes; None: all."""
    needs = {(stage.method.needs, stage.method.view) for stage in run.stages}
    if len(needs) > 1:
        raise ConfigError(
            f"All stages of a run must see the same kind of images, but they need {sorted(map(str, needs))}."
        )
    changed = [stage.method.image_blocks for stage in run.stages]
    return *needs.pop(), None if None in changed else max(filter(None, changed))


def patch_of(run: RunSpec) -> View | None:
    """The view of images with the patch of a run's backdoor; None: there is no backdoor."""
    backdoor = run.clients.malicious.planted
    return None if backdoor is None else View(PATCH, round(1000 * backdoor.size))


_THREADS_OF_LARGE_TOWERS = 4


def threads_of(run: RunSpec, device: str = "cpu") -> int:
    """CPU threads of a simulation by default: one for compact towers and beside a GPU, up to four for large ones.

    One rule for `run`, studies and the trainable: sums depend on the number of threads in their last digits.
    """
    return 1 if run.clip.name == "compact" or device == "cuda" else min(_THREADS_OF_LARGE_TOWERS, cores())
