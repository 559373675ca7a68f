"""A search on a simulated cluster: how busy it keeps the workers, and what its record says."""

from __future__ import annotations

import runpy
from pathlib import Path

from fpl_tune.search.search import Search

simulate = runpy.run_path(str(Path(__file__).resolve().parents[3] / ".github/tools/bench_search.py"))["simulate"]


def test_without_a_barrier_95_of_100_workers_train(tmp_path: Path) -> None:
    """24 workers, heavy-tailed trials; the same search in batches beside it."""
    free, store = simulate([], tmp_path / "free", workers=24, sampler="random", trials=60, batch=None)
    assert free.utilisation >= 0.95
    assert free.rounds == 60 * 9
    batches, _ = simulate([], tmp_path / "batches", workers=24, sampler="random", trials=60, batch=24)
    assert batches.utilisation < 0.5
    assert batches.rounds == free.rounds
    assert batches.end > 1.3 * free.end
    search = Search.plan(store.spec(), store.node())
    assert search is not None
    search.open(store.folder)
    before = [trial.user_attrs["reported_before"] for trial in search.parts[0].record.trials()]
    assert before == [*[0] * 24, *range(1, 37)], "every trial that ends makes room for the next"


def test_halving_runs_a_part_of_the_rounds_and_ends_everything(tmp_path: Path) -> None:
    cluster, store = simulate(["prune.rule=halving"], tmp_path, workers=9, sampler="random", trials=36, batch=None)
    results = [store.result(cell, 1) or {} for cell in store.cells()]
    assert {str(result["status"]) for result in results} == {"done", "pruned"}
    assert len(results) == 36
    assert cluster.rounds == sum(result["rounds"] for result in results) < 0.5 * 36 * 9
