"""Residual blocks of a frozen causal text tower over packed tokens, with their gradients written out.

Letters in shapes: P prompts, R tokens of a prompt (see `fpl_tune.clip.sentences.Layout`), K classes, d width,
H heads, n tokens of the prefix, m of the longest suffix, G classes of a group, s tokens of their suffixes.

Weights are frozen, so a linear layer keeps nothing for its gradient and a block only its input, queries, keys,
values, attention weights and the MLP's hidden layer. Second derivatives are not defined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fpl_tune.clip.sentences import Layout

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

_SCALAR_LOOP = 400
_QUICK = 1.702


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i] times weight [o, i] transposed, plus bias [o].

    In float32 on CPUs by oneDNN's kernel, measured 5 to 15 % faster than the default one.
    """
    if _ONEDNN is not None and x.device.type == "cpu" and x.dtype == torch.float32:
        return _ONEDNN(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """A frozen linear layer, added to `onto` if given: nothing but its weight is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor | None) -> Tensor:
        ctx.weight = weight
        out = linear(x, weight, bias)
        return out if onto is None else out.add_(onto)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0].contiguous()
        return linear(grad, ctx.weight.t()), None, None, grad if ctx.needs_input_grad[3] else None


class Activation(NamedTuple):
    """GELU, its tanh approximation, or CLIP's QuickGELU x·sigmoid(1.702 x)."""

    kind: str

    @classmethod
    def of(cls, module: nn.Module) -> Activation | None:
        if isinstance(module, nn.GELU):
            return cls(module.approximate)
        return cls("quick") if type(module).__name__ == "QuickGELU" else None

    def __call__(self, x: Tensor) -> Tensor:
        """The activated x. QuickGELU is SiLU scaled, and leaves 1.702 x in `x` for `backward_`."""
        if self.kind == "quick":
            return F.silu(x.mul_(_QUICK)).mul_(1 / _QUICK)
        return F.gelu(x, approximate=self.kind)

    def backward_(self, grad: Tensor, x: Tensor) -> Tensor:
        """The gradient by the input, of its shape, written into `grad`, given what `__call__` left of it in `x`."""
        if self.kind == "quick":
            return torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=grad)
        return torch.ops.aten.gelu_backward.grad_input(grad, x, approximate=self.kind, grad_input=grad)


class Block(NamedTuple):
    """The weights of one residual block."""

    norm_1: nn.LayerNorm
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    norm_2: nn.LayerNorm
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    activation: Activation
    n_heads: int

    @classmethod
    def of(cls, module: Any) -> Block | None:
        """The weights of open_clip's usual block; None if the block has more to it."""
        attn: Any = getattr(module, "attn", None)
        mlp: Any = getattr(module, "mlp", None)
        if not (
            isinstance(attn, nn.MultiheadAttention)
            and attn.in_proj_bias is not None
            and [name for name, _ in mlp.named_children()] == ["c_fc", "gelu", "c_proj"]
            and all(isinstance(scale, nn.Identity) for scale in (module.ls_1, module.ls_2))
            and Activation.of(mlp.gelu) is not None
        ):
            return None
        return cls(
            module.ln_1,
            (attn.in_proj_weight, attn.in_proj_bias),
            (attn.out_proj.weight, attn.out_proj.bias),
            module.ln_2,
            (mlp.c_fc.weight, mlp.c_fc.bias),
            (mlp.c_proj.weight, mlp.c_proj.bias),
            cast(Activation, Activation.of(mlp.gelu)),
            attn.num_heads,
        )

    def first(self, words: Tensor, context: Tensor, layout: Layout) -> Tensor:
        """The first block, told apart: words [1, R, d] are constants, only context rows [P, c, d] are not."""
        n_prompts, rows = len(context), layout.context
        x = words.expand(n_prompts, -1, -1).index_copy(1, rows, context)
        qkv = _linear(self.norm_1(words), self.qkv).expand(n_prompts, -1, -1)
        return self._rest(x, qkv.index_copy(1, rows, _linear(self.norm_1(context), self.qkv)), layout)

    def __call__(self, x: Tensor, layout: Layout) -> Tensor:
        """Tokens [P, R, d] after the block."""
        return self._rest(x, _linear(self.norm_1(x), self.qkv), layout)

    def last(self, x: Tensor, layout: Layout) -> Tensor:
        """The EOT tokens [P, K, d] after the block, in the order of the layout."""
        return self._rest(x, _linear(self.norm_1(x), self.qkv), layout, ends=True)

    def _rest(self, x: Tensor, qkv: Tensor, layout: Layout, *, ends: bool = False) -> Tensor:
        mixed = _Attend.apply(qkv, layout, self.n_heads, ends)
        x = _linear(mixed, self.out, x[:, layout.ends] if ends else x)
        return cast(Tensor, _Mlp.apply(x, self))


def _linear(x: Tensor, weights: tuple[Tensor, Tensor], onto: Tensor | None = None) -> Tensor:
    return cast(Tensor, _Linear.apply(x, *weights, onto))


class _Mlp(torch.autograd.Function):
    """x + MLP(LayerNorm(x))"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        norm = block.norm_2
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
        hidden = linear(y, *block.up)
        active = block.activation(hidden)
        if ctx.needs_input_grad[0]:
            ctx.block = block
            ctx.save_for_backward(x, mean, rstd, hidden)
        return linear(active, *block.down).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        block: Block = ctx.block
        x, mean, rstd, hidden = ctx.saved_tensors
        grad = grads[0].contiguous()
        inner = block.activation.backward_(linear(grad, block.down[0].t()), hidden)
        inner = linear(inner, block.up[0].t())
        norm, by_input = block.norm_2, [True, False, False]
        inner = torch.ops.aten.native_layer_norm_backward(
            inner, x, x.shape[-1:], mean, rstd, norm.weight, norm.bias, by_input
        )[0]
        return inner.add_(grad), None


class _Attend(torch.autograd.Function):
    """Mixed values [P, R, d] of queries, keys and values [P, R, 3 d]; with `ends` [P, K, d] of the EOT rows."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, layout: Layout, n_heads: int, ends: bool) -> Tensor:
        heads = qkv.unflatten(-1, (3, n_heads, -1)).permute(2, 0, 3, 1, 4).flatten(1, 2).contiguous()
        queries, keys, values = heads  # [P H, R, d/H]
        queries = queries[:, layout.ends] if ends else queries
        mixed, weights = _attend(queries, keys, values, layout, ends)
        if ctx.needs_input_grad[0]:
            ctx.layout, ctx.n_heads, ctx.ends = layout, n_heads, ends
            ctx.save_for_backward(queries, keys, values, weights)
        return mixed.unflatten(0, (-1, n_heads)).transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        queries, keys, values, weights = ctx.saved_tensors
        grad = grads[0].unflatten(-1, (ctx.n_heads, -1)).transpose(1, 2).flatten(0, 1)
        by_heads = _attend_backward(grad, queries, keys, values, weights, ctx.layout, ctx.ends)
        by_heads = by_heads.unflatten(1, (-1, ctx.n_heads)).permute(1, 3, 0, 2, 4)
        return by_heads.flatten(2), None, None, None


def _attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout, ends: bool) -> tuple[Tensor, Tensor]:
    """Mixed values [P H, rows, d/H] and attention weights [P H, rows, n + m].

    Rows attend to the n tokens of the prefix (first columns) and to their own suffix up to themselves (last
    columns, -inf where the suffix is shorter). With `ends`, queries are the EOT rows of the groups in turn.
    """
    n = layout.n_prefix
    longest = max(group.length for group in layout.groups)
    scores = q.new_full((*q.shape[:2], n + longest), -math.inf)
    scores[..., :n] = q @ k[:, :n].transpose(1, 2)
    if not ends:
        scores[:, :n, :n].masked_fill_(_ahead(n, q.device), -math.inf)
    for rows, own, n_classes, length in _slices(layout, ends):
        block = _per_class(q[:, rows], n_classes) @ _per_class(k[:, own], n_classes).transpose(1, 2)
        if not ends:
            block.masked_fill_(_ahead(length, q.device), -math.inf)
        scores[:, rows, n : n + length] = block.view(len(q), -1, length)
    weights = scores.mul_(q.shape[-1] ** -0.5).softmax(dim=-1)
    mixed = weights[..., :n] @ v[:, :n]
    for rows, own, n_classes, length in _slices(layout, ends):
        part = _mixed(_per_class(weights[:, rows, n : n + length], n_classes), _per_class(v[:, own], n_classes))
        mixed[:, rows] += part.view(len(q), -1, v.shape[-1])
    return mixed, weights


def _attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, layout: Layout, ends: bool
) -> Tensor:
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


def _ahead(length: int, device: torch.device) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).triu_(1)
