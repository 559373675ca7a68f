"""Steps of pFedMoAP for measurements on a GPU.

The text tower of RN50, whose blocks are those of ViT-B/16, has random weights, the classes are Caltech101's 100, and
image features are random: no download, no data set. `gpu_checks.py` measures these steps; `simulated_gpu.py` counts and
predicts them without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from fpl_tune.bench.texts import CALTECH101
from fpl_tune.clip import Towers
from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import State, generator
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.task import Classes, ClientData, ClientTask
from fpl_tune.testing import toy_towers

BATCH = 32


class Size(NamedTuple):
    """Size of the measured steps: of RN50's text tower, the classes and the cohort."""

    names: tuple[str, ...] = CALTECH101
    n_clients: int = 10
    layers: int = 12
    width: int = 512
    embed: int = 1024
    steps: int = 10


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
