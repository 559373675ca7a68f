"""FedCoCoOp: a context for every image."""

import torch

from fpl_tune.methods import _blocks
from fpl_tune.methods.fedcocoop import FedCoCoOp
from fpl_tune.testing import EVERYONE, toy_task


def _small(**options):
    return FedCoCoOp(**{"n_ctx": 2, "reduction": 4, **options})


def test_loss_and_gradient_are_those_of_images_alone(assert_equal_to_clients_alone, plain_text):
    """One image, one context, one pass of open_clip's text tower at a time."""
    task = toy_task(sizes=(3, 2, 2, 1))
    method = _small()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), EVERYONE)

    def plain(client, leaf, images, labels):
        values = []
        for image, label in zip(images, labels, strict=True):
            image = image / image.norm()
            hidden = (leaf["net.first.weight"] @ image + leaf["net.first.bias"]).clamp(min=0)
            shift = leaf["net.second.weight"] @ hidden + leaf["net.second.bias"]
            text = plain_text(task, leaf["prompt"] + shift)
            values.append(-(task.scale * text @ image).log_softmax(0)[label])
        return torch.stack(values).mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_images_are_scored_the_same_in_slices_of_any_size(task, whole, monkeypatch):
    method = _small()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), EVERYONE)
    wanted = method.logits(task, local, whole)
    for sentences in (1, 2 * 4 * task.n_classes, 7 * 4 * task.n_classes):
        monkeypatch.setattr(_blocks, "SENTENCES", sentences)
        torch.testing.assert_close(method.logits(task, local, whole), wanted)
