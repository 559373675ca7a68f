"""Exactly once: whatever is killed wherever, what is in MLflow in the end is what an undisturbed study leaves."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fpl_tune import track
from fpl_tune.study.store import Store
from fpl_tune.track import server

POINTS = 32


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_study_killed_anywhere_and_continued_equals_undisturbed(
    tmp_path, blank_database, monkeypatch, picture, without_clocks
):
    """The process kills itself: at files of store and checkpoints, at calls to MLflow, between a round and its
    checkpoint; some once more on their way. Then the study is run again to its end, from its newest checkpoints on.
    """
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    program = Path(__file__).with_name("dying_study.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(tmp_path), str(blank_database), str(POINTS)],
        capture_output=True, text=True, timeout=900, cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "FPL_TUNE_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    killed: list[list[str]] = json.loads(ended.stdout.splitlines()[-1])["killed"]
    assert len({where for where, _ in killed}) == POINTS >= 30
    assert any("MLflow" in place for _, place in killed)
    assert any("replace" in place for _, place in killed)

    def seen(root: Path) -> tuple[dict[str, Any], pd.DataFrame]:
        """MLflow and the table of a finished study, clocks left out."""
        store = Store.open(root, "tiny")
        found = without_clocks(picture(f"sqlite:///{root.resolve()}/mlflow.db", store))
        return found, pd.read_csv(store.folder / "results.csv").drop(columns="time/seconds")

    whole, table = seen(tmp_path / "whole")
    assert len(whole) == 1 + 2
    for where, place in killed:
        runs, rows = seen(tmp_path / where)
        assert runs == whole, f"killed at {where}, {place}"
        pd.testing.assert_frame_equal(rows, table, check_exact=True)
        assert not list((tmp_path / where).rglob("*.part")), f"killed at {where}, {place}"


# -- of a sync ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


class Mortal:
    """A client that dies before or after its n-th call, or between the two halves of a batch."""

    def __init__(self, client: Any, deadline: int, how: str) -> None:
        self._client, self._left, self._how = client, deadline, how

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._how == "before":
                raise Killed
            if self._left == 0 and name == "log_batch" and self._how == "half":
                for kind, values in kwargs.items():
                    kwargs[kind] = values[: len(values) // 2]
            result = call(*args, **kwargs)
            if self._left == 0:
                raise Killed
            return result

        return counted


def dying_sync(monkeypatch: pytest.MonkeyPatch, store: Store, uri: str, deadline: int, how: str) -> bool:
    """A sync that is killed at a call; whether it was."""
    with monkeypatch.context() as patch:
        connect = server.connect
        patch.setattr(server, "connect", lambda uri: Mortal(connect(uri), deadline, how))
        try:
            track.inspect(store, fix=True)
        except Killed:
            return True
        return False


def test_killed_at_every_call_and_repeated_equals_undisturbed(make_store, uri, tmp_path, monkeypatch, picture):
    """Every call of a sync is a kill point, before it, after it, or within it; every third repetition is killed too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    made = make_store(body="axes: {method: {n_ctx: [2]}}\nseeds: 2\n", rounds=2, clients=2)
    track.inspect(made, fix=True)
    undisturbed = picture(uri, made)
    points, killed = 0, True
    while killed:
        root = tmp_path / f"point{points}"
        shutil.copytree(made.folder, root / "toy")
        store = Store(root, "toy")
        how = ("before", "after", "half")[points % 3]
        killed = dying_sync(monkeypatch, store, uri, points + 1, how)
        if points % 3 == 0:
            dying_sync(monkeypatch, Store(root, "toy"), uri, points // 2 + 1, "after")
        track.inspect(Store(root, "toy"), fix=True)
        assert picture(uri, store) == undisturbed, f"killed {how} call {points + 1}"
        points += killed
    assert points >= 20


# -- of the making of tables ---------------------------------------------------------------------------------

CREATE = "import sys; from fpl_tune.track import server; server.connect(sys.argv[1])"


def test_processes_that_meet_at_a_new_database_wait_for_each_other(tmp_path):
    """Unprotected, two migrations of one SQLite file at a time spoil it."""
    uri = f"sqlite:///{tmp_path}/new.db"
    made = [subprocess.Popen([sys.executable, "-c", CREATE, uri], stderr=subprocess.PIPE) for _ in range(3)]
    for process in made:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
        assert errors == b""


def test_a_process_killed_while_it_makes_the_tables_leaves_no_half_database(tmp_path):
    path = tmp_path / "new.db"
    process = subprocess.Popen([sys.executable, "-c", CREATE, f"sqlite:///{path}"], stderr=subprocess.DEVNULL)
    half = tmp_path / ".new.db.new"
    deadline = time.monotonic() + 120
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    process.kill()
    process.wait()
    assert half.exists() or path.exists()
    server.connect(f"sqlite:///{path}")
    assert path.is_file()
    assert not half.exists()
