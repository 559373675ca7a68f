"""Steps of pFedMoAP on a GPU, measured, or counted and predicted without one.

Both run the text towers of RN50 and ViT-B/16 with random weights, Caltech101's 100 names and random image features: no
download, no data set.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from fpl_tune.batches import Cohort, generator
from fpl_tune.bench.measure import Peak, Progress, Steps, matrix_rate, once
from fpl_tune.bench.texts import CALTECH101
from fpl_tune.clip import Towers
from fpl_tune.clip.text import cost
from fpl_tune.device import gpus
from fpl_tune.engine import run_round
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.formatting import counted
from fpl_tune.graphs import Graphs
from fpl_tune.method import Method, State
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.optim import OptimSpec
from fpl_tune.task import Classes, ClientData, ClientTask
from fpl_tune.testing import toy_towers
from fpl_tune.testing.sim import Counts, Work, counting, idle, recorded_work, sim_device, why_not

TOWERS = {"RN50": 1024, "ViT-B-16": 512}
"""Width of the joint embedding. Both text towers have 12 blocks of width 512."""
_BATCH = 32
_RATE, _BANDWIDTH, _KERNEL, _LAUNCH = 0.6 * 989e12, 0.8 * 4.8e12, 2e-6, 4e-6
"""Of an H200: bf16 operations a second that large matrix products reach, bytes a second that elementwise kernels reach,
seconds that the smallest kernel takes, and seconds that the CPU takes to launch a kernel from Python."""
_ROUNDS, _STEPS = 10, 50
"""Of the trial whose time is predicted."""
_PATIENCE = 300  # seconds that a process waits for the other
METHODS: dict[str, Method] = {"pFedMoAP": PFedMoAP(d_gating=128), "PromptFL": PromptFL()}


class Size(NamedTuple):
    """How large the measured step is."""

    names: tuple[str, ...] = CALTECH101
    n_clients: int = 10
    layers: int = 12
    width: int = 512
    steps: int = 10
    plain: bool = True


def simulate_gpu(progress: Progress | None = None) -> list[dict[str, Any]]:
    """Launches, synchronisations and copies of a step, counted on the simulated accelerator, and its predicted time.

    Launches are counted with all 12 blocks at a small width and few classes: neither changes their number. For the
    prediction, every kernel's operations and bytes are counted at the true width and number of classes for two and
    three clients, and continued to the cohort. On an H200 in bf16, a kernel takes the longest of its operations at
    60 % of the peak rate, its bytes at 80 % of the bandwidth, and 2 microseconds; an eager step takes the longer of its
    kernels and of 4 microseconds a launch, a graphed one its kernels. Two processes that share the GPU take the longer
    of one alone and of the kernels of both.

    Raises:
        EnvironmentProblem: this PyTorch cannot simulate a device.
    """
    if reason := why_not():
        raise EnvironmentProblem(f"bench gpu --simulate cannot run: {reason}.")
    steps, rows = Steps(2 * len(TOWERS) + len(METHODS), progress), []
    counted_ = {}
    for name in METHODS:
        steps(f"launches of {name}")
        counted_[name] = _counted_step(METHODS[name])
    for tower, embed in TOWERS.items():
        sized = _towers(embed, Size(), torch.float32, torch.device("cpu"))
        sentences = sized.sentences(CALTECH101, 16)
        for name in METHODS:
            steps(f"{name}, {tower}", 1)
            works = [_work(METHODS[name], embed, n) for n in (2, 3)]
            for seeds in (1, 3):
                operations = cost(sized.text, sentences, 10 * seeds).operations
                row = {**counted_[name], **_predicted(works, 10 * seeds, counted_[name]["launches"])}
                row = {"bench": f"step of {name}, {tower}, 10 clients, {counted(seeds, 'seed')}", **row}
                row["matrix_rate_share"] = operations / row["graphed_seconds"] / _RATE
                rows.append(row)
            one, three = rows[-2:]
            three["seconds_over_one_seed"] = three["graphed_seconds"] / one["graphed_seconds"]
            three["trial_seconds"] = _ROUNDS * _STEPS * three["graphed_seconds"]
            one["packed_gain"] = 2 * one["predicted_seconds"] / max(one["predicted_seconds"], 2 * one["kernel_seconds"])
    return rows


def _counted_step(method: Method) -> dict[str, int]:
    """What a step of the second round does, by the difference of a round of two steps and one of one; and the launches
    of a replayed one."""
    size = Size(names=CALTECH101[:12], width=64, plain=False)
    trial = _Steps(size, 3, 512, torch.float32, sim_device(), method=method)
    trial.round(1)
    eager, graphed = (_difference(trial, graphs) for graphs in (None, Graphs(always=True)))
    found = {what: getattr(eager, what).total() for what in ("launches", "syncs", "copies")}
    return {**found, "graphed_launches": graphed.launches.total()}


def _difference(trial: _Steps, graphs: Graphs | None) -> Counts:
    """What one more step of a round does."""
    seen = []
    for steps in (2, 1, 2):  # a graph is recorded in the first round
        with counting() as counts:
            trial.round(steps, graphs)
        seen.append(counts)
    _, one, two = seen
    more = {what: getattr(two, what) - getattr(one, what) for what in ("launches", "syncs", "copies")}
    return Counts(**more)


def _work(method: Method, embed: int, n_clients: int) -> list[Work]:
    """The kernels of a step at its true size, in order: those of a recorded step."""
    size, graphs = Size(plain=False, n_clients=10), Graphs(always=True)
    trial = _Steps(size, 1, embed, torch.bfloat16, sim_device(), method=method, cohort=n_clients)
    with idle(), recorded_work() as found:
        trial.round(1, graphs)
    return found


def _predicted(works: Sequence[Sequence[Work]], n_clients: int, launches: int) -> dict[str, Any]:
    """Seconds of a step of many clients, from the kernels of two and three."""
    kernels = 0.0
    for two, three in zip(*works, strict=True):
        assert two.name == three.name
        operations, moved = (a + (n_clients - 2) * (b - a) for a, b in zip(two[1:], three[1:], strict=True))
        kernels += max(operations / _RATE, moved / _BANDWIDTH, _KERNEL)
    launching = launches * _LAUNCH
    return {
        "kernel_seconds": kernels,
        "predicted_seconds": max(kernels, launching),
        "bound": "launches" if launching > kernels else "GPU",
        "graphed_seconds": kernels,
    }


def bench_gpu(
    device: str = "cuda",
    *,
    dtype: torch.dtype = torch.bfloat16,
    size: Size | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Measures the matrix rate, steps of pFedMoAP with 1 and 3 seeds beside the plain path, ten rounds, and two
    processes that share the GPU.

    Args:
        device: `cuda`; `cpu` runs the same, for tests.
        dtype: the towers' arithmetic.
        size: of the steps.
        progress: called as the benchmark advances.

    Raises:
        EnvironmentProblem: there is no GPU.
    """
    size, where = size or Size(), torch.device(device)
    found = gpus()
    if where.type == "cuda" and not found:
        raise EnvironmentProblem("bench gpu measures a GPU, but PyTorch sees none. Count without one: --simulate.")
    name = found[0].name if found else "CPU"
    steps = Steps(2 + 4 * len(TOWERS) + 4, progress)
    steps("the matrix rate")
    rate = matrix_rate(where, dtype)
    rows: list[dict[str, Any]] = [{"bench": f"matrix rate, {name}, {dtype}".replace("torch.", ""), "rate": rate}]
    for tower, embed in TOWERS.items():
        for seeds in (1, 3):
            steps(f"steps of pFedMoAP, {tower}, {counted(seeds, 'seed')}", 2)
            measured = _measured(size, seeds, embed, dtype, rate, where)
            rows.append({"bench": f"step, {tower}, {counted(seeds, 'seed')}", **measured})
    steps("ten rounds", 2)
    trial, graphs = _Steps(size, 3, TOWERS["RN50"], dtype, where), Graphs()
    seconds = once(lambda: [trial.round(size.steps, graphs) for _ in range(_ROUNDS)], where)
    rows.append({"bench": f"ten rounds of {counted(size.steps, 'step')}, RN50, 3 seeds", "seconds": seconds})
    steps("two processes side by side", 2)
    rows.append({"bench": "two processes, RN50, 1 seed each", **_packed(size, dtype, device)})
    return rows


def _measured(
    size: Size, seeds: int, embed: int, dtype: torch.dtype, rate: float, where: torch.device
) -> dict[str, Any]:
    trial = _Steps(size, seeds, embed, dtype, where)
    trial.round(size.steps)
    peak = Peak(where)
    seconds = _per_step(trial, size.steps, where)
    graphed = _per_step(trial, size.steps, where, Graphs(always=where.type == "cuda"))
    work = cost(trial.towers.text, trial.towers.sentences(size.names, 16), size.n_clients * seeds)
    share = work.operations / min(seconds, graphed) / rate
    row = {"seconds": seconds, "graphed_seconds": graphed, "operations": work.operations, "matrix_rate_share": share}
    row["peak_memory_bytes"] = peak.bytes()
    if size.plain:
        row["plain_seconds"] = once(trial.plain, where) * size.n_clients * seeds
        row["ratio"] = row["plain_seconds"] / seconds
    return row


def _per_step(trial: _Steps, steps: int, where: torch.device, graphs: Graphs | None = None) -> float:
    """Seconds of a step, without what a round does besides."""
    if graphs is not None:
        trial.round(1 + steps, graphs)  # records
    short, long = (min(once(lambda n=n: trial.round(n, graphs), where) for _ in range(2)) for n in (1, 1 + steps))
    return max(1e-9, long - short) / steps


def _packed(size: Size, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Seconds of the same rounds in one process and in two at the same time; `gain` is over one after another."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn, initializer=_meet_at, initargs=(spawn.Barrier(2),)) as pool:
        both = max(pool.map(_rounds, [(size, dtype, device, True)] * 2))
        alone = pool.submit(_rounds, (size, dtype, device, False)).result()
    return {"seconds": both, "seconds_alone": alone, "gain": 2 * alone / both}


_barrier: list[Any] = []


def _meet_at(barrier: Any) -> None:
    _barrier[:] = [barrier]


def _rounds(job: tuple[Size, torch.dtype, str, bool]) -> float:
    """Seconds of three rounds, which begin when the other process is ready too."""
    size, dtype, device, together = job
    where, graphs = torch.device(device), Graphs()
    trial = _Steps(size, 1, TOWERS["RN50"], dtype, where)
    trial.round(size.steps, graphs)
    if together:
        _barrier[0].wait(_PATIENCE)
    return once(lambda: [trial.round(size.steps, graphs) for _ in range(3)], where)


class _Steps:
    """Rounds of pFedMoAP on random features, of any number of steps."""

    def __init__(
        self,
        size: Size,
        seeds: int,
        embed: int,
        dtype: torch.dtype,
        where: torch.device,
        *,
        method: Method | None = None,
        cohort: int | None = None,
    ) -> None:
        self.towers = _towers(embed, size, dtype, where)
        known = Classes(self.towers, size.names)
        rng = torch.Generator().manual_seed(0)
        images = torch.randn(size.n_clients * _BATCH, embed, generator=rng).to(where)
        label = torch.randint(len(size.names), (len(images),), generator=rng).numpy()
        index = np.split(np.arange(len(images)), size.n_clients)
        data = ClientData(images, index, [label[rows] for rows in index], device=where)
        domain = torch.zeros(size.n_clients, dtype=torch.int64, device=where)
        self.method = method or PFedMoAP(experts=min(10, size.n_clients), d_gating=128)
        self.cohort = cohort or size.n_clients
        self.tasks = [ClientTask(self.towers, known, data, data, {"test": (known, data)}, domain, 1)] * seeds
        self.states: list[State] = [self.method.init(t, generator(s)) for s, t in enumerate(self.tasks)]
        self.number, self.spec = 0, OptimSpec(batch=_BATCH)

    def round(self, steps: int, graphs: Graphs | None = None) -> None:
        """The cohort takes so many steps."""
        self.number += 1
        who = torch.arange(self.cohort)
        cohorts = [Cohort(seed, self.number, who) for seed in range(len(self.tasks))]
        more = {"epochs": steps, "spec": self.spec, "graphs": graphs}
        self.states, _ = run_round(self.method, self.tasks, self.states, cohorts, **more)

    def plain(self) -> None:
        """What the unmodified tower does for a step of one client: all sentences at their full length."""
        context = self.states[0].shared["prompt"].clone().requires_grad_()
        sentences = self.towers.sentences(self.tasks[0].known.names, len(context))
        torch.autograd.grad(self.towers.encode_prompts(context, sentences, plain=True).sum(), context)


def _towers(embed: int, size: Size, dtype: torch.dtype, where: torch.device) -> Towers:
    """The true text tower beside a toy image tower, with random weights."""
    towers = toy_towers(dtype=dtype, embed=embed, width=size.width, heads=max(1, size.width // 64), layers=size.layers)
    return Towers(towers.model.to(where), towers.tokenizer, name=f"text-{size.layers}x{size.width}")
