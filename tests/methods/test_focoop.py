"""FOCoOp: the worst features near by, and what the server does with outer contexts."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Local, Tree, generator
from fpl_tune.methods.focoop import FOCoOp, transport_plan
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE

SMALL = FOCoOp(n_ctx=2, outer=5, gamma=2.0, tau=0.3, steps=3, rate=0.1)


def begin(task: ClientTask, method: FOCoOp) -> Local:
    """Contexts well apart."""
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    rng = generator("apart")
    drawn = {n: 0.3 * torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for n, leaf in local.params.items()}
    return local._replace(params=drawn)


def features(task: ClientTask, leaf: Tree) -> tuple[Tensor, Tensor]:
    """Of the classes and of the outer contexts, by open_clip's own modules on whole sentences."""
    known = task.towers.sentences(task.known.names, 2)
    text = task.towers.encode_prompts(0.8 * leaf["own"] + 0.2 * leaf["prompt"], known, per_class=True, plain=True)
    outer = task.towers.encode_prompts(leaf["outer"], task.towers.sentences([""], 2), plain=True)
    return F.normalize(text, dim=-1), F.normalize(outer[:, 0], dim=-1)


def test_loss_and_gradient_are_those_of_clients_alone(task: ClientTask, assert_equal_to_clients_alone: Any) -> None:
    """Both ascents of the released `BiDRO`, each noise with its own term, from zero."""

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        image, (text, outer) = F.normalize(images, dim=-1), features(task, leaf)

        def parts(d: Tensor, e: Tensor, t: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
            logits = task.scale * image @ torch.cat([t + d, u + e]).T
            outside = logits[:, 6:]
            return F.cross_entropy(logits, labels, reduction="none"), -(outside.mean(1) - outside.logsumexp(1))

        d, e = torch.zeros_like(text), torch.zeros_like(outer)
        for _ in range(3):
            d = d.detach().requires_grad_()
            gain = parts(d, e, text.detach(), outer.detach())[0].mean() - 2 * (d.square().sum(1) + 1e-6).sqrt().mean()
            d = d + 0.1 * F.normalize(torch.autograd.grad(gain, d)[0], dim=-1, eps=1e-4)
        d = d.detach()
        for _ in range(3):
            e = e.detach().requires_grad_()
            fit, apart = parts(d, e, text.detach(), outer.detach())
            gain = fit.mean() + apart.mean() - 2 * (e.square().sum(1) + 1e-6).sqrt().mean()
            e = e + 0.1 * F.normalize(torch.autograd.grad(gain, e)[0], dim=-1, eps=1e-4)
        fit, apart = parts(d, e.detach(), text, outer)
        softened = torch.logsumexp((fit + apart / 2) / 0.6, 0) - torch.log(torch.tensor(float(len(labels))))
        return 0.6 * softened

    assert_equal_to_clients_alone(SMALL, task, begin(task, SMALL), plain, rtol=1e-5)


def test_as_released_it_is_cross_entropy_over_classes_and_outer_contexts(task, assert_equal_to_clients_alone) -> None:
    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(task.scale * F.normalize(images, dim=-1) @ torch.cat(features(task, leaf)).T, labels)

    method = replace(SMALL, form="released")
    assert_equal_to_clients_alone(method, task, begin(task, method), plain)


def test_outer_contexts_take_certainty_from_images_that_they_fit(task: ClientTask) -> None:
    local, clients = begin(task, SMALL), EVERYONE[:1]
    text, outer = features(task, {name: leaf[0] for name, leaf in local.params.items()})
    batch = task.train.batch(clients, torch.arange(2)[None])._replace(image=torch.stack([text[0], outer[0]])[None])
    inside, outside = SMALL.certainty(task, local.at(clients), batch)[0].tolist()
    assert outside < 0.5 < inside
    logits = task.scale * outer[0] @ torch.cat([text, outer]).T
    assert abs(outside - logits.softmax(0)[: task.n_classes].sum().item()) < 1e-9


def test_the_plan_satisfies_the_conditions_of_an_optimum() -> None:
    """The gradient, cost + hold · (log row sum · m + log column sum · n), is zero where mass moves, else positive."""
    cost = torch.rand(12, 4, generator=generator("cost"), dtype=torch.float64)
    plan = transport_plan(cost, 0.1, 20_000)
    gradient = cost / cost.max() + 0.1 * ((12 * plan.sum(1)).log()[:, None] + (4 * plan.sum(0)).log())
    assert gradient.min() > -1e-6
    assert gradient[plan > 1e-6].abs().max() < 1e-6


def test_outer_contexts_near_a_class_move_it_and_leave(task: ClientTask) -> None:
    """The others stay, those of least mass first; where they are too few, some are there twice."""
    clients = torch.tensor([0, 3])
    state, local = SMALL.init(task, generator("merge")), begin(task, SMALL).at(torch.tensor([0, 3]))
    prompt, outer = local.params["prompt"], local.params["outer"]
    prompt[1] = prompt[0]
    outer += 10
    for m in range(4):
        outer[0, m] = outer[1, m] = prompt[0, m] + 0.01
    merged = SMALL.merge(task, state, clients, local).shared
    torch.testing.assert_close(merged["prompt"][:4], prompt[0, :4] + 0.005, rtol=0, atol=5e-3)
    left = torch.stack([outer[0, 4], outer[1, 4]])
    assert all((left == row).flatten(1).all(1).any() for row in merged["outer"])
    assert len(merged["outer"].flatten(1).unique(dim=0)) == 2
