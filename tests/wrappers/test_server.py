"""FedAvgM, FedAdam and FedYogi against their formulas, number by number."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fpl_tune.method import generator
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.wrappers.server import ServerOptimizer


@pytest.mark.parametrize("optimizer", ["avgm", "adam", "yogi"])
def test_three_rounds_are_those_of_the_paper(task: ClientTask, optimizer: Any) -> None:
    method = ServerOptimizer(PromptFL(n_ctx=1), optimizer=optimizer, lr=0.3, beta1=0.8, beta2=0.6, tau=0.02)
    clients, rng = torch.tensor([0, 3]), generator("moves")  # 9 images and 3
    state = method.init(task, rng)
    x, m, v = float(state.shared["prompt"][0, 0]), 0.0, 0.02**2
    for _ in range(3):
        local = method.start(task, state, clients)
        sent = local.params["prompt"] + 0.1 * torch.randn(2, 1, 32, generator=rng, dtype=task.dtype)
        state = method.merge(task, state, clients, local._replace(params={"prompt": sent}))
        move = 0.75 * float(sent[0, 0, 0]) + 0.25 * float(sent[1, 0, 0]) - x
        if optimizer == "avgm":
            m = 0.8 * m + move
            x += 0.3 * m
        else:
            m = 0.8 * m + 0.2 * move
            v = 0.6 * v + 0.4 * move**2 if optimizer == "adam" else v - 0.4 * move**2 * math.copysign(1, v - move**2)
            x += 0.3 * m / (math.sqrt(v) + 0.02)
        assert float(state.shared["prompt"][0, 0]) == pytest.approx(x, abs=1e-12)
