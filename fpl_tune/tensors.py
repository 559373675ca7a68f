"""Functions on leaves, axes and states that methods share. Shapes as in `fpl_tune.method`, which exports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.autograd.function import once_differentiable

from fpl_tune.errors import ConfigError

if TYPE_CHECKING:
    from fpl_tune.method import Batch, State, Task, Tree

_IGNORED = -100  # label of an image that pads


def spread(leaf: Tensor, count: int) -> Tensor:
    """[...] -> [C, ...]: the same value for every client of a cohort, with storage of its own."""
    return leaf.unsqueeze(0).repeat(count, *([1] * leaf.ndim))


_in_place: ContextVar[bool] = ContextVar("in_place", default=False)


@contextmanager
def in_place(allowed: bool = True) -> Iterator[None]:
    """Lets `put` write into the tensors that it receives: a merge then needs no second copy of all clients' leaves."""
    before = _in_place.set(allowed)
    try:
        yield
    finally:
        _in_place.reset(before)


def put(leaf: Tensor, who: Tensor, rows: Tensor) -> Tensor:
    """[N, ...] with the rows of `who` replaced by `rows` [C, ...]; a new tensor, unless within `in_place`."""
    return leaf.index_copy_(0, who, rows) if _in_place.get() else leaf.index_copy(0, who, rows)


def average(rows: Tensor, weight: Tensor) -> Tensor:
    """[C, ...] -> [...]: mean weighted by `weight` [C], which need not sum to one.

    A plain mean if all weights are 0: no client of the cohort has images, so that all rows are what was received.
    """
    weight = torch.where(weight.any(), weight, 1)  # nothing is read: a GPU is not waited for
    share = (weight.double() / weight.sum()).to(rows.dtype)
    return torch.tensordot(share, rows, dims=1)


def unit(features: Tensor) -> Tensor:
    """Features [..., D] scaled to length one along the last axis. Differentiable once."""
    return cast(Tensor, _Unit.apply(features))


class _Unit(torch.autograd.Function):
    """`F.normalize`, with a gradient of four kernels instead of thirteen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=1e-12)
        out = x / length
        ctx.save_for_backward(out, length)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        out, length = ctx.saved_tensors
        along = (grads[0] * out).sum(-1, keepdim=True)
        return grads[0].addcmul(out, along, value=-1).div_(length)


def cosine_logits(scale: float, image: Tensor, text: Tensor) -> Tensor:
    """s · cos: raw or unit images [C, B, D] against unit text features [C, K, D] -> [C, B, K]."""
    return scale * torch.einsum("cbd,ckd->cbk", unit(image), text)


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """[C, B] -> [C]: mean of the entries whose mask is True; 0 where there is none."""
    return torch.where(mask, values, 0).sum(1) / mask.sum(1).clamp(min=1)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """[C, B, K] -> [C]: mean cross-entropy of each client's real images."""
    label = torch.where(batch.mask, batch.label, _IGNORED)
    values = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none", ignore_index=_IGNORED)
    return values.view_as(label).sum(1) / batch.mask.sum(1).clamp(min=1)


def new_context(task: Task, n_ctx: int, rng: Generator, *lead: int) -> Tensor:
    """[*lead, l, d] learnable context, N(0, 0.02²) as in CoOp; the same numbers on every device."""
    return (0.02 * torch.randn(*lead, n_ctx, task.text_width, generator=rng)).to(task.device, task.dtype)


def count(**tensors: Tensor) -> dict[str, int | Tensor]:
    """Number of scalars of each tensor, for `Traffic`."""
    return {name: tensor.numel() for name, tensor in tensors.items()}


def require(holds: bool, field: str, rule: str, value: Any, remedy: str = "") -> None:
    """Raises `ConfigError` naming field, rule and value unless the rule holds."""
    if not holds:
        raise ConfigError(f"method.{field} {rule}, but is {value!r}.{' ' + remedy if remedy else ''}")


def same_leaves(one: State, other: State) -> bool:
    """Whether two states have leaves of the same names and shapes."""
    pairs = zip(one, other, strict=True)
    return all({n: v.shape for n, v in a.items()} == {n: v.shape for n, v in b.items()} for a, b in pairs)


def trees_like(state: State, trees: Mapping[str, Tree]) -> State:
    """A state rebuilt from stored trees, checked against the names and shapes of a fresh one.

    Raises:
        ConfigError: a leaf is missing, unexpected or of another shape.
    """
    rebuilt = {}
    for part, wanted in state._asdict().items():
        found = trees.get(part, {})
        if wanted.keys() != found.keys():
            raise ConfigError(f"stored {part} state has leaves {sorted(found)}, the method has {sorted(wanted)}")
        for name, leaf in wanted.items():
            if leaf.shape != found[name].shape:
                raise ConfigError(
                    f"stored {part}.{name} is {tuple(found[name].shape)}, the method has {tuple(leaf.shape)}"
                )
        rebuilt[part] = {name: found[name].to(leaf.device, leaf.dtype) for name, leaf in wanted.items()}
    return state._replace(**rebuilt)
