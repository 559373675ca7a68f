"""Branches inside the blocks of both towers, against towers whose weights were changed or whose modules were hooked."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from fpl_tune.clip import Towers
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Adapter, Tree
from fpl_tune.testing import toy_towers

NAMES = ("cat", "red star", "accordion", "dog")
C, WIDTH, RANK = 3, 32, 2


def low_rank(leaf: Tree, x: Tensor) -> Tensor:
    return x @ leaf["a"] @ leaf["b"]


def squashed(leaf: Tree, x: Tensor) -> Tensor:
    return (x @ leaf["a"]).tanh() @ leaf["b"]


def _inside(branch, place: str, first: int, n_blocks: int, n_clients: int = C) -> Adapter:
    rng = torch.Generator().manual_seed(5)
    a = torch.randn(n_clients, n_blocks, WIDTH, RANK, generator=rng, dtype=torch.float64)
    b = torch.randn(n_clients, n_blocks, RANK, WIDTH, generator=rng, dtype=torch.float64)
    leaf = {"a": (0.3 * a).requires_grad_(), "b": (0.3 * b).requires_grad_()}
    return Adapter(branch, leaf, first, "attention" if place == "attention" else "block")


@pytest.fixture(scope="module")
def towers() -> Towers:
    return toy_towers()


def _context(n_ctx: int, *lead: int) -> Tensor:
    drawn = torch.randn(*lead, n_ctx, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return drawn.requires_grad_()


@pytest.mark.parametrize(("place", "branch"), [("block", squashed), ("attention", low_rank)])
@pytest.mark.parametrize(("first", "n_blocks"), [(0, 3), (1, 2), (2, 1), (0, 1)])
@pytest.mark.parametrize("n_ctx", [0, 2])
def test_packed_equals_plain_with_a_branch(towers, place, branch, first, n_blocks, n_ctx):
    sentences, context = towers.sentences(NAMES, n_ctx), _context(n_ctx, C)
    adapter = _inside(branch, place, first, n_blocks)
    leaves = [*adapter.leaf.values(), *([context] if n_ctx else [])]
    both = []
    for plain in (False, True):
        features = towers.encode_prompts(context, sentences, adapter=adapter, plain=plain)
        both.append([features, *torch.autograd.grad(features.square().sum(), leaves)])
    for ours, reference in zip(*both, strict=True):
        assert reference.abs().max() > 0
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    without = towers.encode_prompts(context, sentences)
    assert not torch.allclose(without, both[0][0])


def test_a_low_rank_branch_of_attention_is_a_changed_output_projection(towers):
    """ΔW x = x A B of the first two blocks, against towers with W + (A B)ᵀ."""
    context, adapter = _context(2, C), _inside(low_rank, "attention", 0, 2)
    sentences = towers.sentences(NAMES, 2)
    found = towers.encode_prompts(context, sentences, adapter=adapter)
    for client in range(C):
        changed = Towers(deepcopy(towers.model), towers.tokenizer, name="changed")
        for j in range(2):
            weight = changed.text.resblocks[j].attn.out_proj.weight
            weight += (adapter.leaf["a"][client, j] @ adapter.leaf["b"][client, j]).T.detach()
        torch.testing.assert_close(changed.encode_prompts(context[client], sentences), found[client])


@pytest.mark.parametrize("kind", ["text", "image"])
def test_a_branch_beside_a_block_is_added_to_its_output(towers, kind):
    """Against forward hooks on open_clip's blocks that read LN₁ of the input."""
    adapter = _inside(squashed, "block", 1, 2)
    model = deepcopy(towers.model)
    hooked = Towers(model, towers.tokenizer, name="hooked")
    blocks = (model.transformer if kind == "text" else model.visual.transformer).resblocks
    now = 0

    def hook(j: int):
        def added(block, given, out):
            leaf = {name: values[now, j] for name, values in adapter.leaf.items()}
            return out + squashed(leaf, block.ln_1(given[0]))

        return added

    for j in range(2):
        blocks[j + 1].register_forward_hook(hook(j))
    pixels = torch.randn(C, 2, 3, 32, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    context, sentences = _context(2, C), towers.sentences(NAMES, 2)
    if kind == "text":
        found = towers.encode_prompts(context, sentences, adapter=adapter)
    else:
        found, _ = towers.encode_prompted_images(pixels, pixels.new_zeros(C, 0, WIDTH), adapter=adapter)
    for client in range(C):
        now = client
        if kind == "text":
            wanted = hooked.encode_prompts(context[client], sentences, plain=True)
        else:
            wanted = hooked.encode_images(pixels[client])
        torch.testing.assert_close(found[client], wanted, rtol=1e-9, atol=1e-9)


def test_image_branches_reach_every_client_alone_and_their_gradient(towers):
    pixels = torch.randn(C, 2, 3, 32, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    tokens = _context(2, C)
    adapter = _inside(low_rank, "attention", 0, 3)
    features, looks = towers.encode_prompted_images(pixels, tokens, adapter=adapter)
    together = torch.autograd.grad(features.square().sum() + looks.sum(), [tokens, *adapter.leaf.values()])
    for client in range(C):
        own = adapter.each(lambda leaf, c=client: leaf[c : c + 1])
        alone, _ = towers.encode_prompted_images(pixels[client][None], tokens[client][None], adapter=own)
        torch.testing.assert_close(alone[0], features[client])
    assert all(gradient.abs().flatten(1).sum(1).gt(0).all() for gradient in together)


def test_the_result_does_not_depend_on_the_turns(towers):
    adapter, sentences, context = _inside(squashed, "block", 0, 3), towers.sentences(NAMES, 2), _context(2, C)
    results = []
    for block in (1, None):
        features = towers.encode_prompts(context, sentences, adapter=adapter, block=block)
        results.append([features, *torch.autograd.grad(features.square().sum(), list(adapter.leaf.values()))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_branch_is_known_by_the_name_of_its_function():
    adapter = _inside(squashed, "block", 0, 2)
    assert adapter.key != adapter._replace(branch=low_rank).key
    assert adapter.key != adapter._replace(first=1).key
    nameless = adapter._replace(branch=lambda leaf, x: x)
    with pytest.raises(ConfigError, match="module-level function"):
        str(nameless.key)


def test_embedded_patches_are_what_the_transformer_reads(towers):
    pixels = torch.randn(C, 2, 3, 32, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = towers.embed_images(pixels)
    visual = towers.model.visual
    assert found.shape == (C, 2, towers.n_patches, WIDTH)
    x = torch.cat(
        [(visual.class_embedding + visual.positional_embedding[0]).expand(C * 2, 1, -1), found.flatten(0, 1)], 1
    )
    pooled = visual.ln_post(visual.transformer(visual.ln_pre(x))[:, 0]) @ visual.proj
    torch.testing.assert_close(pooled.unflatten(0, (C, 2)), towers.encode_images(pixels))
