"""Against a real PostgreSQL, which keeps lengths and types that SQLite does not, and a real `mlflow server`."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import cli, track
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.study import tracking
from fpl_tune.study.results import make_result
from fpl_tune.track import server

from .conftest import SMALL, follow

DEBIAN = Path("/usr/lib/postgresql")
PROGRAMS = shutil.which("initdb") or next(iter(sorted(map(str, DEBIAN.glob("*/bin/initdb")), reverse=True)), None)
PASSWORD = "s3cret-w0rd"


def as_whom() -> dict[str, Any]:
    """PostgreSQL refuses to be run by root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URI of an empty database."""
    if PROGRAMS is None and "FPL_TUNE_TEST_POSTGRES" not in os.environ:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl (apt install postgresql)")
    whom = as_whom()
    folder = Path(tempfile.mkdtemp(prefix="fpl-tune-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "password").write_text(PASSWORD)
    if whom:
        for path in (folder, folder / "password"):
            os.chown(path, whom["user"], whom["group"])
    data = str(folder / "data")

    def call(program: str, *words: str) -> None:
        assert PROGRAMS is not None
        command = [str(Path(PROGRAMS).with_name(program)), "-D", data, *words]
        log = folder / "log"
        with log.open("a") as out:  # no pipe: the server would hold it open
            code = subprocess.run(
                command, cwd=folder, stdout=out, stderr=out, check=False, timeout=120, **whom
            ).returncode
        assert code == 0, log.read_text()

    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=20"
    call("initdb", "-U", "me", "-A", "scram-sha-256", "--pwfile", str(folder / "password"), "-E", "UTF8", "--no-sync")
    call("pg_ctl", "-w", "-o", options, "start")
    try:
        yield f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(folder)


def contents(uri: str, runs_of: Any, name: str) -> dict[str, Any]:
    """Runs by key: name, status, parameters, whole histories, tags."""
    client = server.connect(uri)
    return {
        run.data.tags["fpl.key"]: (
            run.info.run_name,
            run.info.status,
            run.data.params,
            {k: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, k)] for k in run.data.metrics},
            {k: v for k, v in run.data.tags.items() if k.startswith("fpl.") and k != "fpl.store"},
        )
        for run in runs_of(uri, name)
    }


def test_a_study_on_postgresql_is_the_study_on_sqlite(make_store, uri, postgres, runs_of, monkeypatch):
    """With what PostgreSQL is strict about: long names, characters beyond ASCII, many points; repeated, it stays so."""
    body = f"axes: {{bundle: [{{label: {'é' * 300}, method.n_ctx: 2}}, {{label: b, method.n_ctx: 4}}]}}\nseeds: 2\n"
    store = make_store(body=body)
    cell = store.cells()[0]
    for seed in (1, 2):
        history = [{**r, **{f"m/{i:03d}": 1.0 / i for i in range(1, 60)}} for r in store.history(cell, seed)]
        store.put(cell, seed, make_result("done", history, split_hash="x" * 60))
    track.inspect(store, fix=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres)
    track.inspect(store, fix=True)
    assert track.inspect(store) == []
    there = contents(postgres, runs_of, "toy")
    assert len(there) == 1 + 2
    assert there == contents(uri, runs_of, "toy")
    track.inspect(store, fix=True)
    assert contents(postgres, runs_of, "toy") == there
    assert follow(store) == []


def test_a_wrong_password_is_told_without_any_password(make_store, postgres, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.replace(PASSWORD, "wr0ng-one"))
    with pytest.raises(EnvironmentProblem, match="MLFLOW_TRACKING") as raised:
        track.inspect(make_store(), fix=True)
    assert "wr0ng-one" not in str(raised.value)
    assert "me:***@127.0.0.1" in str(raised.value)


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


def test_ui_leads_to_the_server(make_store, address, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("//", "//me:s3cret@"))
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path))
    store = make_store(body=SMALL, name="remote")
    track.inspect(store, fix=True)
    with pytest.raises(SystemExit) as ended:
        cli.main(["ui", "remote"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert said.splitlines()[0] == f"MLflow on {address}"
    assert all(link.startswith(f"{address}/#/") and link in said for link in tracking.links(store.folder).values())
    assert "s3cret" not in said + (store.folder / "mlflow.json").read_text()
