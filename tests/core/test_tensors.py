"""Leaves of all clients that are mapped from files."""

import resource
from pathlib import Path

import pytest
import torch

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.tensors import in_place, keep, large_leaves_in, replicate, scatter_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_a_large_leaf_on_disk_is_the_leaf_in_memory(tmp_path: Path, dtype: torch.dtype) -> None:
    row, rows, clients = torch.randn(3, 5).to(dtype), torch.randn(2, 3, 5).to(dtype), torch.tensor([7, 2])
    with large_leaves_in(tmp_path, beyond=8 * row.nbytes):
        small, large = replicate(row, 8), replicate(row, 9)
        kept = keep(varied := torch.randn(9, 3, 5).to(dtype))
        assert keep(varied[:8]).data_ptr() == varied.data_ptr()
    assert small.untyped_storage().filename is None
    assert large.untyped_storage().filename is not None
    assert kept.untyped_storage().filename is not None
    assert torch.equal(kept, varied)
    assert replicate(row, 9).untyped_storage().filename is None, "within the block alone"
    assert not list(tmp_path.iterdir())
    with in_place():
        moved = scatter_rows(large, clients, rows)
    assert moved.data_ptr() == large.data_ptr()
    assert torch.equal(large, scatter_rows(replicate(row, 9), clients, rows))


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with (
            large_leaves_in(tmp_path, beyond=0),
            pytest.raises(EnvironmentProblem, match=r"Cannot store 0\.0 GB of .* \(File too large\)\. Free some space"),
        ):
            replicate(torch.zeros(1 << 14), 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
