"""CLIP-FC: one linear layer before the cosine."""

import torch

from fpl_tune.method import cosine_logits
from fpl_tune.methods.clip_fc import CLIPFC


def test_loss_and_gradient_are_those_of_clients_alone(task, assert_equal_to_clients_alone):
    method = CLIPFC()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(1)), torch.arange(4))

    def plain(client, leaf, images, labels):
        mapped = torch.stack([leaf["weight"] @ f + leaf["bias"] for f in images])
        logits = task.scale * (mapped / mapped.norm(dim=1, keepdim=True)) @ task.hand_text.T
        return -logits.log_softmax(1)[torch.arange(len(labels)), labels].mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_identity_starts_as_zero_shot(task, whole):
    method = CLIPFC(start_from="identity")
    local = method.start(task, method.init(task, torch.Generator()), torch.arange(4))
    wanted = cosine_logits(task.scale, whole.image, task.hand_text.expand(4, -1, -1))
    torch.testing.assert_close(method.logits(task, local, whole), wanted)
