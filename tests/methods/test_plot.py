from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, generator
from fpl_tune.methods._transport import transport
from fpl_tune.methods.plot import PLOT
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play, toy_task


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task("patches")


@pytest.mark.parametrize("prompts", [1, 2, 4])
def test_every_patch_and_every_prompt_has_its_share(prompts: int) -> None:
    alike = 0.2 + 0.1 * torch.randn(5, prompts, 9, generator=generator("alike"), dtype=torch.float64)
    plan = transport(alike, 1.0, 0.1, 100, capped=False)
    torch.testing.assert_close(plan.sum(-1), torch.full((5, prompts), 1 / prompts, dtype=plan.dtype))
    torch.testing.assert_close(plan.sum(-2), torch.full((5, 9), 1 / 9, dtype=plan.dtype), rtol=1e-6, atol=0)
    partial = transport(alike, 1.0, 0.1, 2_000)
    torch.testing.assert_close(partial, plan, rtol=1e-3, atol=1e-5)  # its limit for γ = 1


def test_the_plan_is_sinkhorns() -> None:
    """PLOT's iteration as it is written, on one image and class."""
    alike = 0.2 + 0.3 * torch.randn(3, 9, generator=generator("alike"), dtype=torch.float64)
    kernel, r, c = torch.exp(-(1 - alike) / 0.1).T, torch.ones(9).double(), torch.ones(3).double()
    for _ in range(6):
        r = 1 / 9 / (kernel @ c)
        c = 1 / 3 / (kernel.T @ r)
    torch.testing.assert_close(transport(alike, 1.0, 0.1, 6, capped=False), (r[:, None] * kernel * c).T)


def test_exchanging_prompts_changes_nothing(task: ClientTask, batch: Batch) -> None:
    method = PLOT(prompts=3, n_ctx=2, iterations=20)
    local = method.start(task, method.init(task, generator("turn")), EVERYONE)
    local.params["prompt"] = local.params["prompt"] * 20
    turned = local._replace(params={"prompt": local.params["prompt"][:, [2, 0, 1]]})
    torch.testing.assert_close(method.logits(task, turned, batch), method.logits(task, local, batch))


def test_one_prompt_is_the_mean_of_the_patches(task: ClientTask, batch: Batch) -> None:
    method = PLOT(prompts=1, n_ctx=2, iterations=1)
    local = method.start(task, play(method, [task])[-1][0], EVERYONE)
    alike = F.normalize(batch.image, dim=-1) @ task.encode_prompts(local.params["prompt"][:, 0]).mT.unsqueeze(1)
    torch.testing.assert_close(method.logits(task, local, batch), task.scale * alike.mean(2))


def test_prompts_learn_different_things_and_are_averaged_each_with_itself(task: ClientTask) -> None:
    method = PLOT(prompts=2, n_ctx=2, iterations=20)
    state, clients = method.init(task, generator("merge")), torch.tensor([0, 3])  # 9 and 3 images
    local = method.start(task, state, clients)
    ends = torch.tensor([[1.0, 2.0], [5.0, 6.0]], dtype=task.dtype)
    local.params["prompt"] = ends.view(2, 2, 1, 1).expand(2, 2, 2, 32)
    assert method.merge(task, state, clients, local).shared["prompt"][:, 0, 0].tolist() == [2.0, 3.0]
    moved = play(method, [task])[-1][0].shared["prompt"] - play(method, [task])[0][0].shared["prompt"]
    assert float((moved[0] - moved[1]).abs().max()) > 1e-3 * float(moved.abs().max())
