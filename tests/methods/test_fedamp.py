import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Tree, generator
from fpl_tune.methods.fedamp import FedAMP
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


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


def test_loss_and_gradient_are_those_of_clients_alone(task: ClientTask, assert_equal_to_clients_alone: Any) -> None:
    method = FedAMP(n_ctx=2, lam=0.1, alpha=5.0, sigma=50.0)
    local = method.start(task, play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0], EVERYONE)
    cloud = local.buffers["cloud"]
    assert float((local.params["prompt"] - cloud).abs().max()) > 1e-4

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        scores = task.scale * F.normalize(images, dim=-1) @ task.encode_prompts(leaf["prompt"]).T
        return F.cross_entropy(scores, labels) + 0.1 / 10 * (leaf["prompt"] - cloud[client]).square().sum()

    assert_equal_to_clients_alone(method, task, local, plain)
