"""What does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.tensors import large_leaves_in, replicate
from fpl_tune.method import State
from fpl_tune.simulation import bounds

GB = 10**9


def test_states_of_all_seeds_must_fit_together() -> None:
    state = State({"gate": torch.empty(250, 1000)}, {"context": torch.empty(10, 50, 1000)}, {})
    bounds.check_state(state, 100, GB)
    with pytest.raises(ConfigError, match=r"needs at least 1\.2 GB .* with 400 seeds; its largest part is context"):
        bounds.check_state(state, 400, GB)


def test_leaves_on_disk_need_no_memory(tmp_path: Path) -> None:
    with large_leaves_in(tmp_path, beyond=10_000):
        state = State({}, {"small": replicate(torch.zeros(100), 10), "large": replicate(torch.zeros(100), 1_000)}, {})
    bounds.check_state(state, 1, 5_000)
    with pytest.raises(ConfigError, match="its largest part is small"):
        bounds.check_state(state, 2, 5_000)
