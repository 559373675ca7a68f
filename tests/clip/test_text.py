"""The packed text path against open_clip's own modules on whole sentences, in features and gradients."""

import itertools
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fpl_tune.clip import Sentences, Towers, attention, load_towers, text
from fpl_tune.clip.sentences import tokenise
from fpl_tune.clip.text import cost
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Adapter, Tree
from fpl_tune.testing import toy_towers

NAMES = ("cat", "red_star", "accordion", "yin yang", "a very long name of a class", "dog")
N_CTX = 4


@pytest.fixture(scope="module", params=["GELU", "QuickGELU"])
def kind_towers(request: pytest.FixtureRequest):
    quick = request.param == "QuickGELU"
    made = {dtype: toy_towers(dtype=dtype, quick_gelu=quick) for dtype in (torch.float64, torch.float32)}
    return made.__getitem__


@pytest.fixture(scope="module")
def towers(kind_towers) -> Towers:
    return kind_towers(torch.float64)


@pytest.fixture(scope="module")
def sized():
    """The compact CLIP, and a tower with the text half of RN50 and the ViTs (its images and projection small)."""

    @cache
    def make(size: str, dtype: torch.dtype) -> Towers:
        if size == "compact":
            return load_towers("compact", dtype=dtype)
        return toy_towers(dtype=dtype, width=512, heads=8, layers=12)

    return make


def _inputs(towers: Towers, lead: tuple[int, ...], sentences: Sentences, per_class: bool, deep: bool):
    rng = torch.Generator().manual_seed(1)
    own = (len(sentences),) if per_class else ()
    shapes = [(*lead, *own, sentences.n_ctx, towers.text_width)]
    if deep:
        shapes.append((*lead, 2, sentences.n_ctx, towers.text_width))
    draws = [torch.randn(shape, generator=rng, dtype=torch.float64).to(towers.dtype) for shape in shapes]
    return [x.requires_grad_() for x in draws]


def _run(towers: Towers, sentences: Sentences, inputs: list[Tensor], **options: Any):
    deep = inputs[1] if len(inputs) > 1 else None
    features = towers.encode_prompts(inputs[0], sentences, deep=deep, **options)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2)).to(features.dtype)
    return [features.detach(), *torch.autograd.grad((features * weights).sum(), inputs)]


def _relative(ours: Tensor, reference: Tensor) -> float:
    return ((ours - reference).norm() / reference.norm()).item()


@pytest.mark.parametrize(
    ("position", "per_class", "deep"),
    list(itertools.product(["end", "middle", "front"], [False, True], [False, True])),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_packed_equals_plain(kind_towers, dtype, position, per_class, deep):
    towers, tolerance = kind_towers(dtype), 1e-9 if dtype == torch.float64 else 1e-4
    sentences = towers.sentences(NAMES, N_CTX, position=position)
    inputs = _inputs(towers, (2, 3), sentences, per_class, deep)
    fast = _run(towers, sentences, inputs, per_class=per_class)
    plain = _run(towers, sentences, inputs, per_class=per_class, plain=True)
    for ours, reference in zip(fast, plain, strict=True):
        assert reference.norm() > 0
        assert _relative(ours, reference) <= tolerance


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize(("per_class", "deep"), [(False, False), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", ["compact", "RN50"])
def test_packed_equals_plain_in_towers_of_true_size(sized, size, dtype, position, per_class, deep):
    towers, tolerance = sized(size, dtype), 1e-9 if dtype == torch.float64 else 1e-4
    sentences = towers.sentences(["star", "red triangle"], 3, position=position)
    inputs = [(0.1 * x.detach()).requires_grad_() for x in _inputs(towers, (1,), sentences, per_class, deep)]
    fast = _run(towers, sentences, inputs, per_class=per_class)
    plain = _run(towers, sentences, inputs, per_class=per_class, plain=True)
    for ours, reference in zip(fast, plain, strict=True):
        assert _relative(ours, reference) <= tolerance


def test_the_vision_transformers_have_one_text_tower():
    """So what holds for one of them holds for both; RN50's differs in the width of its features only."""
    import open_clip

    b16, b32, rn50 = (open_clip.get_model_config(name) or {} for name in ("ViT-B-16", "ViT-B-32", "RN50"))
    assert b16["text_cfg"] == b32["text_cfg"] == rn50["text_cfg"]
    assert (b16["embed_dim"], b32["embed_dim"], rn50["embed_dim"]) == (512, 512, 1024)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2)])
def test_leading_axes_are_kept_and_independent(towers, lead):
    sentences = towers.sentences(NAMES, N_CTX)
    (context,) = _inputs(towers, lead, sentences, False, False)
    features = towers.encode_prompts(context, sentences)
    assert features.shape == (*lead, len(NAMES), towers.embed_dim)
    rows = context.detach().reshape(-1, N_CTX, towers.text_width)
    alone = torch.stack([towers.encode_prompts(row, sentences) for row in rows])
    torch.testing.assert_close(features.detach().reshape(alone.shape), alone, rtol=1e-10, atol=1e-10)


def test_word_embeddings_as_context_give_the_written_sentence(towers):
    import open_clip

    ids = torch.tensor(towers.tokenizer.encode("a photo of a"))
    context = towers.text.token_embedding(ids)
    ours = towers.encode_prompts(context, towers.sentences(NAMES, len(ids)))
    written = [f"a photo of a {name.replace('_', ' ')}." for name in NAMES]
    reference = towers.model.encode_text(open_clip.tokenize(written))
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(towers.encode_text(written), reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", [1, 70, 10_000])
@pytest.mark.parametrize(
    ("per_class", "deep", "plain"), [(False, False, False), (True, True, False), (False, True, True)]
)
def test_result_does_not_depend_on_the_block(towers, block, per_class, deep, plain):
    sentences = towers.sentences(NAMES, N_CTX)
    inputs = _inputs(towers, (5,), sentences, per_class, deep)
    whole = _run(towers, sentences, inputs, per_class=per_class, plain=plain)
    more = {"per_class": per_class, "plain": plain, "block": block}
    for ours, reference in zip(_run(towers, sentences, inputs, **more), whole, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        features = towers.encode_prompts(inputs[0], sentences, deep=inputs[1] if deep else None, **more)
    torch.testing.assert_close(features, whole[0], rtol=1e-10, atol=1e-10)


def _kept(towers: Towers, context: Tensor, sentences: Sentences, block: int | None = None) -> int:
    """Bytes between forward and backward."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        towers.encode_prompts(context, sentences, block=block)
    return sum(sizes.values())


def test_a_block_bounds_what_is_kept_for_the_gradient(towers, monkeypatch):
    """With blocks, the inputs of what is computed again and what fits."""
    sentences = towers.sentences(NAMES, N_CTX)
    (context,) = _inputs(towers, (8,), sentences, False, False)
    assert _kept(towers, context, sentences, 1) < _kept(towers, context, sentences) / 10
    monkeypatch.setattr(text, "_KEPT_CPU", 200_000)
    assert _kept(towers, context, sentences) < 300_000 < _kept(towers, context, sentences, 10_000)


def test_prompts_at_once_are_as_many_as_fit(towers, monkeypatch):
    """Each of `n` keeps as much as the next; at least one runs."""
    sentences = towers.sentences(NAMES, N_CTX)
    one, three = (_kept(towers, _inputs(towers, (n,), sentences, False, False)[0], sentences) for n in (1, 3))
    monkeypatch.setattr(text, "_KEPT_CPU", 1)
    assert towers.text.prompts_at_once(sentences, towers.dtype) == 1
    monkeypatch.setattr(text, "_KEPT_CPU", 10 * (three - one) // 2)
    n = towers.text.prompts_at_once(sentences, towers.dtype)
    assert n == pytest.approx(10, abs=2)
    assert towers.text.prompts_at_once(sentences, torch.float32) == pytest.approx(2 * n, abs=1), "half the bytes"


def test_a_thousand_names_are_kept_whole_in_two_gigabytes(sized):
    """ImageNet's sentences under 16 context tokens have 4,182 tokens: what RN50's text half keeps of each, so often."""
    towers, tokens = sized("RN50", torch.float32), 4182
    sentences = towers.sentences([f"{name} {k}" for name in NAMES for k in range(20)], 16)
    (context,) = _inputs(towers, (1,), sentences, False, False)
    n_tokens = sentences.layout(per_class=False, device=context.device).n_tokens
    kept = _kept(towers, context, sentences, block=n_tokens) / n_tokens * tokens
    assert kept < 2e9
    assert kept < 1.2 * text._KEPT_CPU, "so that nothing is computed again"


@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_cost_is_what_is_counted(towers, monkeypatch, per_class, plain):
    """Matrix products by PyTorch's own counter, attention as two products (it cannot count the fused one)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(attention, "_SCALAR_LOOP", 0)
    sentences = towers.sentences(NAMES, N_CTX)
    inputs = _inputs(towers, (3,), sentences, per_class, False)
    expected = cost(towers.text, sentences, 3, per_class=per_class, plain=plain)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        features = towers.encode_prompts(inputs[0], sentences, per_class=per_class, plain=plain)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    assert forward.get_total_flops() == expected.forward
    assert backward.get_total_flops() == expected.backward


@pytest.mark.parametrize("below", [1, 2])
def test_blocks_below_a_branch_run_once_for_all_prompts(towers, monkeypatch, below):
    """Counted by PyTorch, where the branch itself is not a product."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(attention, "_SCALAR_LOOP", 0)
    sentences = towers.sentences(NAMES, 0)
    bias = torch.zeros(3, 1, 32, dtype=torch.float64, requires_grad=True)
    adapter = Adapter(_shifted, {"bias": bias}, first=below - 1)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        features = towers.encode_prompts(bias.new_zeros(0, 32), sentences, adapter=adapter)
    with FlopCounterMode(display=False) as backward:
        features.sum().backward()
    constant = cost(towers.text, sentences, 1, below=below)
    expected = cost(towers.text, sentences, 3, below=below)
    assert 0 < constant.forward < expected.forward < cost(towers.text, sentences, 3).forward
    assert forward.get_total_flops() == expected.forward
    assert backward.get_total_flops() == expected.backward


def _shifted(leaf: Tree, x: Tensor) -> Tensor:
    return x + leaf["bias"][:, None]


@pytest.mark.parametrize("plain", [False, True])
def test_no_prompts_give_no_features(towers, plain):
    sentences = towers.sentences(NAMES, N_CTX)
    features = towers.encode_prompts(torch.zeros(2, 0, N_CTX, 32), sentences, plain=plain)
    assert features.shape == (2, 0, len(NAMES), towers.embed_dim)


def test_second_derivatives_are_refused_rather_than_wrong(towers):
    sentences = towers.sentences(NAMES, N_CTX)
    (context,) = _inputs(towers, (), sentences, False, False)
    features = towers.encode_prompts(context, sentences)
    (first,) = torch.autograd.grad(features.square().sum(), context, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_towers_and_sentences_travel_between_processes(towers):
    sentences = towers.sentences(NAMES, N_CTX)
    context = torch.zeros(N_CTX, 32)
    expected = towers.encode_prompts(context, sentences)
    there, sent = pickle.loads(pickle.dumps((towers, sentences)))
    assert torch.equal(there.encode_prompts(context, sent), expected)
    assert there.fingerprint == towers.fingerprint


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("per_class", [False, True])
def test_tower_without_causal_mask_equals_whole_sentences(per_class, deep):
    """As MobileCLIP's; without a context, its features are those of its own text encoder."""
    import open_clip

    towers = toy_towers(no_causal_mask=True)
    sentences = towers.sentences(NAMES, N_CTX)
    inputs = _inputs(towers, (2,), sentences, per_class, deep)
    fast, turns, plain = (
        _run(towers, sentences, inputs, per_class=per_class, **how) for how in ({}, {"block": 40}, {"plain": True})
    )
    for ours, again, reference in zip(fast, turns, plain, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(again, reference, rtol=1e-9, atol=1e-9)
    written = towers.encode_text(list(NAMES))
    reference = towers.model.encode_text(open_clip.tokenize([name.replace("_", " ") for name in NAMES]))
    torch.testing.assert_close(written, reference, rtol=1e-9, atol=1e-9)


def test_tower_with_unusual_blocks_takes_the_plain_path_and_says_so_once(recwarn):
    towers = toy_towers()
    towers.text.resblocks[0].mlp.gelu = torch.nn.ReLU()
    sentences = towers.sentences(NAMES, N_CTX)
    inputs = _inputs(towers, (2,), sentences, False, False)
    with pytest.warns(UserWarning, match="unusual blocks"):
        first = _run(towers, sentences, inputs)
    recwarn.clear()
    plain = _run(towers, sentences, inputs, plain=True)
    again = _run(towers, sentences, inputs)
    assert not recwarn.list
    for ours, second, reference in zip(first, again, plain, strict=True):
        assert torch.equal(ours, second)
        assert torch.equal(ours, reference)


class Letters:
    """One token per letter: the smallest tokenizer."""

    sot, eot, pad, n_positions = 900, 901, 0, 16

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        del inside
        return [ord(letter) for letter in text if letter != " "]


A, B, DOT = ord("a"), ord("b"), ord(".")


@pytest.mark.parametrize(
    ("position", "slots"),
    [
        ("end", (900, -1, -2, -3, A, B, DOT, 901)),
        ("middle", (900, -1, A, B, -2, -3, DOT, 901)),
        ("front", (900, A, B, -1, -2, -3, DOT, 901)),
    ],
)
def test_position_of_the_name(position, slots):
    assert tokenise(Letters(), ["a_b"], 3, position=position).slots == (slots,)


def test_longest_sentence_fits_and_one_more_is_refused():
    tokenise(Letters(), ["abc"], 10)
    with pytest.raises(ConfigError, match=r"'abc' has 17 tokens \(11 of them context\).* at most 16"):
        tokenise(Letters(), ["abc"], 11)
