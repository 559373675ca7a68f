from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import State
from fpl_tune.simulation import bounds

GB = 10**9


def task(images: int, clients: int) -> Any:
    return SimpleNamespace(train=SimpleNamespace(sizes=[images] * clients), n_clients=clients)


def test_steps_are_counted_exactly() -> None:
    run = config.compose_run(["protocol.rounds=100000", "protocol.epochs=100", "optim.batch=32"])
    bounds.check(run, task(320, 4), 1, None)  # 100,000 rounds of 100 epochs of 10 steps
    with pytest.raises(ConfigError, match=r"100,000,000 training steps at most, but .* 321 images .* make 110,000,000"):
        bounds.check(run, task(321, 4), 1, None)


def test_a_round_is_refused_that_no_memory_holds() -> None:
    run = config.compose_run(
        ["protocol.rounds=1", "protocol.epochs=1000", "optim.batch=50", "protocol.participation=0.5"]
    )
    needed = 16 * 30 * 10 * 1000 * 200  # bytes; seeds; clients of a round; epochs; images
    bounds.check(run, task(200, 20), 30, int(needed / bounds.SHARE) + 1)
    with pytest.raises(ConfigError, match=r"needs at least 960\.0 MB of memory, but .* with 30 seeds and 10 clients"):
        bounds.check(run, task(200, 20), 30, int(needed / bounds.SHARE) - 1)


def test_states_of_all_seeds_must_fit_together() -> None:
    state = State({"gate": torch.empty(250, 1000)}, {"context": torch.empty(10, 50, 1000)}, {})
    bounds.check_state(state, 100, GB)
    with pytest.raises(ConfigError, match=r"needs at least 1\.2 GB .* with 400 seeds; its largest part is context"):
        bounds.check_state(state, 400, GB)
