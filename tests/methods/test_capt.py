"""CAPT: general and class-aware contexts under long-tailed labels."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import normalize
from fpl_tune.methods.capt import CAPT
from fpl_tune.testing import EVERYONE

TASK = dict(needs="pixels", sizes=(9, 5, 7, 3))

SMALL = CAPT(n_own=2)


@pytest.fixture
def local(task):
    return SMALL.start(task, SMALL.init(task, torch.Generator().manual_seed(0)), EVERYONE)


def test_each_class_reads_the_general_token_and_its_own(task, local, whole_batch, plain_text):
    batch, leaf = whole_batch(task), local.params
    token = leaf["general"][0] @ leaf["map.weight"][0].T + leaf["map.bias"][0]
    image = normalize(task.encode_images(batch.image[:1], token[None])[0])[0]
    context = torch.cat([leaf["general"][0].expand(6, 1, -1), leaf["own"][0]], 1)
    text = plain_text(task, context, per_class=True)
    torch.testing.assert_close(SMALL.logits(task, local, batch)[0], task.scale * image @ text.T)


def test_the_prior_is_added_to_the_logits_in_training_alone(task, local, whole):
    logits = SMALL.logits(task, local, whole)
    frequency = task.counts.sum(0).clamp(min=1).double()
    prior = (frequency / frequency.sum()).log()
    loss, _ = SMALL.loss(task, local, whole)
    for client in range(4):
        rows = whole.mask[client]
        wanted = F.cross_entropy((logits[client] + prior)[rows], whole.label[client][rows])
        torch.testing.assert_close(loss[client], wanted)
    assert "prior" not in SMALL.deploy(task, SMALL.init(task, torch.Generator()), EVERYONE).buffers


def test_alignment_is_evened_images_and_weighted_classes(task, whole_batch):
    """Written out for one client: cross-entropy of a uniform target over the batch, and of labels over classes."""
    batch, method = whole_batch(task), replace(SMALL, align=1.0, temperature=0.5)
    rng = torch.Generator().manual_seed(0)
    leaf = {
        "general": torch.randn(4, 1, 24, generator=rng).double(),
        "own": torch.randn(4, 6, 2, 24, generator=rng).double(),
    }
    image = normalize(torch.randn(4, batch.label.shape[1], 24, generator=rng).double())
    prior = torch.rand(4, 6, generator=rng).double()
    found = method._alignment(leaf, image, prior, batch)
    n = int(batch.mask[1].sum())
    even = -(image[1, :n] @ normalize(leaf["general"][1, 0]) / 0.5).log_softmax(0).mean()
    scores = image[1, :n] @ normalize(leaf["own"][1]).mean(1).T / 0.5
    weighted = [prior[1] * row.exp() / (prior[1] * row.exp()).sum() for row in scores]
    own = -torch.stack([row[k].log() for row, k in zip(weighted, batch.label[1], strict=False)]).mean()
    torch.testing.assert_close(found[1], even + own)


@pytest.mark.parametrize("rows", ["support", "released", "size"])
def test_own_contexts_are_averaged_by_what_clients_hold(task, rows):
    method, clients = replace(SMALL, rows=rows), torch.tensor([0, 3])
    state = method.init(task, torch.Generator().manual_seed(0))
    local = method.start(task, state, clients)
    local.params["own"][0], local.params["own"][1] = 1.0, 5.0
    local.params["general"][0], local.params["general"][1] = 1.0, 5.0
    merged = method.merge(task, state, clients, local).shared
    torch.testing.assert_close(merged["general"], torch.full_like(merged["general"], 2.0))  # 9 and 3 images
    for k, (one, other) in enumerate(task.counts[clients].T.tolist()):
        wanted = 2.0
        if rows == "support":
            wanted = (one + 5 * other) / (one + other) if one + other else state.shared["own"][k]
        elif rows == "released":  # 9 and 3 images of their own
            heard = [value for value, n, images in ((1.0, one, 9), (5.0, other, 3)) if n > 0.1 * images]
            wanted = sum(heard) / len(heard) if heard else state.shared["own"][k]
        torch.testing.assert_close(merged["own"][k], torch.zeros_like(merged["own"][k]) + wanted)
    assert 0 in task.counts[clients], "some client lacks some class"
