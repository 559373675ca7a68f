from __future__ import annotations

import math

import torch

from fpl_tune.method import generator
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.fedamp import FedAMP
from fpl_tune.testing import EVERYONE, play, toy_task


def test_cloud_prompts_are_convex_mixtures_that_favour_likeness() -> None:
    method = FedAMP(alpha=0.2, sigma=0.7)
    prompts = torch.randn(5, 2, 3, generator=generator("prompts"), dtype=torch.float64)
    prompts[1] = prompts[0] + 0.01
    found = method.mixture(prompts, torch.tensor([3, 0]))
    for row, client in zip(found, (3, 0), strict=True):
        others = {
            j: 0.2 / 0.7 * math.exp(-float((prompts[client] - prompts[j]).square().sum()) / 0.7)
            for j in range(5)
            if j != client
        }
        wanted = [others.get(j, 1 - sum(others.values())) for j in range(5)]
        torch.testing.assert_close(row, torch.tensor(wanted, dtype=torch.float64))
    torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=torch.float64))
    assert bool((found >= 0).all())
    assert found[1, 1] == found[1, 1:].max()


def test_the_attraction_has_a_gradient_towards_the_cloud() -> None:
    task, method = toy_task(), FedAMP(n_ctx=2, lam=0.1, alpha=5.0, sigma=50.0)
    state = play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0]
    local = method.start(task, state, EVERYONE)
    batch = task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))
    grads = []
    for m in (method, CoOp(n_ctx=2)):
        leaf = local.train["prompt"].clone().requires_grad_()
        loss, _ = m.loss(task, local._replace(train={"prompt": leaf}), batch)
        grads.append(torch.autograd.grad(loss.sum(), leaf)[0])
    away = local.train["prompt"] - local.fixed["cloud"]
    assert float(away.abs().max()) > 1e-4
    torch.testing.assert_close(grads[0] - grads[1], 0.1 / 5.0 * away, rtol=1e-6, atol=1e-12)


def test_clients_are_evaluated_with_their_own_prompts() -> None:
    task, method = toy_task(), FedAMP(n_ctx=2)
    state = play(method, [task])[-1][0]
    assert torch.equal(method.deploy(task, state, EVERYONE).train["prompt"], state.personal["prompt"])
    assert torch.equal(state.server["prompt"], state.personal["prompt"])
    traffic = method.traffic(task, state, EVERYONE)
    assert traffic.up == {"prompt": 64}
    assert traffic.down == {"cloud": 64}
