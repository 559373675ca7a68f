"""FedSEPT: experts in a public subspace, their gate, and DP-SGD on what is averaged."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, Local, generator, normalize
from fpl_tune.methods.fedsept import FedSEPT
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play
from fpl_tune.wrappers._accountant import smallest_noise, spent
from fpl_tune.wrappers.private import Private

SMALL = FedSEPT(experts=3, rank=2, n_ctx=2, lam=0.7)
FORMS = [SMALL, replace(SMALL, gate="linear"), replace(SMALL, residual="released"), replace(SMALL, experts=1)]


def begin(task: ClientTask, method: FedSEPT) -> Local:
    """Every leaf away from where it starts, each client's own."""
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    rng = generator("apart")
    params = {n: leaf + 0.3 * torch.randn(leaf.shape, generator=rng).to(leaf) for n, leaf in local.params.items()}
    return local._replace(params=params)


def by_hand(
    task: ClientTask, method: FedSEPT, leaf: dict[str, torch.Tensor], basis: torch.Tensor, images: torch.Tensor
) -> torch.Tensor:
    """Logits [B, K] of one client, expert by expert."""
    f = F.normalize(images, dim=-1)
    logits, route = [], f
    if method.experts > 1 and method.gate == "attention":
        hidden = (f @ leaf["gate.v.weight"].T + leaf["gate.v.bias"]) @ leaf["gate.o.weight"].T + leaf["gate.o.bias"]
        centred = hidden - hidden.mean(-1, keepdim=True)
        route = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        route = route * leaf["gate.norm.route.weight"] + leaf["gate.norm.route.bias"]
    for m in range(method.experts):
        residual = leaf["residual"][m if method.residual == "each" else 0]
        text = task.encode_prompts(leaf["a"][m] @ basis + residual)
        logits.append(task.scale * f @ text.T)
    if method.experts == 1:
        return logits[0]
    scores = torch.exp(route @ leaf["gate.weight"].T + leaf["gate.bias"])
    share = scores / scores.sum(-1, keepdim=True)
    return torch.stack([share[:, m : m + 1] * rows for m, rows in enumerate(logits)]).sum(0)


def alike(a: torch.Tensor) -> torch.Tensor:
    """Mean cos² over ordered pairs of experts."""
    pairs = [(m, n) for m in range(len(a)) for n in range(len(a)) if m != n]
    cosines = [F.cosine_similarity(a[m].flatten(), a[n].flatten(), dim=0) for m, n in pairs]
    return torch.stack(cosines).square().mean() if pairs else a.new_zeros(())


@pytest.mark.parametrize("method", FORMS, ids=str)
def test_loss_and_gradients_are_those_of_the_equations(task, method, assert_equal_to_clients_alone) -> None:
    local = begin(task, method)

    def plain(client, leaf, images, labels):
        scores = by_hand(task, method, leaf, local.buffers["basis"][client], images)
        return F.cross_entropy(scores, labels) + 0.7 * alike(leaf["a"])

    assert_equal_to_clients_alone(method, task, local, plain)


def test_two_experts_at_a_right_angle_add_nothing_and_alike_ones_the_weight() -> None:
    method = replace(SMALL, experts=2)
    across = torch.tensor([[[[2.0, 0.0], [0.0, 0.0]], [[0.0, 3.0], [0.0, 0.0]]]], dtype=torch.float64)
    between = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]]]], dtype=torch.float64)
    for a, wanted in ((across, 0.0), (across[:, [0, 0]], 1.0), (between, 0.5)):
        assert method.alike(a).tolist() == pytest.approx([wanted])


def gradient_of_a(task: ClientTask, method: FedSEPT, local: Local, batch: Batch) -> tuple[dict[str, Any], Any]:
    leaves = {n: leaf.detach().requires_grad_() for n, leaf in local.params.items()}
    losses, buffers = method.loss(task, local._replace(params=leaves), batch)
    found = torch.autograd.grad(losses.sum(), list(leaves.values()))
    return {**dict(zip(leaves, found, strict=True)), "loss": losses.detach()}, buffers


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_every_image_is_clipped_by_itself(task: ClientTask, whole: Batch, clip: float) -> None:
    """Against a loop over single images; what stays with the client has the plain gradient."""
    local = begin(task, SMALL)
    found, _ = gradient_of_a(task, replace(SMALL, clip=clip), local, whole)
    plain, _ = gradient_of_a(task, SMALL, local, whole)
    shortened = 0
    for client in range(4):
        leaf = {name: rows[client] for name, rows in local.params.items()}
        a, total = leaf["a"].detach().requires_grad_(), 0
        rows = whole.mask[client]
        for image, label in zip(whole.image[client, rows], whole.label[client, rows], strict=True):
            scores = by_hand(task, SMALL, {**leaf, "a": a}, local.buffers["basis"][client], image[None])
            (one,) = torch.autograd.grad(F.cross_entropy(scores, label[None]) + 0.7 * alike(a), [a])
            shortened += int(float(one.norm()) > clip)
            total = total + one * min(1.0, clip / float(one.norm()))
        torch.testing.assert_close(found["a"][client], total / rows.sum(), rtol=1e-6, atol=1e-10)
    assert (shortened > 0) == (clip < 1)
    for name in plain.keys() - {"a"}:
        torch.testing.assert_close(found[name], plain[name])
    if clip > 1:
        torch.testing.assert_close(found["a"], plain["a"], rtol=1e-6, atol=1e-10)


def test_noise_has_the_size_that_an_accountant_finds_and_is_drawn_anew(task: ClientTask, batch: Batch) -> None:
    """ε = 1 at δ = 1e-5 over 50 steps of batches of 3 among 9 images; z · clip / 3 a number."""
    noise = smallest_noise(1.0, 1e-5, 50, 3 / 9)
    assert spent(noise, 1e-5, 50, 3 / 9) == pytest.approx(1.0, rel=0.01)
    silent = FedSEPT(experts=3, rank=16, n_ctx=16, clip=0.5)
    method = replace(silent, noise=noise)
    local = method.start(task, method.init(task, generator("noise")), EVERYONE)
    mean, _ = gradient_of_a(task, silent, local, batch)
    drawn = []
    for _ in range(2):
        found, buffers = gradient_of_a(task, method, local, batch)
        drawn.append((found["a"] - mean["a"]) / (noise * 0.5 / 3))
        assert (buffers["drawn"] - local.buffers["drawn"]).tolist() == [1] * 4
        local = local._replace(buffers=buffers)
    rows = torch.stack(drawn).flatten(2).flatten(0, 1)  # two steps of four clients, 768 numbers each
    assert float((rows.std(1) - 1).abs().max()) < 0.1
    assert float((normalize(rows) @ normalize(rows).T).fill_diagonal_(0).abs().max()) < 0.15


def test_one_image_changes_what_others_do_to_a_at_later_steps(task: ClientTask, batch: Batch) -> None:
    """By way of the residual, which is why counting the clipped gradients proves no ε: A itself is held here."""
    method, local = replace(SMALL, clip=0.05), begin(task, SMALL)
    later = task.train.batch(EVERYONE[:1], torch.tensor([[3, 4, 5]]))
    local, found = local.at(slice(0, 1)), []
    for image in (batch.image[0, 0], -batch.image[0, 0]):
        first = batch._replace(image=torch.cat([image.expand(4, 1, -1), batch.image[:, 1:]], 1))
        rows = Batch(*(part[:1] for part in first[:4]))
        moves, _ = gradient_of_a(task, method, local, rows)
        moved = {**local.params, "residual": local.params["residual"] - 0.1 * moves["residual"]}
        found.append(gradient_of_a(task, method, local._replace(params=moved), later)[0]["a"])
    assert float((found[0] - found[1]).norm()) > 0.01 * float(found[0].norm())


def test_residuals_and_gates_never_leave_their_client(task: ClientTask) -> None:
    """Only A is sent; whatever the others hold changes no merge."""
    state, clients = SMALL.init(task, generator("merge")), torch.tensor([0, 3])
    local = SMALL.start(task, state, clients)
    local.params["a"][0], local.params["a"][1] = 1.0, 5.0
    merged = SMALL.merge(task, state, clients, local)
    torch.testing.assert_close(merged.shared["a"], torch.full_like(merged.shared["a"], 2.0))  # 9 and 3 images
    assert torch.equal(merged.shared["basis"], state.shared["basis"])
    for name, leaf in local.params.items():
        if name != "a":
            local.params[name] = leaf + 1.0
    other = SMALL.merge(task, state, clients, local)
    assert all(torch.equal(other.shared[name], leaf) for name, leaf in merged.shared.items())
    for name, leaf in other.personal.items():
        moved = (leaf != state.personal[name]).flatten(1).any(1)
        assert moved.tolist() == [True, False, False, True], name
    assert SMALL.traffic(task, state, clients).up == {"a": 3 * 2 * 2}


def test_wrapped_a_is_bounded_and_what_clients_keep_is_without_noise(task: ClientTask) -> None:
    plain = Private(SMALL, epsilon=math.inf, clip=1e-3, bound="update")
    before, after = (states[0] for states in play(plain, [task], cohorts=[[0]]))
    assert float((after.shared["a"] - before.shared["a"]).norm()) == pytest.approx(1e-3)
    noised = Private(SMALL, epsilon=1.0, delta=0.01, clip=1e-3, bound="update", calibration="accountant")
    heard = play(noised, [task], cohorts=[[0]])[-1][0]
    assert torch.equal(heard.personal["residual"], after.personal["residual"])
    assert not torch.equal(heard.shared["a"], after.shared["a"])
    assert noised.metrics(task, heard)["privacy/epsilon"] == pytest.approx(1.0)
