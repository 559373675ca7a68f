"""FedMVP: visual prompts written by a network for each image."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fpl_tune.method import normalize
from fpl_tune.methods._noise import uniform
from fpl_tune.methods.fedmvp import FedMVP
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(5, 2, 3, 1))

SMALL = FedMVP(n_tokens=2, attributes=("{}", "a {} with colours."))


@pytest.fixture(scope="module")
def trained(task):
    return play(SMALL, [task], cohorts=[(0, 1)], epochs=1)[-1][0]


def test_prompts_are_those_of_torchs_modules(task, trained, whole_batch):
    """Attention of PyTorch from one image's patches to the sentences of the client's own classes, without a residual,
    then a gated feed-forward layer with one."""
    leaf, width = trained.shared, 32
    attention = nn.MultiheadAttention(width, 4, batch_first=True).double()
    attention.load_state_dict(
        {
            "in_proj_weight": leaf["attention.in.weight"],
            "in_proj_bias": leaf["attention.in.bias"],
            "out_proj.weight": leaf["attention.out.weight"],
            "out_proj.bias": leaf["attention.out.bias"],
        }
    )
    pixels = whole_batch(task).image[:, :2]
    local = SMALL.start(task, trained, EVERYONE)
    found = SMALL.prompts(task, local, pixels)

    def normed(x, name):
        return F.layer_norm(x, (width,), leaf[f"norm.{name}.weight"], leaf[f"norm.{name}.bias"])

    owned = task.counts[2] > 0
    assert 0 < owned.sum() < 6
    sentences = normalize(task.sentences(list(SMALL.attributes)))[:, owned].flatten(0, 1)
    values = F.linear(sentences, leaf["project.weight"], leaf["project.bias"])
    x, _ = attention(normed(task.embed(pixels[2, 1]), "patches"), normed(values, "attributes"), values)
    value, gate = F.linear(normed(x, "ff"), leaf["ff.in.weight"], leaf["ff.in.bias"]).chunk(2, -1)
    x = x + F.linear(value * F.gelu(gate), leaf["ff.out.weight"], leaf["ff.out.bias"])
    torch.testing.assert_close(found[2, 1], x.view(2, len(x) // 2, width).mean(1))


def test_logits_are_the_mean_over_a_classs_sentences(task, trained, whole_batch):
    batch, local = whole_batch(task), SMALL.start(task, trained, EVERYONE)
    prompts = SMALL.prompts(task, local, batch.image)
    image = normalize(task.encode_images(batch.image[:1, :1], prompts[:1, 0])[0])[0, 0]
    text = normalize(task.sentences(list(SMALL.attributes)))  # [2, K, D]
    wanted = torch.stack([task.scale * sentence @ image for sentence in text]).mean(0)
    wanted = torch.where(task.counts[0] > 0, wanted, -torch.inf)
    torch.testing.assert_close(SMALL.logits(task, local, batch)[0, 0], wanted)


def test_consistency_compares_with_the_image_or_its_mirror_image(task, trained, whole_batch):
    """The term of each client is one of the sums over its images' two views; over many draws both views occur."""
    batch, local = whole_batch(task), SMALL.start(task, trained, EVERYONE)
    image = SMALL._image(task, local, batch.image)
    views = [normalize(task.towers.encode_images(pixels)) for pixels in (batch.image, batch.image.flip(-1))]
    away = torch.stack([1 - (image * view).sum(-1) for view in views])  # [2, C, B]
    plain, _ = replace(SMALL, consistency=0.0).loss(task, local, batch)
    loss, moved = SMALL.loss(task, local, batch)
    mirrored = uniform(local.buffers, 0, batch.mask.shape[1]) < 0.5
    picked = torch.where(mirrored, away[1], away[0])
    for client in range(4):
        mean = picked[client][batch.mask[client]].mean()
        torch.testing.assert_close(loss[client] - plain[client], 10 * mean)
    assert not torch.equal(uniform(moved, 0, 5), uniform(local.buffers, 0, 5)), "the next step draws anew"
