import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linprog
from torch import Tensor

from fpl_tune.method import Batch, generator
from fpl_tune.methods._transport import transport
from fpl_tune.methods.fedotp import FedOTP
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="patches")


def similarities(*lead: int, seed: int = 0) -> Tensor:
    return 0.2 + 0.1 * torch.randn(*lead, 2, 9, generator=generator("alike", seed), dtype=torch.float64)


@pytest.mark.parametrize("gamma", [0.4, 0.8])
def test_with_little_entropy_it_is_the_linear_programme(gamma: float) -> None:
    alike = similarities(1, seed=3)[0]
    plan = transport(alike, gamma, 0.005, 5_000)
    receive = np.kron(np.eye(2), np.ones(9))
    give = np.kron(np.ones(2), np.eye(9))
    best = linprog(-alike.flatten().numpy(), give, np.full(9, 1 / 9), receive, np.full(2, gamma / 2))
    assert float((plan * alike).sum()) == pytest.approx(-best.fun, abs=5e-3)


def on_logarithms(alike: Tensor, gamma: float, epsilon: float, iterations: int) -> Tensor:
    """The same iteration with logarithms of kernel and scalings, which cannot overflow."""
    kernel, v = (alike - 1) / epsilon, torch.zeros_like(alike[..., :1])
    u = v
    for _ in range(iterations):
        u = (-math.log(alike.shape[-1]) - (kernel + v).logsumexp(-2, keepdim=True)).clamp(max=0)
        v = math.log(gamma / 2) - (kernel + u).logsumexp(-1, keepdim=True)
    return (kernel + u + v).exp()


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("iterations", [1, 100])
def test_the_iteration_agrees_with_logarithms_over_the_whole_range(spread: float, iterations: int) -> None:
    alike = (spread / 0.1 * (similarities(20) - 0.2)).clamp(-1, 1)
    alike[0] = torch.tensor([[-1.0], [1.0]])  # the widest gap between the prompts
    alike[1, :, 0], alike[1, :, 1:] = 1.0, -1.0  # and between the patches
    for epsilon in (0.005, 0.1):
        wanted = on_logarithms(alike, 0.8, epsilon, iterations)
        torch.testing.assert_close(transport(alike, 0.8, epsilon, iterations), wanted, rtol=1e-8, atol=1e-12)


def plain_iteration(alike: Tensor, gamma: float, epsilon: float, iterations: int) -> Tensor:
    """The same iteration on one pair of prompts, without logarithms: similarities [2, M] -> plan [2, M]."""
    kernel, n = torch.exp(-(1 - alike) / epsilon).T, alike.shape[1]
    v = torch.ones(2, dtype=alike.dtype)
    u = torch.ones(n, dtype=alike.dtype)
    for _ in range(iterations):
        u = torch.minimum(1 / (n * kernel @ v), torch.ones_like(u))
        v = gamma / 2 / (kernel.T @ u)
    return (u[:, None] * kernel * v).T


def test_logits_and_gradient_are_those_of_the_equations(task: ClientTask, batch: Batch) -> None:
    method = FedOTP(n_ctx=2, epsilon=0.1, iterations=7)
    local = method.start(task, play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0], EVERYONE)
    leaves = {n: leaf.requires_grad_() for n, leaf in local.params.items()}
    found, total = method.logits(task, local, batch), torch.zeros((), dtype=task.dtype)
    for client in range(4):
        text = [task.encode_prompts(leaves[n][client]) for n in ("prompt", "own")]
        for image, logits in zip(F.normalize(batch.image[client], dim=-1), found[client], strict=True):
            for c in range(task.n_classes):
                alike = torch.stack([image @ t[c] for t in text])
                plan = plain_iteration(alike.detach(), 0.8, 0.1, 7)
                wanted = task.scale * (plan * alike).sum()
                torch.testing.assert_close(logits[c], wanted, rtol=1e-9, atol=1e-9)
                total = total + wanted * (c + 1)
    weight = torch.arange(1.0, task.n_classes + 1, dtype=task.dtype)
    ours = torch.autograd.grad((found * weight).sum(), list(leaves.values()))
    for mine, theirs in zip(ours, torch.autograd.grad(total, list(leaves.values())), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)
