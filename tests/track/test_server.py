"""Against a real `mlflow server`, started by the tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import track
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.track import server, views

SMALL = "axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n"


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
    track.sync(store)
    track.sync(store)
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


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the browser chromium")
def test_the_page_in_a_browser_lists_the_cells(make_store, address, tmp_path):
    store = make_store(body=SMALL, name="seen")
    track.sync(store, address)
    client = server.connect(address)
    experiment = client.get_experiment_by_name("seen")
    assert experiment is not None
    key = experiment.experiment_id
    table = page(views.page(address, key), tmp_path)
    assert "matching run" in table
    assert "Detect Issues" not in table, "the view for language models"
    names = [table.index(f">{cell.label}<") for cell in sorted(store.cells(), key=lambda c: -c.number)]
    assert names == sorted(names), "the best cell by validation stands first"
    assert ">seen<" in table


def page(url: str, folder: Path) -> str:
    """What a headless browser has on the page once its scripts have run."""
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1600,1600",
        "--virtual-time-budget=60000", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def test_the_host_header_rule_is_named_with_its_remedy(make_store, address, monkeypatch):
    other = address.replace("127.0.0.1", "localhost")
    with pytest.raises(EnvironmentProblem, match="--allowed-hosts"):
        track.sync(make_store(body=SMALL), other)
