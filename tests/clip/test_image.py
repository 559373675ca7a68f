"""Towers as a whole, image features against open_clip's own modules, and visual tokens against a plain re-run."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.clip import Towers
from fpl_tune.clip.image import cost
from fpl_tune.core.adapter import Adapter
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Tree
from fpl_tune.testing import toy_towers


@pytest.fixture(scope="module")
def vit() -> Towers:
    return toy_towers("vit")


@pytest.fixture(scope="module")
def resnet() -> Towers:
    return toy_towers("resnet")


def _pixels(towers: Towers, *lead: int) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    size = towers.image_size
    return torch.randn(*lead, 3, size, size, generator=rng, dtype=torch.float64)


def _tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_pooled_features_are_open_clips(vit, resnet):
    for towers in (vit, resnet):
        pixels = _pixels(towers, 2, 2)
        ours = towers.encode_images(pixels)
        torch.testing.assert_close(ours[1], towers.model.encode_image(pixels[1]))
        assert not ours.requires_grad


def test_resnet_patches_are_the_attention_pool_with_each_token_as_query(resnet):
    """Token 0 of the pool run everywhere is the pooled feature; a patch is the pool asked by that patch."""
    visual, pixels = resnet.model.visual, _pixels(resnet, 2)
    x = visual.layer4(visual.layer3(visual.layer2(visual.layer1(visual.stem(pixels)))))
    pool = visual.attnpool
    tokens = x.flatten(2).permute(2, 0, 1)
    tokens = torch.cat([tokens.mean(0, keepdim=True), tokens]) + pool.positional_embedding[:, None]
    bias = torch.cat([pool.q_proj.bias, pool.k_proj.bias, pool.v_proj.bias])
    everywhere, _ = F.multi_head_attention_forward(
        tokens, tokens, tokens, tokens.shape[-1], pool.num_heads, None, bias, None, None, False, 0.0,
        pool.c_proj.weight, pool.c_proj.bias, False, None, False, None, True,
        q_proj_weight=pool.q_proj.weight, k_proj_weight=pool.k_proj.weight, v_proj_weight=pool.v_proj.weight,
    )  # fmt: skip
    torch.testing.assert_close(everywhere[0], resnet.encode_images(pixels))
    torch.testing.assert_close(everywhere[1:].transpose(0, 1), resnet.encode_images(pixels, patches=True))


def test_vit_patches_are_projected_tokens(vit):
    visual, pixels = vit.model.visual, _pixels(vit, 2)
    tokens = visual.ln_post(visual.transformer(visual._embeds(pixels))) @ visual.proj
    torch.testing.assert_close(tokens[:, 0], vit.encode_images(pixels))
    torch.testing.assert_close(tokens[:, 1:], vit.encode_images(pixels, patches=True))


@pytest.mark.parametrize("place", ["front", "end"])
@pytest.mark.parametrize("deep", [False, True])
def test_prompted_images_against_whole_blocks(vit, place, deep):
    """One image at a time through open_clip's blocks, with the attention weights asked of its own module.

    Tokens behind the class token or behind the patches: attention does not depend on the order.
    """
    visual, pixels = vit.model.visual, _pixels(vit, 2, 3)
    tokens = _tokens(2, 5, vit.vision_width).requires_grad_()
    deeper = _tokens(2, 2, 5, vit.vision_width).requires_grad_() if deep else None
    features, looks = vit.encode_prompted_images(pixels, tokens, deep=deeper)
    _, cosines = vit.encode_prompted_images(pixels, tokens, deep=deeper, cosine=True)
    first = 1 if place == "front" else 17
    for client in range(2):
        for image in range(3):
            x = visual.conv1(pixels[client, image][None]).flatten(2).transpose(1, 2)
            x = torch.cat([visual.class_embedding[None, None], x], dim=1) + visual.positional_embedding
            x = torch.cat([x[:, :first], tokens[client][None], x[:, first:]], dim=1)
            x = visual.ln_pre(x)
            before = x
            for j, block in enumerate(visual.transformer.resblocks):
                if deeper is not None and 1 <= j <= 2:
                    x = torch.cat([x[:, :first], deeper[client, j - 1][None], x[:, first + 5 :]], dim=1)
                before, x = x, block(x)
            expected = visual.ln_post(x[:, 0]) @ visual.proj
            torch.testing.assert_close(features[client, image], expected[0])
            last = visual.transformer.resblocks[-1]
            y = last.ln_1(before)
            _, weights = last.attn(y, y, y, need_weights=True, average_attn_weights=False)
            scale = (vit.vision_width // 4) ** 0.5
            seen = weights[0, :, 0, first : first + 5].log()  # log-softmax: scores up to a constant per head
            given = looks[client, image] / scale
            torch.testing.assert_close(given - given[:, :1], seen - seen[:, :1])
            q, k = _last_queries_and_keys(last.attn, y[0])
            alike = torch.nn.functional.cosine_similarity(q[:, :1], k[:, first : first + 5], dim=-1)
            torch.testing.assert_close(cosines[client, image], alike)


def _last_queries_and_keys(attn: torch.nn.MultiheadAttention, y: Tensor) -> list[Tensor]:
    """Each [heads, tokens, width of a head] of one image's tokens [tokens, w]."""
    width = y.shape[-1]
    parts = (slice(0, width), slice(width, 2 * width))
    mapped = [y @ attn.in_proj_weight[part].mT + attn.in_proj_bias[part] for part in parts]
    return [rows.unflatten(-1, (attn.num_heads, -1)).transpose(0, 1) for rows in mapped]


def test_prompted_images_pass_gradients_to_tokens_and_deep_tokens(vit):
    pixels = _pixels(vit, 2, 1)
    tokens, deep = _tokens(2, 2, vit.vision_width), _tokens(2, 1, 2, vit.vision_width)

    def run(tokens: Tensor, deep: Tensor) -> Tensor:
        features, looks = vit.encode_prompted_images(pixels, tokens, deep=deep)
        return features.sum(-1) + looks.sum((-1, -2))

    step = 1e-6 * _tokens(2, 2, vit.vision_width)
    tokens.requires_grad_()
    deep.requires_grad_()
    first, second = torch.autograd.grad(run(tokens, deep).sum(), [tokens, deep])
    with torch.no_grad():
        moved = (run(tokens + step, deep) - run(tokens - step, deep)).sum() / 2
        torch.testing.assert_close((first * step).sum(), moved, rtol=1e-5, atol=1e-12)
        moved = (run(tokens, deep + step[:, None]) - run(tokens, deep - step[:, None])).sum() / 2
        torch.testing.assert_close((second * step[:, None]).sum(), moved, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("passed", [1, 2])
def test_images_that_have_passed_blocks_give_the_features_and_gradients_of_pixels(vit, passed):
    pixels, none = _pixels(vit, 2, 3), torch.zeros(2, 0, vit.vision_width, dtype=torch.float64)
    bias = _tokens(2, 3 - passed, vit.vision_width).requires_grad_()
    adapter = Adapter(_added, {"bias": bias}, first=passed)
    tokens = vit.encode_images(pixels, blocks=passed)
    assert tokens.shape == (2, 3, 1 + vit.n_patches, vit.vision_width)
    both = []
    for images, blocks in ((pixels, 0), (tokens, passed)):
        features, _ = vit.encode_prompted_images(images, none, adapter=adapter, passed=blocks)
        both.append((features, *torch.autograd.grad(features.square().sum(), bias)))
    for cached, whole in zip(*both, strict=True):
        torch.testing.assert_close(cached, whole, rtol=1e-12, atol=1e-12)


def _added(leaf: Tree, x: Tensor) -> Tensor:
    return (x * leaf["bias"][:, None]).tanh()


def test_images_that_have_passed_a_block_with_an_adapter_are_refused(vit):
    adapter = Adapter(_added, {"bias": _tokens(2, 3, vit.vision_width)})
    tokens = vit.encode_images(_pixels(vit, 2, 1), blocks=1)
    for n_tokens, inside in ((0, adapter), (2, None)):
        prompts = _tokens(2, n_tokens, vit.vision_width)
        with pytest.raises(ConfigError, match="raise its image_blocks"):
            vit.encode_prompted_images(tokens, prompts, adapter=inside, passed=1)


def test_what_needs_a_vit_is_refused_elsewhere(vit, resnet):
    with pytest.raises(ConfigError, match="need a ViT"):
        resnet.encode_prompted_images(_pixels(resnet, 1, 1), _tokens(1, 2, resnet.vision_width))


@pytest.mark.parametrize("patches", [False, True])
def test_images_in_several_passes_are_images_in_one(vit, monkeypatch, patches):
    pixels = torch.rand(2, 5, 3, 32, 32, dtype=vit.dtype)
    whole = vit.encode_images(pixels, patches=patches)
    monkeypatch.setattr("fpl_tune.clip.towers._PIXELS_CPU", 3 * 32**2)
    torch.testing.assert_close(vit.encode_images(pixels, patches=patches), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("below", [0, 2, 3])
def test_operations_are_those_that_pytorch_counts(below: int) -> None:
    """With prompts at the input, or added to what the second or the last of three blocks returns."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    towers = toy_towers()
    pixels, tokens = torch.randn(2, 3, 3, 32, 32, dtype=torch.float64), torch.zeros(2, 2, 32, dtype=torch.float64)
    bias = torch.zeros(2, 1, 32, dtype=torch.float64)
    adapter = (
        Adapter(lambda leaf, x: leaf["bias"][:, None].expand_as(x), {"bias": bias}, first=below - 1) if below else None
    )
    learned = bias if below else tokens
    learned.requires_grad_()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        features, _ = towers.encode_prompted_images(pixels, tokens, adapter=adapter)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    found = cost(towers.model.visual, 6, 2, below)
    looks = 2 * 6 * 2 * 32  # the class token's products with the prompts' keys
    assert found.tokens == 6 * 19
    if not below:  # without gradients, blocks run in a kernel that the counter does not know
        assert found.forward == forward.get_total_flops() - looks
    assert found.backward == backward.get_total_flops()


def test_operations_of_images_that_have_passed_blocks_are_those_of_the_blocks_left(vit) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    bias = torch.zeros(2, 1, vit.vision_width, dtype=torch.float64, requires_grad=True)
    adapter, none = Adapter(_added, {"bias": bias}, first=2), torch.zeros(2, 0, vit.vision_width)
    tokens = vit.encode_images(_pixels(vit, 2, 3), blocks=2)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        vit.encode_prompted_images(tokens, none, adapter=adapter, passed=2)
    found, whole = (cost(vit.model.visual, 6, below=3, passed=passed) for passed in (2, 0))
    assert found.forward == forward.get_total_flops()
    assert found.tokens == whole.tokens == 6 * 17
    assert found.backward == whole.backward
    two = cost(vit.model.visual, 6, below=3, passed=1)
    stem = 2 * 6 * vit.n_patches * vit.vision_width * 3 * 8**2
    assert whole.forward - stem - two.forward == two.forward - found.forward > 0, "a block each, behind the stem"


def test_sizes_are_those_of_the_features(vit, resnet):
    for towers in (vit, resnet):
        size = towers.image_size
        pixels = torch.rand(2, 3, size, size, dtype=towers.dtype)
        assert towers.encode_images(pixels).shape == (2, towers.embed_dim)
        assert towers.encode_images(pixels, patches=True).shape == (2, towers.n_patches, towers.embed_dim)
        assert towers.text.token_embedding.weight.shape[1] == towers.text_width
        assert towers.scale == pytest.approx(math.exp(towers.model.logit_scale.item()))
        assert towers.device == torch.device("cpu")


def test_blocks_below_the_last_ones_are_those_of_a_vit(vit, resnet):
    assert (vit.n_vision_blocks, vit.n_text_blocks, resnet.n_vision_blocks) == (3, 3, None)
    assert [vit.blocks_below(last) for last in (None, 0, 1, 3, 5)] == [0, 3, 2, 0, 0]
    assert [resnet.blocks_below(last) for last in (None, 0, 1)] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_an_accelerator_gives_the_features_of_the_cpu(kind, vit, resnet, sim, monkeypatch):
    """In as many passes as its memory asks for."""
    here = vit if kind == "vit" else resnet
    there = toy_towers(kind)
    there = Towers(there.model.to(sim), there.tokenizer, name=there.name)
    images = torch.randint(256, (5, 3, here.image_size, here.image_size), dtype=torch.uint8)
    pixels, moved = here.normalise(images), there.normalise(images.to(sim))
    torch.testing.assert_close(moved.cpu(), pixels)
    for limit in (1, 5):
        monkeypatch.setattr("fpl_tune.clip.towers.usable_bytes", lambda _, n=limit: n * 1000 * here.image_size**2)
        ways: list[dict[str, Any]] = [{}, {"patches": True}, *([{"blocks": 2}] if kind == "vit" else [])]
        for how in ways:
            torch.testing.assert_close(there.encode_images(moved, **how).cpu(), here.encode_images(pixels, **how))


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
    expected = (images[1, 2, 3] / 255 - np.array(vit.preprocessing.mean)) / np.array(vit.preprocessing.std)
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
    with pytest.raises(ConfigError, match="'strange' is not one of open_clip's, so a context cannot be put"):
        Towers(model, vit.tokenizer, name="strange")
    with pytest.raises(ConfigError, match="is not one of open_clip's"):
        toy_towers(pool_type="none")
