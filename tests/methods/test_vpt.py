"""VPT: visual prompts only."""

import pytest
import torch

from fpl_tune.method import normalize
from fpl_tune.methods.vpt import VPT
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))


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
        feature = normalize(visual.ln_post(x[:, 0]) @ visual.proj)[0]
        torch.testing.assert_close(logits[client, number], task.scale * task.hand_text @ feature)
