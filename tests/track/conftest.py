"""A tracking database that is made once and copied, since its tables take a second to create; what such one says."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.execute.callback import Outcome
from fpl_tune.study.store import Store
from fpl_tune.track import MLflowCallback, server, writer

Picture = Callable[[str, Store], dict[str, Any]]
SMALL = "axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n"
DONE = Outcome(2, 0, 0, 0, 1.0, 0)


def follow(store: Store, outcome: Outcome = DONE, between: Callable[[], None] = lambda: None) -> list[str]:
    """Tells a recorder what the driver tells it, and does something after the first cell; returns the warnings."""
    warnings: list[str] = []
    recorder = MLflowCallback(warn=warnings.append)
    first, *others = [cell for cell in store.cells() if store.seeds(cell)]
    recorder.on_study_start(store, store.cells(), [])
    recorder.on_cell_end(store.row(first))
    recorder.wait()
    between()
    for cell in others:
        recorder.on_cell_end(store.row(cell))
    recorder.on_study_end(store, outcome)
    return warnings


@pytest.fixture(scope="session")
def blank_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    server.connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(blank_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """SQLite in the output folder, the default."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    shutil.copy(blank_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path.resolve()}/mlflow.db"


@pytest.fixture
def runs_of() -> Callable[..., list[Any]]:
    """runs_of(uri, name="toy"): the live runs of an experiment."""
    return _runs_of


@pytest.fixture
def keyed() -> Callable[..., dict[str, Any]]:
    """keyed(uri, name="toy"): the same by their keys."""
    return lambda uri, name="toy": {run.data.tags["fpl.key"]: run for run in _runs_of(uri, name)}


@pytest.fixture
def picture() -> Picture:
    """picture(uri, store): all that a SQLite database says of a store's live runs."""
    return _picture


@pytest.fixture
def without_clocks() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """without_clocks(picture): what two runs of one study agree in."""
    return _without_clocks


@pytest.fixture(scope="session")
def mlflow_server() -> Callable[..., Any]:
    """mlflow_server(database, folder): the address of an `mlflow server` of a database, as a context manager."""
    return _mlflow_server


@contextmanager
def _mlflow_server(database: str, folder: Path) -> Iterator[str]:
    """A server that answers to 127.0.0.1 alone, as its host header rule says."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"
    words = f"server --host 127.0.0.1 --port {host.partition(':')[2]} --workers 1 --allowed-hosts {host}"
    command = [sys.executable, "-m", "mlflow", *words.split(), "--backend-store-uri", database]
    known = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    known |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--artifacts-destination", str(folder / "artifacts")],
            **{"stdout": out, "stderr": out, "cwd": folder, "env": known, "start_new_session": True},
        )
    try:
        until = time.monotonic() + 180
        while True:
            try:
                with urllib.request.urlopen(f"http://{host}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.3)
        yield f"http://{host}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _runs_of(uri: str, name: str = "toy") -> list[Any]:
    client = server.connect(uri)
    experiment = client.get_experiment_by_name(name)
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def _picture(uri: str, store: Store) -> dict[str, Any]:
    """All that a SQLite database says of a store's live runs: parameters, points of metrics, status, files."""
    database = sqlite3.connect(uri.removeprefix("sqlite:///"))
    owner = writer.identities(store.root)[0]
    found: dict[str, Any] = {}
    live = "SELECT run_uuid, name, status, artifact_uri FROM runs WHERE lifecycle_stage = 'active'"
    for key, name, status, place in database.execute(live).fetchall():
        tags = dict(database.execute("SELECT key, value FROM tags WHERE run_uuid = ?", [key]))
        if tags["fpl.store"] != owner:
            continue
        assert tags["fpl.key"] not in found, "a run is there twice"
        files = Path(place.removeprefix("file://"))
        found[tags["fpl.key"]] = {
            "name": name,
            "status": status,
            "params": dict(database.execute("SELECT key, value FROM params WHERE run_uuid = ?", [key])),
            "points": sorted(
                database.execute("SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = ?", [key])
            ),
            "tags": {k: v for k, v in tags.items() if k.startswith("fpl.") and k != "fpl.store"},
            "files": sorted(str(p.relative_to(files)) for p in files.rglob("*") if p.is_file()),
            "nested": tags.get("mlflow.parentRunId") is not None,
        }
    database.close()
    return found


def _without_clocks(found: dict[str, Any]) -> dict[str, Any]:
    """A picture without what a clock wrote: what two runs of one study agree in."""
    for run in found.values():
        run["points"] = [(name, step, value) for name, step, value, _ in run["points"] if not name.startswith("time/")]
        run["tags"] = {k: v for k, v in run["tags"].items() if k != "fpl.digest"}
    return found
