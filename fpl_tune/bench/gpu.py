"""Steps of pFedMoAP on a GPU, measured, or counted and predicted without one.

Both run the text towers of RN50 and ViT-B/16 with random weights, Caltech101's 100 names and random image features: no
download, no data set.
"""

from __future__ import annotations

import multiprocessing
import time
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
from fpl_tune.method import State
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.optim import OptimSpec
from fpl_tune.task import Classes, ClientData, ClientTask
from fpl_tune.testing import toy_towers
from fpl_tune.testing.sim import counting, sim_device, why_not

TOWERS = {"RN50": 1024, "ViT-B-16": 512}
"""Width of the joint embedding. Both text towers have 12 blocks of width 512."""
_BATCH = 32
_RATE, _BANDWIDTH, _LAUNCH = 0.6 * 989e12, 0.8 * 4.8e12, 4e-6
"""Of an H200: bf16 operations a second that large matrix products reach, bytes a second that elementwise kernels reach,
and seconds that the CPU takes to launch a kernel from Python."""
_TRAFFIC = 60
"""Numbers read and written for one token in one block, forward and backward, in widths of the tower."""


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

    The count runs all 12 blocks at a small width and few classes: neither changes the number of kernels. The prediction
    for an H200 in bf16 is the longer of two times: that of the CPU launching kernels, and that of the GPU running
    them (operations at 60 % of the peak rate, 60 numbers a token, width and block through memory at 80 %).

    Raises:
        EnvironmentProblem: this PyTorch cannot simulate a device.
    """
    if reason := why_not():
        raise EnvironmentProblem(f"bench gpu --simulate cannot run: {reason}.")
    steps, rows = Steps(6, progress), []
    for name, embed in TOWERS.items():
        sized = _towers(embed, Size(), torch.float32, torch.device("cpu"))
        sentences = sized.sentences(CALTECH101, 16)
        for seeds in (1, 3):
            steps(f"{name}, {counted(seeds, 'seed')}")
            counts = _counted_step(seeds, embed)
            work = cost(sized.text, sentences, 10 * seeds)
            moved = 2 * _TRAFFIC * work.tokens * sized.text_width * sized.n_text_blocks
            busy = work.operations / _RATE + moved / _BANDWIDTH
            launching = counts["launches"] * _LAUNCH
            rows.append(
                {
                    "bench": f"step of pFedMoAP, {name}, 10 clients, {counted(seeds, 'seed')}",
                    **counts,
                    "operations": work.operations,
                    "predicted_seconds": max(busy, launching),
                    "bound": "launches" if launching > busy else "GPU",
                    "matrix_rate_share": work.operations / max(busy, launching) / (_RATE / 0.6),
                }
            )
    return rows


def _counted_step(seeds: int, embed: int) -> dict[str, int]:
    """What a step of the second round does, by the difference of a round of two steps and one of one."""
    size = Size(names=CALTECH101[:12], width=64, plain=False)
    trial = _Steps(size, seeds, embed, torch.float32, sim_device())
    trial.round(1)
    seen = []
    for steps in (1, 2):
        with counting() as counts:
            trial.round(steps)
        seen.append(counts)
    one, two = seen
    return {what: getattr(two, what).total() - getattr(one, what).total() for what in ("launches", "syncs", "copies")}


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
    trial = _Steps(size, 3, TOWERS["RN50"], dtype, where)
    seconds = once(lambda: [trial.round(size.steps) for _ in range(10)], where)
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
    work = cost(trial.towers.text, trial.towers.sentences(size.names, 16), size.n_clients * seeds)
    row = {"seconds": seconds, "operations": work.operations, "matrix_rate_share": work.operations / seconds / rate}
    row["peak_memory_bytes"] = peak.bytes()
    if size.plain:
        row["plain_seconds"] = once(trial.plain, where) * size.n_clients * seeds
        row["ratio"] = row["plain_seconds"] / seconds
    return row


def _per_step(trial: _Steps, steps: int, where: torch.device) -> float:
    """Seconds of a step, without what a round does besides."""
    short, long = (min(once(lambda n=n: trial.round(n), where) for _ in range(2)) for n in (1, 1 + steps))
    return max(1e-9, long - short) / steps


def _packed(size: Size, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Seconds of the same rounds in one process and in two at the same time; `gain` is over one after another."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_rounds, [(size, dtype, device, 0.0)] * 2))  # each has started and warmed up
        alone = pool.submit(_rounds, (size, dtype, device, 0.0)).result()
        begin = time.time() + 10.0  # by then, both have their towers
        both = max(pool.map(_rounds, [(size, dtype, device, begin)] * 2))
    return {"seconds": both, "seconds_alone": alone, "gain": 2 * alone / both}


def _rounds(job: tuple[Size, torch.dtype, str, float]) -> float:
    """Seconds of three rounds that begin at a time."""
    size, dtype, device, begin = job
    where = torch.device(device)
    trial = _Steps(size, 1, TOWERS["RN50"], dtype, where)
    trial.round(1)
    time.sleep(max(0.0, begin - time.time()))
    return once(lambda: [trial.round(size.steps) for _ in range(3)], where)


class _Steps:
    """Rounds of pFedMoAP on random features, of any number of steps."""

    def __init__(self, size: Size, seeds: int, embed: int, dtype: torch.dtype, where: torch.device) -> None:
        self.towers = _towers(embed, size, dtype, where)
        known = Classes(self.towers, size.names)
        rng = torch.Generator().manual_seed(0)
        images = torch.randn(size.n_clients * _BATCH, embed, generator=rng).to(where)
        label = torch.randint(len(size.names), (len(images),), generator=rng).numpy()
        index = np.split(np.arange(len(images)), size.n_clients)
        data = ClientData(images, index, [label[rows] for rows in index], device=where)
        domain = torch.zeros(size.n_clients, dtype=torch.int64, device=where)
        self.method = PFedMoAP(experts=min(10, size.n_clients), d_gating=128)
        self.tasks = [ClientTask(self.towers, known, data, data, {"test": (known, data)}, domain, 1)] * seeds
        self.states: list[State] = [self.method.init(t, generator(s)) for s, t in enumerate(self.tasks)]
        self.number = 0

    def round(self, steps: int) -> None:
        """All clients take so many steps."""
        self.number += 1
        who = torch.arange(self.tasks[0].n_clients)
        cohorts = [Cohort(seed, self.number, who) for seed in range(len(self.tasks))]
        spec = OptimSpec(batch=_BATCH)
        self.states, _ = run_round(self.method, self.tasks, self.states, cohorts, epochs=steps, spec=spec)

    def plain(self) -> None:
        """What the unmodified tower does for a step of one client: all sentences at their full length."""
        context = self.states[0].shared["prompt"].clone().requires_grad_()
        sentences = self.towers.sentences(self.tasks[0].known.names, len(context))
        torch.autograd.grad(self.towers.encode_prompts(context, sentences, plain=True).sum(), context)


def _towers(embed: int, size: Size, dtype: torch.dtype, where: torch.device) -> Towers:
    """The true text tower beside a toy image tower, with random weights."""
    towers = toy_towers(dtype=dtype, embed=embed, width=size.width, heads=max(1, size.width // 64), layers=size.layers)
    return Towers(towers.model.to(where), towers.tokenizer, name=f"text-{size.layers}x{size.width}")
