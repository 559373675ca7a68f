"""Bad weather: MLflow away, full, of another version, tidied up by someone. Nothing is lost, and one line says it."""

import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import cli, track
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store
from fpl_tune.track import recorder, server

from .conftest import DONE, SMALL, follow


@pytest.fixture
def undisturbed(make_store, uri, picture) -> Callable[..., dict[str, Any]]:
    """undisturbed(rounds=4): what MLflow holds of the small study when nothing happens; MLflow is emptied again."""

    def find(**options: Any) -> dict[str, Any]:
        store = make_store(body=SMALL, **options)
        blank = Path(uri.removeprefix("sqlite:///")).read_bytes()
        track.inspect(store, fix=True)
        found = picture(uri, store)
        Path(uri.removeprefix("sqlite:///")).write_bytes(blank)
        return found

    return find


def database(uri: str, statement: str) -> None:
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
        connection.execute(statement)
    connection.close()


# -- the server ----------------------------------------------------------------------------------------------


class Cut:
    """A client whose connection can be cut and restored."""

    away = False

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if Cut.away:
            raise ConnectionError("connection refused")
        return getattr(self._client, name)


@pytest.mark.parametrize("back", [True, False])
def test_a_server_that_goes_away_and_comes_back(make_store, uri, undisturbed, monkeypatch, back, picture):
    """Back before the study ends: the end sends the rest. Later: the next sync does. The same either way."""
    expected = undisturbed()
    monkeypatch.setattr(Cut, "away", False)
    connect = server.connect
    monkeypatch.setattr(server, "connect", lambda where: Cut(connect(where)))
    store = make_store(body=SMALL)
    end = track.MLflowCallback.on_study_end

    def later(self: Any, *args: Any) -> None:
        self.wait()
        Cut.away = not back
        end(self, *args)

    monkeypatch.setattr(track.MLflowCallback, "on_study_end", later)
    warnings = follow(store, between=lambda: setattr(Cut, "away", True))
    assert len(warnings) == 1
    assert "The study goes on" in warnings[0]
    if not back:
        monkeypatch.setattr(server, "connect", connect)
        assert picture(uri, store) != expected
        track.inspect(Store(store.root, store.name), fix=True)
    assert picture(uri, store) == expected


def test_a_database_of_another_version_is_named_with_its_remedy(make_store, uri, picture):
    store = make_store(body=SMALL)
    database(uri, "UPDATE alembic_version SET version_num = 'x' || version_num")
    (warning,) = follow(store)
    assert "mlflow db upgrade" in warning
    with pytest.raises(EnvironmentProblem, match="mlflow db upgrade"):
        track.inspect(store, fix=True)
    database(uri, "UPDATE alembic_version SET version_num = substr(version_num, 2)")
    track.inspect(store, fix=True)
    assert {run["status"] for run in picture(uri, store).values()} == {"FINISHED"}


def test_a_database_that_does_not_answer_does_not_keep_a_study_from_ending(
    make_store, uri, undisturbed, monkeypatch, picture
):
    """Another process has locked it, for longer than the study waits; what is missing is sent later."""
    expected = undisturbed()
    monkeypatch.setattr(recorder, "SILENT_SECONDS", 0.5)
    store = make_store(body=SMALL)
    connection = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)

    def lock() -> None:
        connection.execute("BEGIN EXCLUSIVE")

    warnings = follow(store, between=lock)
    connection.close()
    assert f"{uri} has not answered for 0.5 s, and the study ends without it." in warnings[-1]
    assert "fpl-tune doctor --fix" in warnings[-1]
    for thread in threading.enumerate():
        if thread.name == "mlflow":
            thread.join()
    assert picture(uri, store) != expected
    track.inspect(Store(store.root, store.name), fix=True)
    assert picture(uri, store) == expected


def recorded(store: Store, warnings: list[str], ended: threading.Event) -> None:
    """Records a study from its start to its end, says that it has ended, and waits for MLflow's thread."""
    hearing = track.MLflowCallback(warnings.append)
    hearing.on_study_start(store, store.cells(), [])
    hearing.on_study_end(store, DONE)
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "mlflow":
            thread.join()


def test_a_server_that_never_answers_does_not_keep_a_study_from_ending(make_store, uri, monkeypatch):
    """Its silence counts from the first call on, and what it says after the study's end is no warning."""
    monkeypatch.setattr(recorder, "SILENT_SECONDS", 0.2)
    ended = threading.Event()
    monkeypatch.setattr(server, "connect", lambda where: ended.wait(15))
    store, warnings = make_store(body=SMALL), list[str]()
    recorded(store, warnings, ended)
    (warning,) = warnings
    assert "has not answered for 0.2 s, and the study ends without it." in warning


@pytest.mark.parametrize(("seconds", "opens", "limit"), [(30.0, True, None), (0.3, True, 0.3), (30.0, False, 0.6)])
def test_a_new_database_has_a_longer_limit_once_it_opens(
    make_store, blank_database, monkeypatch, picture, tmp_path, seconds: float, opens: bool, limit: float | None
):
    """It takes 1.5 s here, where MLflow may be silent for 0.6 s."""
    monkeypatch.setattr(recorder, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(recorder, "CREATION_SECONDS", seconds)
    ended = threading.Event()

    def create(path: Path) -> None:
        if not path.exists():
            if opens:
                path.with_name(f".{path.name}.new").touch()
            ended.wait(1.5)
            shutil.copy(blank_database, path)

    monkeypatch.setattr(server, "_create", create)
    store, warnings = make_store(body=SMALL, root=tmp_path / "fresh"), list[str]()
    recorded(store, warnings, ended)
    if limit:
        assert f"has not answered for {limit} s, and the study ends without it." in warnings[0]
    else:
        assert warnings == []
        assert {run["status"] for run in picture(f"sqlite:///{store.root}/mlflow.db", store).values()} == {"FINISHED"}


def test_what_mlflow_takes_to_be_imported_is_no_silence(make_store, uri, monkeypatch, picture):
    monkeypatch.setattr(recorder, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(recorder, "import_module", lambda name: time.sleep(3))
    store, warnings = make_store(body=SMALL), list[str]()
    hearing = track.MLflowCallback(warnings.append)
    hearing.on_study_start(store, store.cells(), [])
    hearing.on_study_end(store, DONE)
    assert warnings == []
    assert {run["status"] for run in picture(uri, store).values()} == {"FINISHED"}


def test_a_folder_in_the_place_of_a_database_is_named_at_once(make_store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/database")
    (tmp_path / "database").mkdir()
    (warning,) = follow(make_store(body=SMALL))
    assert "unable to open database file. Move away whatever is at that path" in warning


# -- the disk ------------------------------------------------------------------------------------------------


def test_a_full_disk_under_the_database(make_store, uri, undisturbed, monkeypatch, picture):
    """SQLite is told that it may not grow: it says what it says on a full disk."""
    expected = undisturbed(rounds=100)
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    full: list[int] = []

    def limit(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        for pages in full:
            cursor.execute(f"PRAGMA max_page_count = {pages}")
        cursor.close()

    event.listen(Engine, "connect", limit)
    try:
        store = make_store(body=SMALL, rounds=100)
        with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
            full += connection.execute("PRAGMA page_count").fetchone()
        connection.close()
        (warning,) = follow(store)
        assert "Free space" in warning
        full.clear()
    finally:
        event.remove(Engine, "connect", limit)
    track.inspect(store, fix=True)
    assert {k: v["points"] for k, v in picture(uri, store).items()} == {k: v["points"] for k, v in expected.items()}


# -- other people --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "during"])
def test_an_experiment_that_someone_deleted_comes_back(make_store, uri, undisturbed, when, picture):
    expected = undisturbed()
    store = make_store(body=SMALL)

    def delete() -> None:
        client = server.connect(uri)
        experiment = client.get_experiment_by_name("toy")
        assert experiment is not None
        client.delete_experiment(experiment.experiment_id)

    if when == "before":
        track.inspect(store, fix=True)
        delete()
        assert follow(store) == []
    else:
        assert len(follow(store, between=delete)) <= 1
    assert picture(uri, store) == expected


# -- names and secrets ---------------------------------------------------------------------------------------


def test_names_that_mlflow_refuses_are_changed(make_store, uri, keyed):
    body = (
        f"axes: {{bundle: [{{label: {'x' * 400}, method.n_ctx: 2}}, {{label: 'é/..:%', method.n_ctx: 4}}]}}\nseeds: 1\n"
    )
    store = make_store(body=body)
    odd = {"a*b": 2.0, "/../x": 3.0, "é" * 300: 4.0, "nan": math.nan}
    odd |= {f"m/{i:03d}": float(i) for i in range(1000)}
    for cell in store.cells():
        history = [{**record, **odd} for record in store.history(cell, 1)]
        store.put(cell, 1, make_result("done", history, split_hash="x" * 60))
    track.inspect(store, fix=True)
    runs = keyed(uri)
    assert len(runs) == 3
    for cell in store.cells():
        run = runs[cell.id]
        assert len(run.info.run_name) <= 250
        values = [value for name, value in run.data.metrics.items() if not name.startswith("m/")]
        assert {2.0, 3.0, 4.0} <= set(values)
        assert run.data.metrics["m/999"] == 999
        assert "nan" not in run.data.metrics
        assert run.data.params["bundle"] == cell.label
        assert cell.label.startswith(run.info.run_name[:200])


@pytest.fixture
def away(make_store, tmp_path, monkeypatch) -> Path:
    """A finished study in the outputs, and a server that is not there."""
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "outputs"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:s3cret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    make_store(body=SMALL, root=tmp_path / "outputs")
    return tmp_path


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code is None or isinstance(ended.value.code, int)
    return ended.value.code or 0


def test_a_study_goes_on_with_one_warning(away, capsys):
    assert call("study", str(away / "outputs" / "toy" / "study.yaml")) == 0
    told = capsys.readouterr()
    assert told.err.count("The study goes on") == 1
    assert "keeps everything" in " ".join(told.err.split())
    assert "s3cret" not in told.out + told.err
    assert (away / "outputs" / "toy" / "report.html").is_file()


def test_a_folder_is_refused_before_the_study_starts(away, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(away / "mlruns"))
    assert call("study", str(away / "outputs" / "toy" / "study.yaml"), "seeds=5") == 2
    assert "MLFLOW_TRACKING_URI must be a database or a server" in " ".join(capsys.readouterr().err.split())
    assert Store.open(away / "outputs", "toy").spec().seed_list() == [1, 2], "nothing was started"


@pytest.mark.parametrize("words", [("ui",), ("doctor", "--format", "csv")])
def test_the_server_itself_was_asked_for(away, capsys, words):
    assert call(*words) == 3
    told = capsys.readouterr()
    assert "connection refused" in " ".join((told.out + told.err).split())
    assert "s3cret" not in told.out + told.err
