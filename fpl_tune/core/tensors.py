"""Functions on leaves, axes and states that methods share. Shapes as in `fpl_tune.method`, which exports them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fpl_tune.core.errors import ConfigError, EnvironmentProblem

_on_disk: ContextVar[tuple[Path, int] | None] = ContextVar("on_disk", default=None)


@contextmanager
def large_leaves_in(folder: Path, beyond: int = 1 << 28) -> Iterator[None]:
    """Within the block, `replicate` and `keep` store CPU leaves of more than `beyond` bytes in memory-mapped files.

    Memory then holds recently used rows, and the system writes others back when it is short. The files, in `folder`,
    have no name and are deleted with the leaves.
    """
    before = _on_disk.set((folder, beyond))
    try:
        yield
    finally:
        _on_disk.reset(before)


def replicate(leaf: Tensor, count: int) -> Tensor:
    """[...] -> [C, ...]: a copy of the value for every client of a cohort.

    Raises:
        EnvironmentProblem: within `large_leaves_in`, the file cannot be written.
    """
    if _belongs_on_disk(leaf, count):
        return _mapped(repeat(leaf, count), leaf, count)
    return leaf.unsqueeze(0).repeat(count, *([1] * leaf.ndim))


def keep(leaf: Tensor) -> Tensor:
    """The leaf [N, ...]; within `large_leaves_in` a copy in a mapped file, if it is large.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    return _mapped(leaf, leaf[0], len(leaf)) if leaf.ndim and _belongs_on_disk(leaf, 1) else leaf


def _belongs_on_disk(leaf: Tensor, count: int) -> bool:
    """True if `count` times the leaf belongs in a file."""
    return leaf.device.type == "cpu" and count * leaf.nbytes > (_on_disk.get() or (Path(), sys.maxsize))[1]


def _mapped(rows: Iterable[Tensor], like: Tensor, count: int) -> Tensor:
    """`count` rows of the shape of `like` in a memory-mapped file without a name."""
    folder, _ = _on_disk.get() or (Path(), 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder) as file:
            for row in rows:
                file.write(row.reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            mapped = torch.from_file(file.name, shared=True, size=count * like.numel(), dtype=like.dtype)
    except OSError as problem:
        raise EnvironmentProblem(
            f"Cannot store {count * like.nbytes / 1e9:.1f} GB of the clients' state in {folder} ({problem.strerror}). "
            "Free some space, or name another folder in FPL_TUNE_CACHE."
        ) from None
    return mapped.view(count, *like.shape)


_in_place: ContextVar[bool] = ContextVar("in_place", default=False)


@contextmanager
def in_place(allowed: bool = True) -> Iterator[None]:
    """Within the block, `scatter_rows` writes into its arguments: a merge then needs no second copy of all leaves."""
    before = _in_place.set(allowed)
    try:
        yield
    finally:
        _in_place.reset(before)


def scatter_rows(leaf: Tensor, clients: Tensor, rows: Tensor) -> Tensor:
    """[N, ...] with the rows of `clients` replaced by `rows` [C, ...]. A new tensor, except within `in_place`."""
    return leaf.index_copy_(0, clients, rows) if _in_place.get() else leaf.index_copy(0, clients, rows)


def average(rows: Tensor, weight: Tensor) -> Tensor:
    """[C, ...] -> [...]: mean weighted by `weight` [C], which need not sum to one.

    If all weights are 0, it is the plain mean: no client of the cohort has images, so all rows are as received.
    """
    weight = torch.where(weight.any(), weight, 1)  # without a GPU sync
    share = (weight.double() / weight.sum()).to(rows.dtype)
    return torch.tensordot(share, rows, dims=1)


def normalize(features: Tensor) -> Tensor:
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


def clipped(bound: float, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Leaves [C, ...], scaled down where the norm of a client over all leaves exceeds the bound."""
    norm = torch.stack([leaf.flatten(1).square().sum(1) for leaf in leaves]).sum(0).sqrt()
    factor = (bound / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
    return [leaf * factor.view(-1, *([1] * (leaf.ndim - 1))) for leaf in leaves]


def cosine_logits(scale: float, image: Tensor, text: Tensor) -> Tensor:
    """s · cos of raw or unit image features [C, B, D] and unit text features [C, K, D] -> [C, B, K]."""
    return scale * torch.einsum("cbd,ckd->cbk", normalize(image), text)


def among(logits: Tensor, owned: Tensor) -> Tensor:
    """Logits [C, B, K or more] that are -inf for those of the K classes that `owned` [C, K] lacks."""
    lacking = F.pad(~owned, (0, logits.shape[-1] - owned.shape[-1]))
    return logits.masked_fill(lacking[:, None], -torch.inf)


def mean_over(values: Tensor, mask: Tensor) -> Tensor:
    """[C, B] -> [C]: mean of the entries whose mask is True; 0 if there is none."""
    return torch.where(mask, values, 0).sum(1) / mask.sum(1).clamp(min=1)


def fresh_leaves(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The leaves, detached, as the start of a new graph."""
    return {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}


def with_gradient(value: Tensor, leaves: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> Tensor:
    """Losses [C] with a given value and, for each leaf [C, ...], a given gradient."""
    value = value.detach()
    for name, gradient in gradients.items():
        along = (leaves[name] * gradient.detach()).flatten(1).sum(1)
        value = value + (along - along.detach())
    return value


def count(**tensors: Tensor) -> dict[str, int | Tensor]:
    """Number of scalars of each tensor, for `Traffic`."""
    return {name: tensor.numel() for name, tensor in tensors.items()}


def some_of(share: float, n: int) -> int:
    """Number of a share of n clients, rounded; at least one if the share is above 0."""
    return max(1, round(share * n)) if share else 0


def require(holds: bool, field: str, rule: str, value: Any, remedy: str = "") -> None:
    """Raises `ConfigError` naming field, rule and value unless the rule holds."""
    if not holds:
        raise ConfigError(f"method.{field} {rule}, but is {value!r}.{' ' + remedy if remedy else ''}")
