"""Branches inside a tower: which block has one, where it is added, what tells two of them apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fpl_tune.core.adapter import Adapter
from fpl_tune.core.errors import ConfigError


def scaled(leaves: dict[str, Tensor], tokens: Tensor) -> Tensor:
    return leaves["scale"][:, None] * tokens


def other(leaves: dict[str, Tensor], tokens: Tensor) -> Tensor:
    return tokens


CLIENTS, BLOCKS, WIDTH = 3, 2, 4
LEAF = {"scale": torch.arange(24.0).reshape(CLIENTS, BLOCKS, WIDTH)}
ADAPTER = Adapter(scaled, LEAF, first=5)


def test_blocks_with_leaves_have_their_own() -> None:
    assert ADAPTER.n_blocks == BLOCKS
    for block in range(9):
        at = ADAPTER.at(block)
        assert (at is not None) == (block in (5, 6))
        if at is not None:
            assert torch.equal(at.leaf["scale"], LEAF["scale"][:, block - 5])


@pytest.mark.parametrize("rows", [1, CLIENTS])
def test_a_branch_is_added_in_its_place_alone(rows: int) -> None:
    branch = ADAPTER.at(6) or ADAPTER
    x, onto = torch.randn(rows, 7, WIDTH), torch.randn(rows, 7, WIDTH)
    assert branch.added("attention", x, onto) is onto
    assert torch.equal(branch.added("block", x, onto), onto + LEAF["scale"][:, None, 1] * x)


def test_a_key_tells_branches_apart_and_not_their_values() -> None:
    kinds: list[Callable[[Adapter], Adapter]] = [
        lambda it: it,
        lambda it: it._replace(branch=other),
        lambda it: it._replace(first=4),
        lambda it: it._replace(place="attention"),
        lambda it: it.each(lambda leaf: leaf[..., :2]),
    ]
    assert len({change(ADAPTER).key for change in kinds}) == len(kinds)
    assert ADAPTER.each(lambda leaf: leaf[:1] + 1).key == ADAPTER.key
    with pytest.raises(ConfigError, match=r"must be a module-level function, but is .*<lambda>"):
        _ = ADAPTER._replace(branch=lambda leaves, tokens: tokens).key
