"""Against a real `mlflow server`, started by the tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import track
from fpl_tune.track import server

from .conftest import SMALL


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, blank_database: Path, mlflow_server: Any) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(blank_database, folder / "mlflow.db")
    with mlflow_server(f"sqlite:///{folder}/mlflow.db", folder) as address:
        yield address


def test_a_study_lies_on_the_server_with_its_artifacts(make_store, address, tmp_path, monkeypatch, keyed):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    store = make_store(body=SMALL)
    (store.folder / "report.html").write_text("<!doctype html>")
    track.inspect(store, fix=True)
    track.inspect(store, fix=True)
    assert track.inspect(store) == []
    client, runs = server.connect(address), keyed(address)
    assert set(runs) == {"study", *(cell.id for cell in store.cells())}
    report = client.download_artifacts(runs["study"].info.run_id, "report.html", str(tmp_path))
    assert Path(report).read_text() == "<!doctype html>"
    cell = store.cells()[0]
    curve = client.get_metric_history(runs[cell.id].info.run_id, "val/acc_mean")
    assert [p.step for p in curve] == [1, 2, 3, 4]
    assert not (store.root / "mlartifacts").exists()
    assert not (store.root / "mlflow.db").exists()
