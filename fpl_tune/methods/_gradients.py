"""Losses whose gradient is not their own: a method computes it, and the engine's optimiser receives it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fpl_tune.method import Tree


def free(leaves: Tree) -> Tree:
    """The same leaves at the start of a graph of their own."""
    return {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}


def with_gradient(value: Tensor, leaves: Tree, gradients: Mapping[str, Tensor]) -> Tensor:
    """Losses [C] of the given value whose gradient to each leaf [C, ...] is the given one."""
    value = value.detach()
    for name, gradient in gradients.items():
        along = (leaves[name] * gradient.detach()).flatten(1).sum(1)
        value = value + (along - along.detach())
    return value
