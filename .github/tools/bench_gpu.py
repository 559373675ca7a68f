"""Steps of pFedMoAP on a GPU, measured.

The text tower of RN50, whose blocks are those of ViT-B/16, has random weights, the classes are Caltech101's 100, and
image features are random: no download, no data set. `simulated_gpu.py` counts and predicts the same steps without a
GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fpl_tune.clip import Towers
from fpl_tune.clip.text import cost
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.device import gpus
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.formatting import counted
from fpl_tune.method import State, generator
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.task import Classes, ClientData, ClientTask
from fpl_tune.testing import toy_towers
from fpl_tune.testing.bench.measure import Peak, Progress, Row, Steps, matrix_rate, once
from fpl_tune.testing.bench.texts import CALTECH101

BATCH = 32


class Size(NamedTuple):
    """Size of the measured steps: of RN50's text tower, the classes and the cohort."""

    names: tuple[str, ...] = CALTECH101
    n_clients: int = 10
    layers: int = 12
    width: int = 512
    embed: int = 1024
    steps: int = 10


def bench_gpu(
    device: str = "cuda",
    *,
    dtype: torch.dtype = torch.bfloat16,
    size: Size | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Measures the matrix rate, and steps of pFedMoAP with 1 and 3 seeds beside the plain path.

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
        raise EnvironmentProblem(
            "bench.py gpu measures a GPU, but PyTorch sees none here. Run it on a machine with one."
        )
    name = found[0].name if found else "CPU"
    steps = Steps(3, progress)
    steps("the matrix rate")
    rate = matrix_rate(where, dtype)
    rows: list[Row] = [{"bench": f"matrix rate, {name}, {dtype}".replace("torch.", ""), "rate": rate}]
    for seeds in (1, 3):
        steps(f"steps of pFedMoAP, {counted(seeds, 'seed')}")
        rows.append({"bench": f"step, RN50, {counted(seeds, 'seed')}", **_measured(size, seeds, dtype, rate, where)})
    return rows


def _measured(size: Size, seeds: int, dtype: torch.dtype, rate: float, where: torch.device) -> Row:
    trial = StepsOfRounds(size, seeds, dtype, where)
    trial.round(size.steps)
    peak = Peak(where)
    seconds = _per_step(trial, size.steps, where)
    graphed = _per_step(trial, size.steps, where, Graphs(always=where.type == "cuda"))
    work = cost(trial.towers.text, trial.towers.sentences(size.names, 16), size.n_clients * seeds)
    peak_bytes, plain = peak.bytes(), once(trial.plain, where) * size.n_clients * seeds
    return {
        "seconds": seconds,
        "graphed_seconds": graphed,
        "operations": work.operations,
        "matrix_rate_share": work.operations / min(seconds, graphed) / rate,
        "peak_memory_bytes": peak_bytes,
        "plain_seconds": plain,
        "ratio": plain / seconds,
    }


def _per_step(trial: StepsOfRounds, steps: int, where: torch.device, graphs: Graphs | None = None) -> float:
    """Seconds of a step; the overhead of a round is not included."""
    if graphs is not None:
        trial.round(1 + steps, graphs)  # records
    short, long = (min(once(lambda n=n: trial.round(n, graphs), where) for _ in range(2)) for n in (1, 1 + steps))
    return max(1e-9, long - short) / steps


class StepsOfRounds:
    """Rounds of pFedMoAP on random features, of any number of steps."""

    def __init__(self, size: Size, seeds: int, dtype: torch.dtype, where: torch.device, cohort: int = 0):
        self.towers = text_towers(size, dtype, where)
        known = Classes(self.towers, size.names)
        rng = torch.Generator().manual_seed(0)
        images = torch.randn(size.n_clients * BATCH, size.embed, generator=rng).to(where)
        label = torch.randint(len(size.names), (len(images),), generator=rng).numpy()
        index = np.split(np.arange(len(images)), size.n_clients)
        data = ClientData(images, index, [label[rows] for rows in index], device=where)
        domain = torch.zeros(size.n_clients, dtype=torch.int64, device=where)
        self.method = PFedMoAP(experts=min(10, size.n_clients), d_gating=128)
        self.cohort = cohort or size.n_clients
        self.tasks = [ClientTask(self.towers, known, data, data, {"test": (known, data)}, domain, 1)] * seeds
        self.states: list[State] = [self.method.init(t, generator(s)) for s, t in enumerate(self.tasks)]
        self.number, self.spec = 0, OptimSpec(batch=BATCH)

    def round(self, steps: int, graphs: Graphs | None = None) -> None:
        """Trains the cohort for a number of steps."""
        self.number += 1
        clients = torch.arange(self.cohort)
        cohorts = [Cohort(seed, self.number, clients) for seed in range(len(self.tasks))]
        more = {"epochs": steps, "spec": self.spec, "graphs": graphs}
        self.states, _ = run_round(self.method, self.tasks, self.states, cohorts, **more)

    def plain(self) -> None:
        """A step of one client on the unmodified tower: all sentences at their full length."""
        context = self.states[0].shared["prompt"].clone().requires_grad_()
        sentences = self.towers.sentences(self.tasks[0].known.names, len(context))
        torch.autograd.grad(self.towers.encode_prompts(context, sentences, plain=True).sum(), context)


def text_towers(size: Size, dtype: torch.dtype, where: torch.device) -> Towers:
    """The true text tower beside a toy image tower, with random weights."""
    towers = toy_towers(
        dtype=dtype, embed=size.embed, width=size.width, heads=max(1, size.width // 64), layers=size.layers
    )
    return Towers(towers.model.to(where), towers.tokenizer, name=f"text-{size.layers}x{size.width}")
