"""IVLP: independent prompts in both towers."""

import pytest
import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import normalize
from fpl_tune.methods.ivlp import IVLP
from fpl_tune.methods.vpt import VPT
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))


def test_with_the_words_of_the_template_it_starts_as_vpt(task, whole):
    """Two learned and two frozen words write "a photo of a dog."; four learned ones as well."""
    for n_ctx in (1, 2, 4):
        method = IVLP(n_ctx=n_ctx, n_tokens=2)
        local = method.start(task, method.init(task, torch.Generator().manual_seed(0)), EVERYONE)
        wanted = VPT(n_tokens=2).logits(task, local._replace(params={"visual": local.params["visual"]}), whole)
        torch.testing.assert_close(method.logits(task, local, whole), wanted)


@pytest.mark.parametrize("depth", [1, 3])
def test_logits_are_those_of_the_plain_text_path(task, depth, whole_batch, plain_text):
    method = IVLP(n_ctx=2, n_tokens=2, depth=depth)
    (state,) = play(method, [task], cohorts=[(0, 1)], epochs=1)[-1]
    local, batch = method.start(task, state, EVERYONE), whole_batch(task)
    deep = state.shared["visual"][1:].expand(4, -1, -1, -1) if depth > 1 else None
    image = normalize(task.encode_images(batch.image, state.shared["visual"][0].expand(4, -1, -1), deep=deep)[0])
    text = plain_text(task, state.shared["text"], tail="of a", deep=state.shared.get("deep"))
    torch.testing.assert_close(method.logits(task, local, batch), task.scale * image @ text.T)


def test_words_of_several_tokens_are_refused(task):
    with pytest.raises(ConfigError, match="words must have one token"):
        IVLP(words="a pneumonoultramicroscopic of").init(task, torch.Generator())
