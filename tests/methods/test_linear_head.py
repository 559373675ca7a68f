"""A linear classifier under FedAvg."""

from __future__ import annotations

import torch

from fpl_tune.method import cosine_logits
from fpl_tune.methods.linear_head import LinearHead
from fpl_tune.testing import play


def test_loss_and_gradient_are_those_of_clients_alone(task, assert_equal_to_clients_alone):
    method = LinearHead()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), torch.arange(4))

    def plain(client, leaf, images, labels):
        return torch.nn.functional.cross_entropy(images @ leaf["weight"].T + leaf["bias"], labels)

    assert_equal_to_clients_alone(method, task, local, plain)


def test_head_of_text_features_on_unit_features_is_zero_shot(task, whole):
    method = LinearHead(feature="unit", start_from="text")
    local = method.start(task, method.init(task, torch.Generator()), torch.arange(4))
    wanted = cosine_logits(task.scale, whole.image, task.hand_text.expand(4, -1, -1))
    torch.testing.assert_close(method.logits(task, local, whole), wanted)


def test_one_full_batch_step_of_everyone_is_a_central_step(task, whole):
    """FedAvg by size of one plain gradient step each equals one step on all data."""
    from fpl_tune.config.specs import OptimSpec

    method = LinearHead()
    spec = OptimSpec(lr=0.1, momentum=0.0, weight_decay=0.0, batch=16)
    (before,), (after,) = play(method, [task], cohorts=[(0, 1, 2, 3)], spec=spec, epochs=1)
    image, label = whole.image[whole.mask], whole.label[whole.mask]
    weight = before.shared["weight"].clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(image @ weight.T + before.shared["bias"], label)
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(after.shared["weight"], before.shared["weight"] - 0.1 * gradient)
