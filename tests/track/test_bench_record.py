"""The recording of a study is far below one per cent of a trial."""

from __future__ import annotations

from pathlib import Path

from bench_record import bench_record

from fpl_tune import config

QUICK = ["data.train_per_class=6", "data.test_per_class=1", "data.shots=2", "partition.n_clients=2"]


def test_recording_hardly_holds_a_study_up(tmp_path: Path) -> None:
    run = config.compose_run([*QUICK, "protocol.rounds=2", "protocol.epochs=1"])
    trial, wait, work, start = bench_record(run, cache_dir=tmp_path)
    assert trial["trial_share"] == 1
    assert 0 < wait["seconds"] < min(0.01 * trial["seconds"], work["seconds"])
    assert start["bench"].startswith("start")
