"""Fixtures that more than one room's tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpl_tune import config
from fpl_tune.study.cells import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store

MakeStore = Callable[..., Store]


def drawn_history(seed: int, level: float, *, rounds: int, clients: int) -> list[dict[str, Any]]:
    """Records that rise to `level`: what a trial would leave, drawn from (seed, level)."""
    noise = np.random.default_rng([seed, int(1e6 * abs(level))])
    records = []
    for number in range(1, rounds + 1):
        reached = level * (1 - 0.5 / number) + 0.01 * noise.standard_normal()
        test = np.clip(reached + 0.05 * noise.standard_normal(clients), 0, 1)
        val = np.clip(reached + 0.05 * noise.standard_normal(clients), 0, 1)
        records.append(
            {
                "seed": seed,
                "round": number,
                "val/acc_mean": float(val.mean()),
                "test/acc_mean": float(test.mean()),
                "clients/val": val.tolist(),
                "clients/test": test.tolist(),
                "train/loss": 1.0 / number,
                "comm/up_bytes": 1000 * number,
                "comm/down_bytes": 4000 * number,
                "time/seconds": 0.5 * number,
            }
        )
    return records


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Makes the store of a study whose results are drawn: `make_store(overrides, level=..., skip=...)`."""

    def make(
        overrides: Sequence[str] = (),
        *,
        body: str = "axes: {method: {n_ctx: [2, 4, 8]}}\nreferences: [{method: zeroshot}]\nseeds: 3\n",
        name: str = "toy",
        rounds: int = 4,
        clients: int = 10,
        level: Callable[[Any], float] = lambda cell: 0.5 + 0.1 * cell.number,
        fill: Callable[[Any, int], bool] = lambda cell, seed: True,
        root: Path = tmp_path,
    ) -> Store:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"defaults: [/study, _self_]\n{body}")
        spec, node = config.compose_study(str(path), list(overrides))
        store = Store(root, spec.name)
        store.begin(node, expand(spec, node))
        for cell in store.cells():
            for seed in spec.seed_list():
                if fill(cell, seed):
                    history = drawn_history(seed, level(cell), rounds=rounds, clients=clients)
                    result = make_result("done", history, split_hash=f"split{seed}")
                    result["finished"] = f"2024-05-0{1 + cell.number % 9}T10:00:0{seed}+00:00"
                    store.put(cell, seed, history, result, {"shared.context": torch.zeros(2, 3)})
        return store

    return make
