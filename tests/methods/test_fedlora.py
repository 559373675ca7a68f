"""FedLoRA: low-rank updates inside the text tower."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.clip import Towers
from fpl_tune.method import normalize
from fpl_tune.methods.fedlora import FedLoRA
from fpl_tune.testing import EVERYONE, play, toy_task

SMALL = FedLoRA(alpha=2.0)


@pytest.fixture(scope="module")
def task():
    return toy_task(sizes=(3, 2, 2, 1))


def test_it_starts_as_zero_shot(task, whole):
    """B is zero, so that A has no gradient in the first step and B has one."""
    local = SMALL.start(task, SMALL.init(task, torch.Generator().manual_seed(0)), EVERYONE)
    leaves = [leaf.requires_grad_() for leaf in local.params.values()]
    torch.testing.assert_close(
        SMALL.logits(task, local, whole).detach(), task.scale * normalize(whole.image) @ task.hand_text.T
    )
    a, b = torch.autograd.grad(SMALL.loss(task, local, whole)[0].sum(), leaves)
    assert a.abs().max() == 0
    assert b.abs().flatten(1).max(1).values.min() > 0


def test_logits_are_those_of_a_tower_with_changed_weights(task, whole):
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=2)[-1]
    found = SMALL.logits(task, SMALL.start(task, state, EVERYONE), whole)
    changed = Towers(deepcopy(task.towers.model), task.towers.tokenizer, name="changed")
    for j, block in enumerate(changed.text.transformer.resblocks):
        weight = block.attn.out_proj.weight
        weight += 2.0 * (state.shared["a"][j] @ state.shared["b"][j]).T
    text = normalize(changed.encode_text([f"a photo of a {name}." for name in task.known.names]))
    torch.testing.assert_close(found, task.scale * normalize(whole.image) @ text.T)
    assert not torch.allclose(text, task.hand_text, atol=1e-4)


def test_alpha_zero_trains_nothing(task):
    method = FedLoRA(alpha=0.0)
    (before,), (after,) = play(method, [task], cohorts=[(0, 1)], epochs=1)
    torch.testing.assert_close(after.shared["b"], before.shared["b"], rtol=0, atol=0)


def test_scaling_by_rank_divides_alpha(task, whole_batch):
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local, batch = SMALL.start(task, state, EVERYONE), whole_batch(task)
    halved = replace(SMALL, scaling="alpha/rank")  # of rank 2
    torch.testing.assert_close(halved.logits(task, local, batch), replace(SMALL, alpha=1.0).logits(task, local, batch))


def test_the_contrastive_loss_compares_images_with_their_own_sentences(task, whole_batch):
    method, batch = replace(SMALL, objective="contrastive"), whole_batch(task)
    (state,) = play(SMALL, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local = SMALL.start(task, state, EVERYONE)
    loss, _ = method.loss(task, local, batch)
    for client in range(4):
        n = int(batch.mask[client].sum())
        text = method._text(task, local)[client][batch.label[client, :n]]
        scores = task.scale * normalize(batch.image[client, :n]) @ text.T
        wanted = (F.cross_entropy(scores, torch.arange(n)) + F.cross_entropy(scores.T, torch.arange(n))) / 2
        torch.testing.assert_close(loss[client], wanted)
