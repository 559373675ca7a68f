"""A search on a simulated cluster: how busy it keeps the workers."""

from __future__ import annotations

import runpy
from pathlib import Path

simulate = runpy.run_path(str(Path(__file__).resolve().parents[3] / ".github/tools/bench_search.py"))["simulate"]


def test_without_a_barrier_95_of_100_workers_train(tmp_path: Path) -> None:
    """24 workers, heavy-tailed trials; the same search in batches beside it."""
    free, _ = simulate([], tmp_path / "free", workers=24, sampler="random", trials=60, batch=None)
    assert free.utilisation >= 0.95
    assert free.rounds == 60 * 9
    batches, _ = simulate([], tmp_path / "batches", workers=24, sampler="random", trials=60, batch=24)
    assert batches.utilisation < 0.5
    assert batches.rounds == free.rounds
    assert batches.end > 1.3 * free.end


def test_halving_runs_a_part_of_the_rounds_and_ends_everything(tmp_path: Path) -> None:
    cluster, store = simulate(["prune.rule=halving"], tmp_path, workers=9, sampler="random", trials=36, batch=None)
    results = [store.result(cell, 1) or {} for cell in store.cells()]
    assert {str(result["status"]) for result in results} == {"done", "pruned"}
    assert len(results) == 36
    assert cluster.rounds == sum(result["rounds"] for result in results) < 0.5 * 36 * 9
