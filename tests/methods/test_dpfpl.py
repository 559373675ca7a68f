import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import generator
from fpl_tune.methods._noise import normal, uniform
from fpl_tune.methods.dpfpl import DPFPL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play
from fpl_tune.wrappers.private import Private


def gradients(task: ClientTask, method: DPFPL, draws: int = 0) -> tuple[Any, torch.Tensor, dict[str, torch.Tensor]]:
    """What the clients start from, the plain gradients of p_G + p_i, and what the method gives its leaves."""
    local = method.start(task, method.init(task, generator("gradients")), EVERYONE)
    local.buffers["drawn"] += draws
    leaves = {n: leaf.requires_grad_() for n, leaf in local.params.items()}
    batch = task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))
    losses, fixed = method.loss(task, local._replace(params=leaves), batch)
    assert (fixed["drawn"] - local.buffers["drawn"]).tolist() == [1] * 4
    found = dict(zip(leaves, torch.autograd.grad(losses.sum(), list(leaves.values())), strict=True))
    plain = []
    for client in range(4):
        prompt = (leaves["prompt"][client] + leaves["own"][client]).detach().requires_grad_()
        image = F.normalize(batch.image[client], dim=-1)
        loss = F.cross_entropy(task.scale * image @ task.encode_prompts(prompt).T, batch.label[client])
        torch.testing.assert_close(losses[client].detach(), loss.detach())
        plain.append(torch.autograd.grad(loss, prompt)[0])
    return local, torch.stack(plain), found


@pytest.mark.parametrize("rank", [3, "full"])
def test_of_full_rank_both_prompts_have_the_plain_gradient(task: ClientTask, rank: Any) -> None:
    _, plain, found = gradients(task, DPFPL(n_ctx=3, rank=rank))
    torch.testing.assert_close(found["prompt"], plain)
    torch.testing.assert_close(found["own"], plain)


def test_the_personal_gradient_is_projected_on_what_u_and_v_can_change(task: ClientTask) -> None:
    """The part that is removed is orthogonal to both factors; p_i's own directions decide."""
    local, plain, found = gradients(task, DPFPL(n_ctx=3, rank=2))
    keys = {name: local.buffers[name] for name in ("key", "drawn")}
    probe = normal(keys, 0, 32, 2)
    for client in range(4):
        own = local.params["own"][client].detach()
        u = torch.linalg.svd(own @ probe[client], full_matrices=False).U
        v = torch.linalg.svd(own.T @ u, full_matrices=False).U
        left = torch.eye(3, dtype=own.dtype) - u @ u.T
        right = torch.eye(32, dtype=own.dtype) - v @ v.T
        torch.testing.assert_close(plain[client] - found["own"][client], left @ plain[client] @ right)
        assert float((left @ plain[client] @ right).norm()) > 1e-3 * float(plain[client].norm())


def test_the_released_form_adds_the_last_term_and_divides(task: ClientTask) -> None:
    _, plain, released = gradients(task, DPFPL(n_ctx=3, rank=3, form="released"))
    local = DPFPL(n_ctx=3, rank=3).start(task, DPFPL(n_ctx=3, rank=3).init(task, generator("gradients")), EVERYONE)
    row = torch.linalg.pinv(local.params["own"]) @ local.params["own"]  # V spans the rows of p_i
    torch.testing.assert_close(released["own"], (plain + 2 * plain @ row) / 10)


def test_noise_is_drawn_anew_at_every_step_and_has_the_released_size(task: ClientTask) -> None:
    method = DPFPL(n_ctx=16, rank="full", noise=0.4, clip=10.0)
    std = math.sqrt(100 * math.log(1e5)) / 0.4 * 10 / 3  # batches of three
    drawn = []
    for step in (0, 1):
        _, plain, found = gradients(task, method, step)
        kept = plain * (10 / plain.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
        drawn += [(found["own"] - kept) / std, (found["prompt"] - kept) / (std / 2)]  # four clients
    for noise in drawn:
        assert abs(float(noise.std()) - 1) < 0.05
        assert abs(float(noise.mean())) < 0.1
    cosines = torch.stack([noise.flatten() for noise in drawn])
    assert float((F.normalize(cosines, dim=1) @ F.normalize(cosines, dim=1).T).fill_diagonal_(0).abs().max()) < 0.1


def test_random_numbers_are_those_of_a_client_and_of_nobody_else() -> None:
    keys = {"key": torch.tensor([5, 6, 5]), "drawn": torch.tensor([0, 0, 1])}
    numbers = uniform(keys, 0, 100_000)
    assert torch.equal(uniform({n: k[1:2] for n, k in keys.items()}, 0, 100_000)[0], numbers[1])
    assert float((numbers.mean(1) - 0.5).abs().max()) < 0.005
    assert float((numbers.var(1) - 1 / 12).abs().max()) < 0.005
    assert len(numbers.unique()) == 300_000
    assert 0 < float(numbers.min()) < float(numbers.max()) < 1
    bell = normal(keys, 3, 300, 300)
    assert bell.shape == (3, 300, 300)
    assert float((bell.flatten(1).std(1) - 1).abs().max()) < 0.01
    assert float((bell.abs() < 1).double().mean()) == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.005)


def test_wrapped_what_a_client_keeps_is_noised_too(task: ClientTask) -> None:
    """Within the bound: without noise, p_G and p_i together move by at most the clip."""
    inner = DPFPL(n_ctx=2, rank=1)
    plain = Private(inner, epsilon=math.inf, clip=0.01, bound="update", leaves="all")
    before, after = (states[0] for states in play(plain, [task], cohorts=[[0]]))
    moved = [after.shared["prompt"] - before.shared["prompt"], (after.personal["own"] - before.personal["own"])[0]]
    assert float(torch.stack(moved).norm()) == pytest.approx(0.01)
    noised = Private(inner, epsilon=1.0, delta=0.01, clip=0.01, bound="update", leaves="all", calibration="accountant")
    kept = play(noised, [task], cohorts=[[0]])[-1][0].personal["own"][0] - after.personal["own"][0]
    assert float(kept.std()) == pytest.approx(noised.sigma(task), rel=0.4)
