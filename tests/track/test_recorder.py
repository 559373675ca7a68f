"""The recorder beside a study: off its way, and harmless when MLflow is away."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fpl_tune import track
from fpl_tune.execute.callback import Outcome
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store
from fpl_tune.track import recorder as recording
from fpl_tune.track import server

from .conftest import DONE, SMALL, follow


@pytest.fixture
def statuses(keyed) -> Callable[[str], dict[str, str]]:
    """statuses(uri): the status of each run by key."""
    return lambda uri: {key: run.info.status for key, run in keyed(uri).items()}


def test_follows_a_study(make_store, uri, tmp_path, keyed, statuses):
    store = make_store(body=SMALL)
    (store.folder / "report.html").write_text("<!doctype html>")
    assert follow(store) == []
    assert statuses(uri) == {"study": "FINISHED", **{cell.id: "FINISHED" for cell in store.cells()}}
    parent = keyed(uri)["study"].info.run_id
    assert "report.html" in {f.path for f in server.connect(uri).list_artifacts(parent)}


def test_mlflow_is_left_alone_while_nothing_changes(make_store, uri, keyed, monkeypatch):
    store = make_store(body=SMALL)
    follow(store)
    opened: list[Store] = []

    class Opened(recording.Writer):
        def __init__(self, store: Store) -> None:
            opened.append(store)
            super().__init__(store)

    monkeypatch.setattr(recording, "Writer", Opened)

    def again() -> int:
        opened.clear()
        recorder = track.Recorder()
        recorder.on_study_start(store, store.cells(), [])
        recorder.on_study_end(store, DONE)
        return len(opened)

    assert again() == 0
    server.connect(uri).delete_run(keyed(uri)[store.cells()[0].id].info.run_id)
    assert again() == 1
    assert len(keyed(uri)) == 3, "what someone deleted is written again"
    assert again() == 0
    cell = store.cells()[0]
    store.put(cell, 1, store.history(cell, 1), {**(store.result(cell, 1) or {}), "split_hash": "other"})
    assert again() == 1


def test_the_driver_does_not_wait_for_mlflow(make_store, uri, tmp_path, monkeypatch, statuses):
    """The recorder hears of every cell while nothing can be written."""
    store = make_store(body=SMALL)
    write, told = recording.Writer.write_cell, threading.Event()

    def slow(*args: Any) -> None:
        assert told.wait(120)
        write(*args)

    monkeypatch.setattr(recording.Writer, "write_cell", slow)
    recorder = track.Recorder()
    recorder.on_study_start(store, store.cells(), [])
    for cell in store.cells():
        recorder.on_cell_end(cell, {})
    told.set()
    recorder.on_study_end(store, DONE)
    assert len(statuses(uri)) == 3


def test_ctrl_c_before_mlflow_is_open_leaves_it_to_the_next_run(make_store, uri, tmp_path, monkeypatch, statuses):
    store = make_store(body=SMALL)
    recorder = track.Recorder()
    opened: list[bool] = []
    monkeypatch.setattr(recorder, "open", lambda: opened.append(True))
    recorder.on_study_start(store, store.cells(), [])
    recorder.on_study_end(store, replace(DONE, exit_code=130))
    recorder._thread.shutdown(wait=True)
    assert opened == []
    track.inspect(store, fix=True)
    assert len(statuses(uri)) == 3


def test_a_stopped_study_is_closed_as_killed_and_finished_later(make_store, uri, tmp_path, statuses):
    store = make_store(body=SMALL, fill=lambda cell, seed: cell.number == 0)
    follow(store, Outcome(1, 0, 0, 1, 1.0, 130))
    assert statuses(uri)["study"] == "KILLED"
    follow(make_store(body=SMALL))
    assert set(statuses(uri).values()) == {"FINISHED"}


def test_inspect_names_what_differs_and_mends_it(make_store, uri, keyed, statuses):
    store = make_store()
    cells = store.cells()
    assert set(track.inspect(store)) == {(name, "missing") for name in ("toy", *(cell.label for cell in cells))}
    track.inspect(store, fix=True)
    assert track.inspect(store) == []
    client, runs = server.connect(uri), keyed(uri)
    experiment = runs["study"].info.experiment_id

    client.update_run(runs["study"].info.run_id, status="RUNNING")  # the driver was killed
    client.delete_run(runs[cells[0].id].info.run_id)  # someone deleted a run
    client.delete_tag(runs[cells[1].id].info.run_id, "fpl.digest")  # killed between two calls
    client.create_run(experiment, tags=runs[cells[2].id].data.tags)  # created twice
    client.create_run(experiment, tags={**runs[cells[3].id].data.tags, "fpl.key": "gone", "mlflow.runName": "gone"})
    result = {**(store.result(cells[3], 1) or {}), "split_hash": "other"}
    store.put(cells[3], 1, store.history(cells[3], 1), result)  # the store went on

    stale = [(name, "stale") for name in ("toy", *(cell.label for cell in cells[1:]))]
    assert set(track.inspect(store)) == {(cells[0].label, "missing"), *stale, ("gone", "orphaned")}
    track.inspect(store, fix=True)
    assert track.inspect(store) == []
    assert set(statuses(uri)) == {"study", *(cell.id for cell in cells)}


def test_runs_of_a_deleted_study_are_named_and_deleted(make_store, uri, runs_of):
    kept, gone = make_store(body=SMALL), make_store(body=SMALL, name="gone")
    for store in (kept, gone):
        track.inspect(store, fix=True)
    before = {run.info.run_id for run in runs_of(uri)}
    assert track.inspect_deleted(kept.root) == {}
    shutil.rmtree(gone.folder)
    assert track.inspect_deleted(kept.root, fix=True) == {"gone": 3}
    assert track.inspect_deleted(kept.root) == {}
    assert runs_of(uri, "gone") == []
    assert {run.info.run_id for run in runs_of(uri)} == before


def test_a_study_that_runs_is_left_to_its_driver(make_store, uri):
    store = make_store(body=SMALL)
    with locked(store.folder):
        assert track.inspect(store, fix=True) == []
    assert track.inspect(store) != []
