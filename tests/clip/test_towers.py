"""Towers as a whole: sizes, fingerprints, pixels, and what is refused."""

import math

import numpy as np
import pytest
import torch

from fpl_tune.clip import Towers
from fpl_tune.core.errors import ConfigError
from fpl_tune.testing import toy_towers


@pytest.fixture(scope="module")
def vit() -> Towers:
    return toy_towers("vit")


@pytest.fixture(scope="module")
def resnet() -> Towers:
    return toy_towers("resnet")


def test_sizes_are_those_of_the_features(vit, resnet):
    for towers in (vit, resnet):
        size = towers.image_size
        pixels = torch.rand(2, 3, size, size, dtype=towers.dtype)
        assert towers.encode_images(pixels).shape == (2, towers.embed_dim)
        assert towers.encode_images(pixels, patches=True).shape == (2, towers.n_patches, towers.embed_dim)
        assert towers.text.token_embedding.weight.shape[1] == towers.text_width
        assert towers.scale == pytest.approx(math.exp(towers.model.logit_scale.item()))
        assert towers.device == torch.device("cpu")


def test_fingerprint_tells_weights_apart(vit):
    assert toy_towers("vit").fingerprint == vit.fingerprint
    assert toy_towers("vit", seed=1).fingerprint != vit.fingerprint
    assert toy_towers("vit", dtype=torch.float32).fingerprint != vit.fingerprint
    changed = toy_towers("vit")
    changed.model.visual.proj[0, 0] += 1e-12
    assert changed.fingerprint != vit.fingerprint


def test_normalise_takes_both_layouts_and_types(vit):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    pixels = vit.normalise(images)
    assert pixels.shape == (2, 3, 5, 7)
    expected = (images[1, 2, 3] / 255 - np.array(vit.mean)) / np.array(vit.std)
    np.testing.assert_allclose(pixels[1, :, 2, 3].numpy(), expected, rtol=1e-12)
    first = torch.from_numpy(images).movedim(-1, 1)
    torch.testing.assert_close(vit.normalise(first), pixels)
    torch.testing.assert_close(vit.normalise(first.double() / 255), pixels)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 32), {}, r"l=2, d=32, not of shape \(3, 32\)"),
        ((2, 16), {}, r"\(2, 16\)"),
        ((3, 2, 32), {"per_class": True}, r"K=2.*\(3, 2, 32\)"),
        ((2, 32), {"deep": torch.zeros(3, 2, 32)}, "J < 3 blocks"),
        ((2, 32), {"deep": torch.zeros(1, 1, 32)}, r"not of shape \(1, 1, 32\)"),
    ],
)
def test_wrong_shapes_are_refused(vit, shape, options, message):
    sentences = vit.sentences(["cat", "dog"], 2)
    with pytest.raises(ConfigError, match=message):
        vit.encode_prompts(torch.zeros(shape), sentences, **options)


def test_a_text_tower_that_takes_no_context_is_refused(vit):
    model = torch.nn.Module()
    model.add_module("text", torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="not CLIP's"):
        Towers(model, vit.tokenizer, name="strange")
    with pytest.raises(ConfigError, match="not CLIP's"):
        toy_towers(pool_type="last")
