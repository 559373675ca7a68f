"""Learnable branches inside the frozen blocks of a tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor

from fpl_tune.core.errors import ConfigError


class Adapter(NamedTuple):
    """A branch parallel to the frozen layers of a tower's blocks, with separate parameters for each client.

    It maps every token by itself, so a cohort stays one batch and sentences still share their beginning.
    """

    branch: Callable[[dict[str, Tensor], Tensor], Tensor]
    """(leaves [C, ...] of one block, tokens [C, n, width]) -> the numbers to add [C, n, width]. It must be a
    module-level function that depends on its arguments only: features without gradients are cached by its name and its
    leaves."""
    leaf: dict[str, Tensor]
    """[C, J, ...] parameters by client and block."""
    first: int = 0
    """The block, counted from 0, of the first of the J leaves."""
    place: Literal["block", "attention"] = "block"
    """`block`: maps the first LayerNorm of a block's input, is added to its output. `attention`: maps the values that
    attention has mixed, is added to its output projection."""

    @property
    def key(self) -> str:
        """A key that differs between two branches with equal leaves."""
        name = f"{self.branch.__module__}.{self.branch.__qualname__}"
        if "<" in name:
            raise ConfigError(f"A branch inside a tower must be a module-level function, but is {name}.")
        return f"{name} {self.first} {self.place} {[(n, tuple(leaf.shape[1:])) for n, leaf in self.leaf.items()]}"

    @property
    def n_blocks(self) -> int:
        """J, the number of blocks with leaves."""
        return next(iter(self.leaf.values())).shape[1]

    def each(self, change: Callable[[Tensor], Tensor]) -> Adapter:
        """The same branch with changed leaves."""
        return self._replace(leaf={name: change(leaf) for name, leaf in self.leaf.items()})

    def at(self, block: int) -> Adapter | None:
        """The branch of one block, with leaves [C, ...]; None if the block has none."""
        j = block - self.first
        return self.each(lambda leaf: leaf[:, j]) if 0 <= j < self.n_blocks else None

    def added(self, place: str, x: Tensor, onto: Tensor) -> Tensor:
        """`onto` plus the branch of x, if this is its place. Both are [C, n, width], or [1, n, width] if shared."""
        if place != self.place:
            return onto
        n_clients = len(next(iter(self.leaf.values())))
        return onto + self.branch(self.leaf, x.expand(n_clients, -1, -1))
