"""FedMaPLe: prompts in both towers, coupled."""

import pytest
import torch

from fpl_tune.method import Batch, normalize
from fpl_tune.methods.fedmaple import FedMaPLe
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))


def _image_feature(visual, image, tokens):
    """One image through open_clip's own blocks: tokens[0] at the end of the input, tokens[j] instead of them later."""
    x = visual.conv1(image[None]).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.expand(1, 1, -1), x], 1) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([x, tokens[0][None]], 1))
    for j, block in enumerate(visual.transformer.resblocks):
        if 1 <= j < len(tokens):
            x = torch.cat([x[:, : -tokens.shape[1]], tokens[j][None]], 1)
        x = block(x)
    return (visual.ln_post(x[:, 0]) @ visual.proj)[0]


@pytest.mark.parametrize("depth", [1, 3])
def test_loss_and_gradient_are_those_of_images_alone(task, depth, assert_equal_to_clients_alone, plain_text):
    method = FedMaPLe(n_ctx=2, depth=depth)
    state = play(method, [task], cohorts=[(0, 1)], epochs=1)[-1][0]
    local = method.start(task, state, EVERYONE)

    def plain(client, leaf, images, labels):
        prompts = [leaf["prompt"], *(leaf["deep"] if depth > 1 else [])]
        maps = zip(prompts, leaf["map.weight"], leaf["map.bias"], strict=True)
        tokens = torch.stack([torch.nn.functional.linear(p, w, b) for p, w, b in maps])
        text = plain_text(task, leaf["prompt"], tail="of a", deep=leaf.get("deep"))
        values = []
        for image, label in zip(images, labels, strict=True):
            feature = normalize(_image_feature(task.visual(), image, tokens))
            values.append(-(task.scale * text @ feature).log_softmax(0)[label])
        return torch.stack(values).mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_the_first_sentence_is_the_hand_written_one(task):
    """MaPLe learns two of four words: before training the sentence reads "a photo of a dog.", not "a photo dog."."""
    state = FedMaPLe(depth=1).init(task, torch.Generator())
    for method, tail in ((FedMaPLe(depth=1), "of a"), (FedMaPLe(depth=1, behind="dropped"), "")):
        local = method.start(task, state, EVERYONE)
        pixels = torch.randn(4, 2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        label = torch.zeros(4, 2, dtype=torch.int64)
        logits = method.logits(task, local, Batch(pixels, label, label == 0, label))
        tokens = local.params["prompt"] @ local.params["map.weight"][:, 0].mT + local.params["map.bias"][:, 0, None]
        seen = normalize(task.encode_images(pixels, tokens)[0])
        wanted = task.scale * seen @ normalize(task.sentences([f"a photo {tail} {{}}.".replace("  ", " ")])[0]).T
        torch.testing.assert_close(logits, wanted)
