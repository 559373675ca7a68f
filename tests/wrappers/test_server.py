"""Wrappers that change the server: SCAFFOLD's control variates, server optimisers."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import Generator, Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Batch, Local, Method, State, Task, generator
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play, toy_task
from fpl_tune.wrappers.scaffold import Scaffold
from fpl_tune.wrappers.server import ServerOptimizer

METHOD = Scaffold(PromptFL(n_ctx=2))
SIZES = (20, 2, 3, 2)
"""Training images of the clients."""


@dataclass(frozen=True)
class Quadratic(FederatedAveraging):
    """Client i's loss is h_i / 2 (w - t_i)²: its gradient is known, and that of all clients has one zero."""

    weights: Literal["size", "uniform"] = "size"
    h = torch.tensor([0.5, 1.0, 2.0, 3.0]).double()
    t = torch.tensor([1.0, -2.0, 4.0, -3.0]).double()

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State({"w": torch.zeros(1, dtype=task.dtype)}, {}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return super().start(task, state, clients)._replace(buffers={"client": clients})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return batch.image.new_zeros(*batch.label.shape, task.n_classes)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        at = local.buffers["client"]
        return self.h[at] / 2 * (local.params["w"][:, 0] - self.t[at]).square(), local.buffers


def test_control_variates_are_those_of_option_two(task: ClientTask) -> None:
    """One client trains in the second round, so that the average is its y: by plain descent in 2 x 3 steps of 0.1."""
    spec = OptimSpec(lr=0.1, batch=4, momentum=0.0, weight_decay=0.0)
    _, (before,), (after,) = play(METHOD, [task], cohorts=[(0, 2), (0,)], spec=spec, epochs=2)
    old, c = before.personal["control.prompt"], before.shared["control.prompt"]
    share = (task.size.to(task.dtype) / task.size.sum()).view(-1, 1, 1)
    assert share.flatten().unique().numel() > 1
    torch.testing.assert_close(c, (share * old).sum(0))
    wanted = old[0] - c + (before.shared["prompt"] - after.shared["prompt"]) / (6 * 0.1)
    new = after.personal["control.prompt"]
    torch.testing.assert_close(new[0], wanted)
    assert (new[0] - old[0]).abs().max() > 1e-3
    torch.testing.assert_close(after.shared["control.prompt"], c + share[0] * (new[0] - old[0]))
    assert torch.equal(new[1:], old[1:])


def test_a_client_of_one_step_keeps_that_steps_gradient() -> None:
    task, method = toy_task(), Scaffold(Quadratic())
    spec = OptimSpec(lr=0.1, batch=100, momentum=0.0, weight_decay=0.0)
    (state,) = play(method, [task], cohorts=[range(4)], spec=spec, epochs=1)[-1]
    gradient = -Quadratic.h * Quadratic.t  # at the zero that everybody received
    torch.testing.assert_close(state.personal["control.w"][:, 0], gradient)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_rounds_end_where_the_weighted_gradient_is_zero(weights: Any) -> None:
    """With clients of 20, 2, 3 and 2 images and an epoch of several steps, where averaging alone ends elsewhere."""
    task, spec = toy_task(sizes=SIZES), OptimSpec(lr=0.1, batch=2, momentum=0.0, weight_decay=0.0)
    share = torch.tensor(SIZES if weights == "size" else (1, 1, 1, 1)).double()

    def gradient(method: Method) -> float:
        """Σ share · g_i at the last of many rounds."""
        (state,) = play(method, [task], cohorts=[(0, 1, 2, 3)] * 75, spec=spec)[-1]
        return float((share / share.sum() * Quadratic.h * (state.shared["w"] - Quadratic.t)).sum())

    assert abs(gradient(Scaffold(Quadratic(weights), weights=weights))) < 1e-9
    assert abs(gradient(Quadratic(weights))) > 0.1


def test_two_averages_are_refused(task: ClientTask) -> None:
    with pytest.raises(ConfigError, match=r"method\.weights must be uniform where method\.inner\.weights is, but is"):
        Scaffold(Quadratic("uniform")).check(task)


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
