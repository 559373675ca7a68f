"""Steps on a GPU, counted and predicted without one."""

from __future__ import annotations

import bench_gpu
import pytest
import simulated_gpu

from fpl_tune.testing.bench.texts import CALTECH101


def test_a_step_waits_for_nothing_and_launches_as_often_for_three_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are those of 12 blocks; times are predicted for narrower ones."""
    size = bench_gpu.Size(names=CALTECH101[:20], layers=2, width=128)
    told: list[tuple[float, float]] = []
    texts, few, many = {}, {}, {}
    for row in simulated_gpu.simulate_gpu(lambda done, total, _: told.append((done, total)), size):
        group = texts if "text encoding" in row["bench"] else few if ", 10 classes," in row["bench"] else many
        group[len(group)] = row
    for steps in (few, many):
        one, three = steps[0], steps[1]
        for row in (one, three):
            assert (row["syncs"], row["copies"]) == (0, 0)
            assert 100 < row["launches"] <= 450
            assert row["graphed_launches"] == 1
            assert row["predicted_seconds"] >= row["kernel_seconds"] > 0
            assert row["matrix_rate_share"] > 0
        assert one["launches"] == three["launches"]
        assert one["kernel_seconds"] < three["kernel_seconds"] < 3 * one["kernel_seconds"]
        assert three["seconds_over_one_seed"] >= three["seconds_over_one_seed_least"]
        assert 1 <= one["packed_gain"] <= 2
    assert few[0]["packed_gain"] >= many[0]["packed_gain"], "the smaller step leaves more room"
    for text, step in zip(texts.values(), many.values(), strict=True):
        assert text["kernel_seconds"] < step["kernel_seconds"]
    assert [done for done, _ in told] == list(range(4))
    assert told[0][1] == 4
