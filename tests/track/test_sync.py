"""MLflow after and beside a study: what is in it, exactly once, whatever happened on the way, and off its way."""

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from mlflow.store.entities import PagedList
from safetensors.torch import load_file

from fpl_tune import config, track
from fpl_tune.core.redact import redact
from fpl_tune.execute.callback import Outcome
from fpl_tune.study.lock import locked
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store
from fpl_tune.track import recorder as recording
from fpl_tune.track import runs, server, writer

from .conftest import DONE, SMALL, follow

# -- what is written -----------------------------------------------------------------------------------------


def test_one_parent_and_one_child_per_cell(make_store, uri, keyed):
    store = make_store()
    track.inspect(store, fix=True)
    found = keyed(uri)
    assert set(found) == {"study", *(cell.id for cell in store.cells())}
    parent = found.pop("study")
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert {run.info.run_name for run in found.values()} == {cell.label for cell in store.cells()}
    assert {run.info.status for run in [parent, *found.values()]} == {"FINISHED"}
    experiment = server.connect(uri).get_experiment_by_name("toy")
    assert experiment is not None
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert "report.html" in experiment.tags["mlflow.note.content"]


def test_a_child_holds_curves_and_aggregates_over_seeds(make_store, uri, keyed):
    store = make_store(rounds=3)
    track.inspect(store, fix=True)
    cell = store.cells()[1]
    client = server.connect(uri)
    run = keyed(uri)[cell.id]
    histories = [store.history(cell, seed) for seed in (1, 2, 3)]
    curve = client.get_metric_history(run.info.run_id, "test/acc_mean")
    assert [p.step for p in curve] == [1, 2, 3]
    for point in curve:
        mean = sum(h[point.step - 1]["test/acc_mean"] for h in histories) / 3
        assert point.value == round(mean, 4)
    last = pd.Series([h[-1]["test/acc_mean"] for h in histories])
    metrics = run.data.metrics
    assert metrics["test_acc"] == round(last.mean(), 4)
    assert metrics["test_acc_std"] == round(last.std(ddof=1), 4)
    assert metrics["n_seeds"] == 3
    assert metrics["final/test/acc_mean"] == round(last.mean(), 4)
    assert metrics["best_val/val/acc_mean"] >= metrics["final/val/acc_mean"]
    assert metrics["comm/up_bytes"] == 3000
    assert metrics["val_acc"] == pytest.approx(metrics["final/val/acc_mean"], abs=1e-12)
    logged = [point.key for point in runs.cell_entry(store, cell, [1, 2, 3], "final").metrics]
    assert logged[:4] == ["test_acc", "test_acc_std", "val_acc", "n_seeds"]
    fields = {f"method.{name}" for name in config.as_dict(cell.run)["method"]}
    assert fields <= set(run.data.params), "all fields of the method, whether they vary or not"
    assert run.data.params["method.n_ctx"] == "4"
    assert run.data.params["seeds"] == "[1, 2, 3]"
    assert run.data.tags["fpl.partition_hash"] == "split1,split2,split3"


def test_artifacts_of_a_cell_can_be_used(make_store, uri, tmp_path, keyed):
    store = make_store()
    track.inspect(store, fix=True)
    cell = store.cells()[0]
    client = server.connect(uri)
    run = keyed(uri)[cell.id]
    folder = Path(client.download_artifacts(run.info.run_id, "", str(tmp_path / "down")))
    prompts = load_file(folder / "seed=2" / "prompts.safetensors")
    assert torch.equal(prompts["shared.context"], torch.zeros(2, 3))
    lines = (folder / "seed=2" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == store.history(cell, 2)
    assert json.loads((folder / "cell.json").read_text())


def test_failed_and_unfinished_cells(make_store, uri, picture):
    store = make_store(body=SMALL, fill=lambda cell, seed: cell.number == 0)
    cell = store.cells()[1]
    store.put(cell, 1, [], make_result("failed", [], error="out of memory"))
    track.inspect(store, fix=True)
    assert set(picture(uri, store)) == {"study", store.cells()[0].id}
    assert picture(uri, store)["study"]["status"] == "KILLED"
    store.put(cell, 2, [], make_result("failed", [], error="out of memory"))
    track.inspect(store, fix=True)
    found = picture(uri, store)
    assert found[cell.id]["status"] == found["study"]["status"] == "FAILED"
    assert found[cell.id]["tags"]["fpl.status"] == "failed"
    assert "out of memory" in found[cell.id]["tags"]["fpl.error"]


# -- exactly once --------------------------------------------------------------------------------------------


def test_more_seeds_and_cells_give_what_one_go_would(make_store, uri, tmp_path, picture, monkeypatch):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    grown = make_store(["seeds=3", "axes.method.n_ctx=[2,4,8]"], body=SMALL)
    track.inspect(grown, fix=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    other = tmp_path / "other"
    shutil.copytree(grown.folder, other / "toy")
    track.inspect(Store(other, "toy"), fix=True)
    one_go = picture(uri, Store(other, "toy"))
    ours = {k: v for k, v in picture(uri, grown).items()}
    assert len(ours) == len(one_go) == 4
    assert {k: v["points"] for k, v in ours.items()} == {k: v["points"] for k, v in one_go.items()}


def test_two_stores_of_one_name_share_a_server(make_store, uri, tmp_path, picture, runs_of, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    store = make_store(body=SMALL)
    other = tmp_path / "other"
    shutil.copytree(store.folder, other / "toy")
    track.inspect(store, fix=True)
    before = picture(uri, store)
    theirs = Store(other, "toy")
    track.inspect(theirs, fix=True)
    track.inspect(theirs, fix=True)
    track.inspect_deleted(other, fix=True)
    assert picture(uri, store)["study"] == before["study"]
    assert len(runs_of(uri)) == 6


# -- the store alone ---------------------------------------------------------------------------------------


def test_studies_that_begin_at_once_share_one_identity_and_leave_no_part_of_a_killed_one(tmp_path):
    (tmp_path / "mlflow.id.0123abcd.part").write_text("half")
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: writer.identity(tmp_path), range(16)))
    assert found == {(tmp_path / "mlflow.id").read_text()}
    assert not list(tmp_path.glob("*.part"))


def test_secrets_are_not_printed():
    for uri, shown in {
        "postgresql://me:s3cret@host/db": "postgresql://me:***@host/db",
        "postgresql://me:s3@c/r:et@host/db": "postgresql://me:***@host/db",
        "http://s3cret@host:5000": "http://***@host:5000",
        "mysql+pymysql://me:s3cret@host/db?password=s3cret&a=1": "mysql+pymysql://me:***@host/db?password=***&a=1",
        "https://host/?access_token=s3cret": "https://host/?access_token=***",
        "no http://me:s3cret@host and 'http://s3cret@host'": "no http://me:***@host and 'http://***@host'",
        "http://host:5000/path": "http://host:5000/path",
    }.items():
        assert redact(uri) == shown
    assert "s3cret" not in server.why(OSError("no http://me:s3cret@host"), "http://me:s3cret@host")


def test_runs_are_found_on_all_pages_of_an_answer():
    """MLflow gives no more than 50,000 runs at once; a study may have more."""

    class Pages:
        def search_runs(self, experiments, *, page_token=None, **_):
            return {None: PagedList(["a", "b"], "next"), "next": PagedList(["c"], None)}[page_token]

    assert writer.search(Pages(), ["1"], "me") == ["a", "b", "c"]


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
