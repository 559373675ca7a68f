"""`fpl-tune bench record`: recording is far below one per cent of a trial."""

from __future__ import annotations

import json

import pytest

from fpl_tune import cli

QUICK = ["data.train_per_class=6", "data.test_per_class=1", "data.shots=2", "partition.n_clients=2"]


def test_recording_hardly_holds_a_study_up(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "record", *QUICK, "protocol.rounds=2", "protocol.epochs=1", "--format", "json"])
    assert not ended.value.code
    trial, wait, work, start = json.loads(capsys.readouterr().out)
    assert trial["trial_share"] == 1
    assert 0 < wait["seconds"] < min(0.01 * trial["seconds"], work["seconds"])
    assert start["bench"].startswith("start")
