"""Causal attention over packed tokens: each row attends to the shared prefix and to its own suffix up to itself.

Two ways that agree. On CPUs, group by group of classes whose suffixes have the same length: no row is padded. On
accelerators, where every kernel costs a launch, by blocks: suffixes are packed into blocks of the same number of rows,
each beside a copy of the prefix's keys, and one call of PyTorch's fused attention serves all of them.

Letters in shapes: P prompts, R tokens of a prompt (see `fpl_tune.clip.sentences.Layout`), K classes, d width, H heads,
n tokens of the prefix, m of the longest suffix, B blocks of L rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fpl_tune.clip.sentences import Layout, Packing

_SCALAR_LOOP = 400


def attend(qkv: Tensor, layout: Layout, n_heads: int, *, ends: bool = False) -> Tensor:
    """Mixed values [P, R, d] of queries, keys and values [P, R, 3 d]; with `ends`, [P, K, d] of the EOT rows."""
    way = _ByGroups if qkv.device.type == "cpu" else _ByBlocks
    return cast(Tensor, way.apply(qkv, layout, n_heads, ends))


def for_prompts(layout: Layout, n_prompts: int, device: torch.device) -> Layout:
    """The layout as `attend` needs it: on accelerators the mask [P B, 1, L, n + L] is repeated once for all layers."""
    if device.type == "cpu":
        return layout
    packing = layout.packing
    mask = packing.mask.repeat(n_prompts, 1, 1).unsqueeze(1)[..., : packing.n_keys]
    return layout._replace(packing=packing._replace(mask=mask))


def kept_numbers(layout: Layout, width: int, n_heads: int, device: torch.device) -> float:
    """What a layer keeps for its gradient, in numbers per token and width: queries, keys, values, weights."""
    if device.type == "cpu":
        return 4.0  # the weights count as one
    packing = layout.packing  # queries and outputs, keys and values, sums of the weights
    size = len(packing.rows) // packing.n_blocks
    return packing.n_blocks * (2 * size + 2 * packing.n_keys + size * n_heads / width) / layout.n_tokens


class _ByBlocks(torch.autograd.Function):
    """4 launches forward and 6 backward (one more with `ends`), whatever the lengths.

    PyTorch's fused attention keeps neither scores nor weights, and reads and writes all heads of a row side by side, as
    the layers around it do. Its gradient is taken inside `backward`, so that rows are gathered and given back without
    atomic additions.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, n_heads: int, ends: bool) -> Tensor:
        packing = layout.packing
        rows = qkv.unflatten(-1, (3, -1))  # [P, R, 3, d]
        queries = rows[:, :, 0].index_select(1, packing.rows)  # [P, B L, d]
        keys, values = rows[:, :, 1:].index_select(1, packing.keys).unbind(2)  # [P, B (n + L), d]
        wanted = ctx.needs_input_grad[0]
        with torch.set_grad_enabled(wanted):
            inner = [_by_head(x, packing, n_heads).detach().requires_grad_(wanted) for x in (queries, keys, values)]
            mixed = F.scaled_dot_product_attention(*inner, attn_mask=packing.mask)
        if wanted:
            ctx.layout, ctx.n_heads, ctx.ends, ctx.inner = layout, n_heads, ends, (mixed, inner)
        place = packing.ends if ends else packing.place
        return _by_row(mixed.detach(), len(qkv)).index_select(1, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        mixed, inner = ctx.inner
        packing: Packing = ctx.layout.packing
        n, n_prompts = ctx.layout.n_prefix, len(grads[0])
        # Rows that pad attend to themselves alone: whatever gradient they are given, it reaches no other row.
        grad = grads[0].index_select(1, packing.owner if ctx.ends else packing.rows)
        grad = _by_head(grad.mul_(packing.is_end) if ctx.ends else grad, packing, ctx.n_heads)
        found = torch.autograd.grad(mixed, inner, grad, retain_graph=True)  # a loss may ask for its gradient twice
        by_slot = torch.cat([_by_row(x, n_prompts) for x in found], 1)
        out = by_slot.index_select(1, packing.own).unflatten(1, (-1, 3))  # [P, R, 3, d]
        of_keys = by_slot[:, len(packing.rows) :].unflatten(1, (2, packing.n_blocks, -1))[:, :, :, :n]
        torch.sum(of_keys, 2, out=out[:, :n, 1:].transpose(1, 2))
        return out.flatten(2), None, None, None


def _by_head(x: Tensor, packing: Packing, n_heads: int) -> Tensor:
    """[P, B s, d] -> [P B, H, s, d/H]"""
    return x.unflatten(1, (packing.n_blocks, -1)).unflatten(-1, (n_heads, -1)).flatten(0, 1).transpose(1, 2)


def _by_row(x: Tensor, n_prompts: int) -> Tensor:
    """[P B, H, s, d/H] -> [P, B s, d]"""
    return x.transpose(1, 2).flatten(2).unflatten(0, (n_prompts, -1)).flatten(1, 2)


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
    weights = scores.mul_(q.shape[-1] ** -0.5).softmax(dim=-1)
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
    d_scores = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype).mul_(q.shape[-1] ** -0.5)
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
    if not small or weights.device.type != "cpu":
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
