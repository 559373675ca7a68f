"""Residual blocks of a frozen text tower over packed tokens, with their gradients written out.

Letters in shapes: P prompts, R tokens of a prompt (see `fpl_tune.clip.layout.Layout`), K classes, d width.

Weights are frozen, so a linear layer keeps nothing for its gradient and a block only its input, queries, keys,
values, attention weights and the MLP's hidden layer. Second derivatives are not defined.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fpl_tune.clip.attention import attend
from fpl_tune.clip.layout import Layout
from fpl_tune.method import Adapter

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None

_QUICK = 1.702
_NARROW = 512


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i] times weight [o, i] transposed, plus bias [o].

    In float32 on CPUs by oneDNN's kernel, measured 5 to 15 % faster than the default one.
    """
    if _ONEDNN is not None and x.device.type == "cpu" and x.dtype == torch.float32:
        return _ONEDNN(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


def by_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient [..., i] by the input of a linear layer with weight [o, i].

    On transposed weights wider than CLIP's, oneDNN's kernel was measured 10 to 55 % slower than the default one.
    """
    return linear(grad, weight.t()) if min(weight.shape) <= _NARROW else grad @ weight


class _Linear(torch.autograd.Function):
    """A frozen linear layer, added to `onto` if given: nothing but its weight is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, onto: Tensor | None) -> Tensor:
        ctx.weight = weight
        out = linear(x, weight, bias)
        return out if onto is None else out.add_(onto)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, None, None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad = grads[0].contiguous()
        inner = by_input(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        return inner, None, None, grad if ctx.needs_input_grad[3] else None


class Activation(NamedTuple):
    """GELU, its tanh approximation, or CLIP's QuickGELU x·sigmoid(1.702 x)."""

    kind: str

    @classmethod
    def of(cls, module: nn.Module) -> Activation | None:
        if isinstance(module, nn.GELU):
            return cls(module.approximate)
        kind = {"QuickGELU": "quick", "GELUActivation": "none"}.get(type(module).__name__)
        return None if kind is None else cls(kind)

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
    """The weights of one residual block.

    CLIP's adds attention and MLP of the normalised tokens; BERT's normalises after adding (`post`).
    """

    norm_1: nn.LayerNorm
    qkv: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    norm_2: nn.LayerNorm
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]
    activation: Activation
    n_heads: int
    post: bool = False

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

    @classmethod
    def of_bert(cls, module: Any) -> Block | None:
        """The weights of a layer of Hugging Face's BERT, RoBERTa or XLM-RoBERTa; None if its activation is unusual.

        Those of queries, keys and values are copied, to be one matrix.
        """
        attn, mixed, up, down = module.attention.self, module.attention.output, module.intermediate, module.output
        activation = Activation.of(up.intermediate_act_fn)
        if activation is None:
            return None
        parts = attn.query, attn.key, attn.value
        with torch.no_grad():
            qkv = torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        out, into, back = ((part.weight, part.bias) for part in (mixed.dense, up.dense, down.dense))
        n_heads = attn.num_attention_heads
        return cls(mixed.LayerNorm, qkv, out, down.LayerNorm, into, back, activation, n_heads, post=True)

    def projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values [..., 3 d] of tokens [..., d]."""
        return _linear(x if self.post else self.norm_1(x), self.qkv)

    def first(
        self, words: Tensor, qkv: Tensor, context: Tensor, layout: Layout, adapter: Adapter | None = None
    ) -> Tensor:
        """The first block, where only context rows [P, c, d] depend on the prompt.

        Words [1, R, d] and their queries, keys and values [1, R, 3 d] are constants.
        """
        x = _in_rows(words, context, layout)
        return self._rest(x, _in_rows(qkv, self.projected(context), layout), layout, adapter)

    def __call__(self, x: Tensor, layout: Layout, adapter: Adapter | None = None, *, ends: bool = False) -> Tensor:
        """Tokens [P, R, d] after the block; with `ends` the EOT tokens [P, K, d] alone, in the order of the layout."""
        return self._rest(x, self.projected(x), layout, adapter, ends=ends)

    def _rest(self, x: Tensor, qkv: Tensor, layout: Layout, adapter: Adapter | None, *, ends: bool = False) -> Tensor:
        mixed = attend(qkv, layout, self.n_heads, ends=ends)
        x = x.index_select(1, layout.ends) if ends else x
        if adapter is None:
            after = _linear(mixed, self.out, x)
            return cast(Tensor, _Mlp.apply(self.norm_1(after) if self.post else after, self))
        onto = adapter.added("attention", mixed, x)
        after = _linear(mixed.expand_as(onto), self.out, onto)
        return adapter.added("block", self.norm_1(x), cast(Tensor, _Mlp.apply(after, self)))


def _in_rows(constant: Tensor, context: Tensor, layout: Layout) -> Tensor:
    """Rows [P, R, c]: those of the context [P, n, c], all others the same [1, R, c] for every prompt."""
    constant = constant.expand(len(context), -1, -1)
    if layout.at is None:
        return constant.index_copy(1, layout.context, context)
    before, after = constant[:, : layout.at], constant[:, layout.at + context.shape[1] :]
    return torch.cat([before, context, after], 1)


def _linear(x: Tensor, weights: tuple[Tensor, Tensor], onto: Tensor | None = None) -> Tensor:
    return cast(Tensor, _Linear.apply(x, *weights, onto))


class _Mlp(torch.autograd.Function):
    """x + MLP(LayerNorm(x)), or after `post` LayerNorm(x + MLP(x))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: Block) -> Tensor:
        before = (x,) if block.post else _normalise(x, block.norm_2)
        y = before[0]
        if block.activation.kind == "quick" and x.device.type != "cpu":
            hidden, out = _quick_mlp(y, block)
        else:
            hidden = linear(y, *block.up)
            out = linear(block.activation(hidden), *block.down)
        given, normalised = x, before
        out.add_(x)
        if block.post:
            given, normalised = out, _normalise(out, block.norm_2)
        if ctx.needs_input_grad[0]:
            ctx.block = block
            ctx.save_for_backward(given, *normalised[1:], hidden)
        return normalised[0] if block.post else out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        block: Block = ctx.block
        x, mean, rstd, hidden = ctx.saved_tensors
        grad = grads[0].contiguous()
        if block.post:
            grad = _normalise_backward(grad, x, mean, rstd, block.norm_2)
        inner = block.activation.backward_(by_input(grad, block.down[0]), hidden)
        inner = by_input(inner, block.up[0])
        if not block.post:
            inner = _normalise_backward(inner, x, mean, rstd, block.norm_2)
        return inner.add_(grad), None


def _normalise(x: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised x, and the means and inverse deviations that its gradient needs."""
    return torch.native_layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)


def _normalise_backward(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, norm: nn.LayerNorm) -> Tensor:
    by_input = [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], mean, rstd, norm.weight, norm.bias, by_input
    )[0]


def _quick_mlp(y: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """1.702 times the hidden layer, and the MLP's output: the scales of QuickGELU ride along with the products."""
    weight, bias = block.up
    hidden = torch.addmm(bias, y.flatten(0, -2), weight.t(), beta=_QUICK, alpha=_QUICK)
    weight, bias = block.down
    out = torch.addmm(bias, F.silu(hidden), weight.t(), alpha=1 / _QUICK)
    return hidden.view(*y.shape[:-1], -1), out.view(y.shape)
