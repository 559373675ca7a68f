"""FedCoCoOp: a context for every image."""

from __future__ import annotations

import pytest
import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import normalize
from fpl_tune.methods import _blocks
from fpl_tune.methods.fedcocoop import FedCoCoOp
from fpl_tune.methods.promptfl import PromptFL
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


def test_silent_network_is_promptfl(task, whole_batch):
    method = _small(words="")
    state = method.init(task, torch.Generator().manual_seed(3))
    plain = PromptFL(n_ctx=2).init(task, torch.Generator().manual_seed(3))
    assert torch.equal(state.shared["prompt"], plain.shared["prompt"])
    local, batch = method.start(task, state, EVERYONE), whole_batch(task)
    for name in ("net.second.weight", "net.second.bias"):
        local.params[name].zero_()
    wanted = PromptFL(n_ctx=2).logits(task, PromptFL(n_ctx=2).start(task, plain, EVERYONE), batch)
    torch.testing.assert_close(method.logits(task, local, batch), wanted)


def test_context_starts_from_the_first_words(task):
    state = _small(n_ctx=3).init(task, torch.Generator())
    assert torch.equal(state.shared["prompt"], task.words("a photo of"))
    with pytest.raises(ConfigError, match="at most 4"):
        _small(n_ctx=5).init(task, torch.Generator())


def test_images_are_scored_the_same_in_slices_of_any_size(task, whole, monkeypatch):
    method = _small()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), EVERYONE)
    wanted = method.logits(task, local, whole)
    for sentences in (1, 2 * 4 * task.n_classes, 7 * 4 * task.n_classes):
        monkeypatch.setattr(_blocks, "SENTENCES", sentences)
        torch.testing.assert_close(method.logits(task, local, whole), wanted)


def test_images_of_one_class_read_different_prompts(task, whole_batch):
    method = _small()
    local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), EVERYONE)
    batch = whole_batch(task)
    shifted = batch._replace(image=batch.image + 1)
    mine, others = (normalize(b.image) for b in (batch, shifted))
    fixed = task.encode_prompts(local.params["prompt"])
    for b, image in ((batch, mine), (shifted, others)):
        static = task.scale * torch.einsum("cbd,ckd->cbk", image, fixed)
        assert (method.logits(task, local, b) - static).abs().max() > 1e-6
