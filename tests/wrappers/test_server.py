"""Wrappers that change the server: SCAFFOLD's control variates, server optimisers."""

import math
from typing import Any

import pytest
import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import generator
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play
from fpl_tune.wrappers.scaffold import Scaffold
from fpl_tune.wrappers.server import ServerOptimizer

METHOD = Scaffold(PromptFL(n_ctx=2))


def test_control_variates_are_those_of_option_two(task: ClientTask) -> None:
    """One client trains in the second round, so that the average is its y: by plain descent in 2 x 3 steps of 0.1."""
    spec = OptimSpec(lr=0.1, batch=4, momentum=0.0, weight_decay=0.0)
    _, (before,), (after,) = play(METHOD, [task], cohorts=[(0, 2), (0,)], spec=spec, epochs=2)
    old, c = before.personal["control.prompt"], before.shared["control.prompt"]
    torch.testing.assert_close(c, old.sum(0) / 4)
    wanted = old[0] - c + (before.shared["prompt"] - after.shared["prompt"]) / (6 * 0.1)
    new = after.personal["control.prompt"]
    torch.testing.assert_close(new[0], wanted)
    assert (new[0] - old[0]).abs().max() > 1e-3
    torch.testing.assert_close(after.shared["control.prompt"], c + (new[0] - old[0]) / 4)
    assert torch.equal(new[1:], old[1:])


def test_uploads_and_downloads_double(task: ClientTask) -> None:
    (state,) = play(METHOD, [task], cohorts=[])[-1]
    sent = METHOD.traffic(task, state, torch.arange(4))
    assert sent.up == sent.down == {"prompt": 64, "control.prompt": 64}


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
