"""A linear classifier under FedAvg."""

import torch

from fpl_tune.method import cosine_logits
from fpl_tune.methods.linear_head import LinearHead


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
