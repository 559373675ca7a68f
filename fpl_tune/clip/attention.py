"""Attention over packed tokens: each row attends to the shared prefix and to its own suffix, in causal towers up to
itself.

Ways that agree. On CPUs, group by group of classes whose suffixes have the same length: no row is padded. On
accelerators, where every kernel costs a launch, by blocks: suffixes lie in blocks of the same number of rows, each
beside a copy of the prefix's keys, and one call of PyTorch's fused attention serves all of them. The layout decides.

Letters in shapes: P prompts, R tokens of a prompt (see `fpl_tune.clip.layout.Layout`), K classes, d width, H heads,
n tokens of the prefix, m of the longest suffix, B blocks of L rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fpl_tune.clip.layout import Layout, Packing

_SCALAR_LOOP = 400
_WORD = torch.complex128
_products: ContextVar[bool] = ContextVar("products", default=False)


@contextmanager
def as_products() -> Iterator[None]:
    """Within the block, small products are matrix products too, so that PyTorch's counter of operations sees them."""
    before = _products.set(True)
    try:
        yield
    finally:
        _products.reset(before)


def attend(qkv: Tensor, layout: Layout, n_heads: int, *, ends: bool = False) -> Tensor:
    """Mixed values [P, R, d] of queries, keys and values [P, R, 3 d]; with `ends`, [P, K, d] of the EOT rows."""
    on_cpu = _ByGroups if layout.reading.causal else _BySentences
    way = on_cpu if layout.packing is None else _ByBlocks
    return cast(Tensor, way.apply(qkv, layout, n_heads, ends))


def for_prompts(layout: Layout, n_prompts: int) -> Layout:
    """The layout as `attend` needs it: the mask [P B, 1, L, n + L] of blocks is repeated once for all layers."""
    packing = layout.packing
    if packing is None:
        return layout
    mask = packing.mask.repeat(n_prompts, 1, 1).unsqueeze(1)[..., : packing.n_keys]
    return layout._replace(packing=packing._replace(mask=mask))


def kept_numbers(layout: Layout, width: int, n_heads: int) -> float:
    """Memory that a layer keeps for its gradient, in numbers per token and width: queries, keys, values, weights."""
    packing = layout.packing
    if packing is None:
        return 4.0  # the weights count as one
    # Queries, keys, values and outputs of the rows, keys and values of the blocks, sums of the weights.
    return 4 + 2 * packing.n_blocks * packing.n_keys / layout.n_tokens + n_heads / width


class _ByBlocks(torch.autograd.Function):
    """2 launches forward and 5 backward (two more with `ends`), whatever the lengths.

    PyTorch's fused attention keeps neither scores nor weights, and reads and writes all heads of a row side by side, as
    the layers around it do. Rows lie in their blocks already: queries are read where the layer before has left them,
    and only keys and values are copied, to lie behind those of the prefix. The gradient is taken inside `backward`, so
    that it is written where it belongs without atomic additions.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, n_heads: int, ends: bool) -> Tensor:
        packing = cast(Packing, layout.packing)
        width, wanted = qkv.shape[-1] // 3, ctx.needs_input_grad[0]
        own = qkv.unflatten(1, (packing.n_blocks, -1))  # [P, B, L, 3 d]
        prefix = qkv[:, None, : layout.n_prefix].expand(-1, packing.n_blocks, -1, -1)
        pairs = _cat([prefix[..., width:], own[..., width:]], 2)  # keys and values [P, B, n + L, 2 d]
        parts = own[..., :width], *pairs.split(width, -1)
        with torch.set_grad_enabled(wanted):
            inner = [_by_head(x, n_heads).detach().requires_grad_(wanted) for x in parts]
            mixed = F.scaled_dot_product_attention(*inner, attn_mask=packing.mask)
        if wanted:
            ctx.layout, ctx.n_heads, ctx.ends, ctx.inner = layout, n_heads, ends, (mixed, inner)
        out = _by_row(mixed.detach(), len(qkv)).flatten(1, 2)
        return out.index_select(1, layout.ends) if ends else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (mixed, inner), layout, (grad,) = ctx.inner, ctx.layout, grads
        n, n_prompts, width = layout.n_prefix, *grad.shape[::2]
        if ctx.ends:
            grad = grad.new_zeros(n_prompts, layout.n_tokens, width).index_copy_(1, layout.ends, grad)
        grad = _by_head(grad.unflatten(1, (layout.packing.n_blocks, -1)), ctx.n_heads)
        gradients = torch.autograd.grad(mixed, inner, grad, retain_graph=True)  # a loss may request its gradient twice
        queries, *pair = (_by_row(x, n_prompts) for x in gradients)
        out = _cat([queries, *(x[:, :, n:] for x in pair)], -1).flatten(1, 2)  # [P, R, 3 d]
        for i, x in enumerate(pair, start=1):  # no row sees a row of the prefix as one of its own block
            torch.sum(x[:, :, :n], 1, out=out[:, :n, i * width : (i + 1) * width])
        return out, None, None, None


def _cat(parts: list[Tensor], dim: int) -> Tensor:
    """`torch.cat`. On CUDA it moves parts with gaps number by number, so that 16 bytes at once pass for a number."""
    n = _WORD.itemsize // parts[0].element_size()
    if any(size % n for x in parts for size in (x.shape[-1], x.storage_offset(), *x.stride()[:-1])):
        return torch.cat(parts, dim)
    return torch.cat([x.view(_WORD) for x in parts], dim).view(parts[0].dtype)


def _by_head(x: Tensor, n_heads: int) -> Tensor:
    """[P, B, s, d] -> [P B, H, s, d/H]"""
    return x.unflatten(-1, (n_heads, -1)).flatten(0, 1).transpose(1, 2)


def _by_row(x: Tensor, n_prompts: int) -> Tensor:
    """[P B, H, s, d/H] -> [P, B, s, d]"""
    return x.transpose(1, 2).flatten(2).unflatten(0, (n_prompts, -1))


class _BySentences(torch.autograd.Function):
    """Without a causal mask: the products of all sentences of one length and their heads are one batched product."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, n_heads: int, ends: bool) -> Tensor:
        q, k, v = qkv.chunk(3, -1)
        q = q[:, layout.ends] if ends else q
        mixed, kept = q.new_empty(q.shape), []
        for rows, own, n_classes, _ in _slices(layout, ends):
            parts = q[:, rows], k[:, own], v[:, own]
            queries, keys, values = (_heads(x, n_classes, n_heads).flatten(0, 2) for x in parts)
            weights = (queries @ keys.transpose(1, 2)).mul_(keys.shape[-1] ** -0.5).softmax(-1)
            into = _heads(mixed[:, rows], n_classes, n_heads)
            into.copy_((weights @ values).view(into.shape))
            kept += queries, keys, values, weights
        if ctx.needs_input_grad[0]:
            ctx.layout, ctx.n_heads, ctx.ends = layout, n_heads, ends
            ctx.save_for_backward(*kept)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,), layout, ends, kept = grads, ctx.layout, ctx.ends, iter(ctx.saved_tensors)
        n_prompts, _, width = grad.shape
        out = grad.new_empty(n_prompts, layout.n_tokens, 3 * width)
        d_q, d_k, d_v = out.chunk(3, -1)
        d_q = grad.new_empty(grad.shape) if ends else d_q
        for rows, own, n_classes, _ in _slices(layout, ends):
            queries, keys, values, weights = (next(kept) for _ in range(4))
            above = _heads(grad[:, rows], n_classes, ctx.n_heads).flatten(0, 2)
            d_scores = _softmax_backward(above @ values.transpose(1, 2), weights).mul_(keys.shape[-1] ** -0.5)
            found = d_scores @ keys, d_scores.transpose(1, 2) @ queries, weights.transpose(1, 2) @ above
            for into, x in zip((d_q[:, rows], d_k[:, own], d_v[:, own]), found, strict=True):
                into = _heads(into, n_classes, ctx.n_heads)
                into.copy_(x.view(into.shape))
        if ends:
            out[..., :width].zero_().index_copy_(1, layout.ends, d_q)
        return out, None, None, None


def _heads(x: Tensor, n_classes: int, n_heads: int) -> Tensor:
    """[P, G s, d] -> [P, G, H, s, d/H], a view"""
    return x.unflatten(1, (n_classes, -1)).unflatten(-1, (n_heads, -1)).transpose(2, 3)


class _ByGroups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, n_heads: int, ends: bool) -> Tensor:
        heads = qkv.unflatten(-1, (3, n_heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2).contiguous()
        queries, keys, values = heads  # [P H, R, d/H]
        queries = queries[:, layout.ends] if ends else queries
        mixed, weights = _mix(queries, keys, values, layout, ends)
        if ctx.needs_input_grad[0]:
            ctx.layout, ctx.n_heads, ctx.ends = layout, n_heads, ends
            ctx.save_for_backward(queries, keys, values, weights)
        return mixed.unflatten(0, (-1, n_heads)).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        queries, keys, values, weights = ctx.saved_tensors
        grad = grads[0].unflatten(-1, (ctx.n_heads, -1)).transpose(1, 2).flatten(0, 1)
        by_heads = _mix_backward(grad, queries, keys, values, weights, ctx.layout, ctx.ends)
        by_heads = by_heads.unflatten(1, (-1, ctx.n_heads)).permute(1, 3, 0, 2, 4)
        return by_heads.flatten(2), None, None, None


def _mix(q: Tensor, k: Tensor, v: Tensor, layout: Layout, ends: bool) -> tuple[Tensor, Tensor]:
    """Mixed values [P H, rows, d/H] and attention weights [P H, rows, n + m].

    Rows attend to the n tokens of the prefix (first columns) and to their own suffix up to themselves (last
    columns, -inf where the suffix is shorter). With `ends`, queries are the EOT rows of the groups in turn.
    """
    n = layout.n_prefix
    longest = max(group.length for group in layout.groups)
    scores = q.new_full((*q.shape[:2], n + longest), -math.inf)
    scores[..., :n] = q @ k[:, :n].transpose(1, 2)
    if not ends:
        scores[:, :n, :n].masked_fill_(_later(n, q.device), -math.inf)
    for rows, own, n_classes, length in _slices(layout, ends):
        block = _per_class(q[:, rows], n_classes) @ _per_class(k[:, own], n_classes).transpose(1, 2)
        if not ends:
            block.masked_fill_(_later(length, q.device), -math.inf)
        scores[:, rows, n : n + length] = block.view(len(q), -1, length)
    weights = scores.mul_(q.shape[-1] ** -0.5).softmax(-1)
    mixed = weights[..., :n] @ v[:, :n]
    for rows, own, n_classes, length in _slices(layout, ends):
        part = _mixed(_per_class(weights[:, rows, n : n + length], n_classes), _per_class(v[:, own], n_classes))
        mixed[:, rows] += part.view(len(q), -1, v.shape[-1])
    return mixed, weights


def _mix_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, layout: Layout, ends: bool) -> Tensor:
    """Gradients [3, P H, R, d/H] by queries, keys and values."""
    n = layout.n_prefix
    out = k.new_empty(3, *k.shape)
    d_weights = torch.zeros_like(weights)
    d_weights[..., :n] = grad @ v[:, :n].transpose(1, 2)
    out[2, :, :n] = weights[..., :n].transpose(1, 2) @ grad
    for rows, own, n_classes, length in _slices(layout, ends):
        above = _per_class(grad[:, rows], n_classes)
        part = above @ _per_class(v[:, own], n_classes).transpose(1, 2)
        d_weights[:, rows, n : n + length] = part.view(len(q), -1, length)
        seen = _per_class(weights[:, rows, n : n + length], n_classes)
        out[2, :, own] = _mixed(seen.transpose(1, 2), above).view(len(q), -1, v.shape[-1])
    d_scores = _softmax_backward(d_weights, weights).mul_(q.shape[-1] ** -0.5)
    d_queries = d_scores[..., :n] @ k[:, :n]
    out[1, :, :n] = d_scores[..., :n].transpose(1, 2) @ q
    for rows, own, n_classes, length in _slices(layout, ends):
        part = _per_class(d_scores[:, rows, n : n + length], n_classes)
        d_queries[:, rows] += _mixed(part, _per_class(k[:, own], n_classes)).view(len(q), -1, q.shape[-1])
        below = _mixed(part.transpose(1, 2), _per_class(q[:, rows], n_classes))
        out[1, :, own] = below.view(len(q), -1, k.shape[-1])
    if ends:
        out[0].zero_().index_copy_(1, layout.ends, d_queries)
    else:
        out[0] = d_queries
    return out


def _softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """The gradient by the scores. `torch.autograd.grad` would import sympy: 40 MB in every worker."""
    return torch.ops.aten._softmax_backward_data(grad, weights, -1, weights.dtype)


def _slices(layout: Layout, ends: bool) -> Iterator[tuple[slice, slice, int, int]]:
    """Per group: its query rows, its key rows, number of classes, length of a suffix."""
    row = 0
    for start, n_classes, length in layout.groups:
        own = slice(start, start + n_classes * length)
        yield slice(row, row + n_classes) if ends else own, own, n_classes, length
        row += n_classes


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    """weights @ values of many pairs of matrices, [n, i, j] and [n, j, c].

    On CPUs PyTorch's batched product takes a slow scalar loop for pairs below 400 multiplications.
    """
    small = weights.shape[1] * weights.shape[2] * values.shape[2] < _SCALAR_LOOP
    if not small or weights.device.type != "cpu" or _products.get():
        return weights @ values
    out = weights[:, :, :1] * values[:, :1]
    for j in range(1, values.shape[1]):
        out.addcmul_(weights[:, :, j, None], values[:, j, None])
    return out


def _per_class(x: Tensor, n_classes: int) -> Tensor:
    """[P H, G s, c] -> [P H G, s, c]"""
    return x.reshape(len(x) * n_classes, -1, x.shape[-1])


def _later(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).triu_(1)
