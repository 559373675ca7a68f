"""VPT: visual prompts only."""

from __future__ import annotations

import pytest
import torch

from fpl_tune import methods
from fpl_tune.errors import ConfigError
from fpl_tune.method import unit
from fpl_tune.methods.vpt import VPT
from fpl_tune.testing import play, toy_task

EVERYONE = torch.arange(4)


@pytest.fixture(scope="module")
def task():
    return toy_task("pixels", sizes=(3, 2, 2, 1))


@pytest.mark.parametrize("depth", [1, 3])
def test_features_are_those_of_whole_images_with_tokens_at_the_end(task, depth, whole_batch):
    """open_clip's own blocks, image by image: the j-th prompt replaces the last tokens at block j."""
    method = VPT(n_tokens=2, depth=depth)
    (state,) = play(method, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local, batch, visual = method.start(task, state, EVERYONE), whole_batch(task), task.visual()
    logits = method.logits(task, local, batch)
    prompts = state.shared["visual"]
    for client, number in ((0, 2), (3, 0)):
        x = visual.conv1(batch.image[client, number][None]).flatten(2).transpose(1, 2)
        x = torch.cat([visual.class_embedding.expand(1, 1, -1), x], 1) + visual.positional_embedding
        x = visual.ln_pre(torch.cat([x, prompts[0][None]], 1))
        for j, block in enumerate(visual.transformer.resblocks):
            if 1 <= j < depth:
                x = torch.cat([x[:, :-2], prompts[j][None]], 1)
            x = block(x)
        feature = unit(visual.ln_post(x[:, 0]) @ visual.proj)[0]
        torch.testing.assert_close(logits[client, number], task.scale * task.hand_text @ feature)


def test_sentences_stay_hand_written_and_prompts_are_averaged_by_size():
    task = toy_task("pixels", sizes=(9, 5, 7, 3))
    method = VPT(n_tokens=2)
    state, who = method.init(task, torch.Generator().manual_seed(0)), torch.tensor([0, 3])
    assert list(state.shared) == ["visual"]
    local = method.start(task, state, who)
    local.train["visual"][0], local.train["visual"][1] = 1.0, 5.0
    merged = method.merge(task, state, who, local)
    torch.testing.assert_close(merged.shared["visual"], torch.full_like(state.shared["visual"], 2.0))


def test_sent_scalars_are_the_published_ones(paper_task):
    """FedMGP's baseline sends 4 tokens of width 768; deep prompts J times as many."""
    for depth, wanted in ((1, 3_072), (9, 27_648)):
        method = VPT(depth=depth)
        sent = method.traffic(paper_task(), method.init(paper_task(), torch.Generator()), torch.arange(2))
        assert sent.up == sent.down == {"visual": wanted}


def test_towers_that_do_not_fit_are_refused(paper_task):
    VPT(depth=12).check(paper_task(n_text_blocks=4))
    with pytest.raises(ConfigError, match="vision transformer"):
        VPT().check(toy_task("pixels", kind="resnet"))
    with pytest.raises(ConfigError, match="depth must be at most 4"):
        VPT(depth=5).check(paper_task(n_vision_blocks=4))


@pytest.mark.parametrize("field", ["n_tokens", "depth"])
def test_values_out_of_range_are_refused_by_name(field):
    with pytest.raises(ConfigError, match=field):
        methods.build({"name": "vpt", field: 0})
