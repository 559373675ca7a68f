"""A linear classifier under FedAvg."""

from __future__ import annotations

import torch

from fpl_tune.method import cosine_logits
from fpl_tune.methods.linear_head import LinearHead
from fpl_tune.testing import play, toy_task


def test_gradient_is_the_classical_one(whole_batch):
    """d loss / d W = mean over images of (softmax - one-hot) fᵀ, of each client alone."""
    task = toy_task()
    method = LinearHead()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), torch.arange(4))
    for leaf in local.train.values():
        leaf.requires_grad_()
    batch = whole_batch(task)
    loss, _ = method.loss(task, local, batch)
    weight, bias = torch.autograd.grad(loss.sum(), [local.train["weight"], local.train["bias"]])
    for client in range(4):
        real = batch.mask[client]
        image, label = batch.image[client, real], batch.label[client, real]
        with torch.no_grad():
            share = (image @ local.train["weight"][client].T + local.train["bias"][client]).softmax(1)
        error = (share - torch.eye(task.n_classes)[label]) / len(label)
        torch.testing.assert_close(loss[client].detach(), -share[torch.arange(len(label)), label].log().mean())
        torch.testing.assert_close(weight[client], error.T @ image)
        torch.testing.assert_close(bias[client], error.sum(0))


def test_head_of_text_features_on_unit_features_is_zero_shot(whole_batch):
    task = toy_task()
    method = LinearHead(feature="unit", start_from="text")
    local = method.start(task, method.init(task, torch.Generator()), torch.arange(4))
    batch = whole_batch(task)
    wanted = cosine_logits(task.scale, batch.image, task.hand_text.expand(4, -1, -1))
    torch.testing.assert_close(method.logits(task, local, batch), wanted)


def test_one_full_batch_step_of_everyone_is_a_central_step(whole_batch):
    """FedAvg by size of one plain gradient step each equals one step on all data."""
    from fpl_tune.optim import OptimSpec

    task = toy_task()
    method = LinearHead()
    spec = OptimSpec(lr=0.1, momentum=0.0, weight_decay=0.0, batch=16)
    (before,), (after,) = play(method, [task], cohorts=[(0, 1, 2, 3)], spec=spec, epochs=1)
    batch = whole_batch(task)
    image, label = batch.image[batch.mask], batch.label[batch.mask]
    weight = before.shared["weight"].clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(image @ weight.T + before.shared["bias"], label)
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(after.shared["weight"], before.shared["weight"] - 0.1 * gradient)
