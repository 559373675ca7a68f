"""Attention by blocks, as accelerators run it, against attention by groups and against whole sentences."""

from collections.abc import Callable
from functools import partial, partialmethod

import pytest
import torch
from simulated_device import counting
from torch import Tensor

from fpl_tune.clip import Sentences, Towers, attention
from fpl_tune.clip.layout import Layout
from fpl_tune.testing import toy_towers

NAMES = ("cat", "red_star", "accordion", "yin yang", "a very long name of a class", "dog", "sea lion", "saxophone")


@pytest.fixture(scope="module", params=[False, True], ids=["GELU", "QuickGELU"])
def towers(request: pytest.FixtureRequest) -> Towers:
    return toy_towers(quick_gelu=request.param)


@pytest.fixture
def by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, on the CPU."""
    monkeypatch.setattr(Sentences, "layout", partialmethod(Sentences.layout, blocks=True))


def _draw(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _with_gradient(run: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    out = run(x)
    return [out.detach(), *torch.autograd.grad((out * _draw(tuple(out.shape), 9)).sum(), x)]


def _attend(layout: Layout, ends: bool, rows: Tensor, qkv: Tensor) -> Tensor:
    """Attention of `qkv`, which are some of the rows of the layout; of all others, something."""
    full = _draw((len(qkv), layout.n_tokens, qkv.shape[-1]), 8).index_copy(1, rows, qkv)
    out = attention.attend(full, attention.for_prompts(layout, len(qkv)), 4, ends=ends)
    return out if ends else out[:, rows]


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    ("position", "per_class"), [("end", False), ("middle", False), ("front", False), ("end", True)]
)
@pytest.mark.parametrize("n_ctx", [0, 3, 20])
def test_both_ways_agree(towers: Towers, n_ctx: int, position: str, per_class: bool, ends: bool) -> None:
    """Rows that pad are told by their position, which only the first row has otherwise."""
    sentences: Sentences = towers.sentences(NAMES, n_ctx, position=position)  # type: ignore[arg-type]
    found, n_rows = [], sum(sentences.lengths)
    for blocks in (False, True):
        layout = sentences.layout(per_class=per_class, dtype=torch.float64, blocks=blocks)
        rows = torch.tensor([row for row, place in enumerate(layout.positions.tolist()) if place or not row])
        n_rows = n_rows if blocks else len(rows)
        qkv = _draw((3, n_rows, 3 * 32), 1)
        found.append(_with_gradient(partial(_attend, layout, ends, rows), qkv))
    for ours, reference in zip(*reversed(found), strict=True):
        assert reference.norm() > 0
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("n_ctx", "per_class"), [(0, False), (3, False), (20, False), (3, True)])
def test_a_row_of_a_block_sees_the_prefix_and_its_sentence_up_to_itself(
    towers: Towers, n_ctx: int, per_class: bool
) -> None:
    """And a row that pads sees itself, as kernels give NaN for a row that sees nothing."""
    layout = towers.sentences(NAMES, n_ctx).layout(per_class=per_class, blocks=True)
    n, packing = layout.n_prefix, layout.packing
    assert packing is not None
    size = packing.n_keys - n
    assert layout.n_tokens == packing.n_blocks * size
    wanted = torch.zeros(layout.n_tokens, packing.n_keys, dtype=torch.bool)
    for row in range(layout.n_tokens):
        wanted[row, n + row % size] = True
    for row in range(n):
        wanted[row] = torch.arange(packing.n_keys) <= row
    for end in layout.ends.tolist():
        first = end - (int(layout.positions[end]) - n)
        assert first // size == end // size, "a sentence lies in one block"
        for row in range(first, end + 1):
            wanted[row, :n] = True
            wanted[row, n + first % size : n + row % size + 1] = True
    mask = packing.mask.flatten(0, 1)
    assert set(mask.unique().tolist()) == {0.0, -torch.inf}
    assert torch.equal(mask[:, : packing.n_keys] == 0, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [16, 12, 3])
def test_parts_lie_side_by_side_whether_words_fit_or_not(width: int, dtype: torch.dtype) -> None:
    whole = _draw((2, 5, 2 * width), 4).to(dtype)
    whole[0, 3] = torch.nan
    rows = [whole[:, None, some, width:].expand(-1, 3, -1, -1) for some in (slice(2), slice(2, None))]
    for given, dim in ((rows, 2), ([rows[1], rows[1][..., : width // 2]], -1)):
        torch.testing.assert_close(attention._cat(given, dim), torch.cat(given, dim), rtol=0, atol=0, equal_nan=True)


@pytest.mark.usefixtures("by_blocks")
@pytest.mark.parametrize("per_class", [False, True])
def test_blocks_equal_whole_sentences(towers: Towers, per_class: bool) -> None:
    sentences = towers.sentences(NAMES, 4)
    context = _draw((2, *([len(NAMES)] if per_class else []), 4, 32), 2)
    fast, plain = (
        _with_gradient(partial(towers.encode_prompts, sentences=sentences, per_class=per_class, plain=p), context)
        for p in (False, True)
    )
    for ours, reference in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)


def _moved(towers: Towers, device: torch.device) -> Towers:
    return Towers(towers.model.to(device), towers.tokenizer, name=towers.name)


def test_an_accelerator_launches_as_many_kernels_whatever_the_lengths(sim: torch.device) -> None:
    """At most 26 per layer, forward and backward, without a copy or a synchronisation; and the CPU's figures."""
    context = _draw((2, 4, 32), 3)
    here, found = toy_towers(quick_gelu=True), []
    reference = _with_gradient(lambda x: here.encode_prompts(x, here.sentences(NAMES, 4)), context)
    towers = _moved(toy_towers(quick_gelu=True), sim)
    for names in (NAMES[:1], NAMES):
        sentences = towers.sentences(names, 4)
        x = context.to(sim).requires_grad_()
        weight = _draw((2, len(names), 24), 9).to(sim)
        towers.encode_prompts(x, sentences)  # moves the layout
        with counting() as seen:
            features = towers.encode_prompts(x, sentences)
            (gradient,) = torch.autograd.grad(features, x, weight)
        assert not seen.syncs
        assert not seen.copies
        found.append(seen.launches.total())
    assert found[0] == found[1] <= 26 * towers.n_text_blocks + 24
    torch.testing.assert_close(features.cpu(), reference[0], rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(gradient.cpu(), reference[1], rtol=1e-8, atol=1e-8)


def test_what_a_layer_keeps_on_an_accelerator_is_what_is_estimated(sim: torch.device) -> None:
    """Queries, keys and values, by hooks; the fused kernel keeps its output and a sum for each row and head besides."""
    towers = toy_towers()
    layout = towers.sentences(NAMES, 4).layout(per_class=False, device=sim, dtype=torch.float64)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    qkv = _draw((3, layout.n_tokens, 3 * 32), 1).to(sim).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention.attend(qkv, attention.for_prompts(layout, len(qkv)), 4)
    assert layout.packing is not None
    mask = 3 * layout.packing.mask.numel()
    assert sum(kept.values()) - mask + 3 * layout.n_tokens * (32 + 4) == pytest.approx(
        3 * layout.n_tokens * 32 * attention.kept_numbers(layout, 32, 4)
    )
