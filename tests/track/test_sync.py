"""MLflow after and beside a study: what is in it, exactly once, whatever happened on the way, and off its way."""

import json
import logging
import posixpath
import re
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlflow
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlflow.store.entities import PagedList
from safetensors.torch import load_file

from fpl_tune import track
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.redact import redact
from fpl_tune.execute.callback import Outcome
from fpl_tune.study import tracking
from fpl_tune.study.cells import Suggestion
from fpl_tune.study.lock import locked
from fpl_tune.study.results import make_result
from fpl_tune.study.schema import Effective
from fpl_tune.study.store import Store
from fpl_tune.track import recorder as recording
from fpl_tune.track import runs, server, writer

from ..conftest import there
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
    assert metrics["comm/up_bytes"] == 3000
    assert metrics["val_acc"] == round(sum(h[-1]["val/acc_mean"] for h in histories) / 3, 4)
    columns = runs.Columns.of(store.study(), store.cells())
    logged = [point.key for point in runs.cell_entry(store.row(cell), store.folder, columns).metrics]
    assert logged[:4] == ["test_acc", "test_acc_std", "val_acc", "n_seeds"]
    assert run.data.tags["fpl.partition_hash"] == "split1,split2,split3"


def test_parameters_are_what_varies_and_what_describes_a_cell(make_store, uri, keyed):
    body = "axes: {method: {n_ctx: [2, 4]}, optim: {lr: [0.0123456789]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"
    track.inspect(make_store(body=body), fix=True)
    found = {run.info.run_name: run.data.params for key, run in keyed(uri).items() if key != "study"}
    same = {"data": "shapes", "seeds": "[1, 2]"}
    assert found["n_ctx=4, lr=0.0123457"] == {"n_ctx": "4", "lr": "0.0123457", "method": "promptfl", **same}
    assert found["zeroshot"].keys() == {"lr", "method", *same}, "a reference has no parameter of a field that it lacks"


def test_a_value_with_a_label_is_shown_by_it(make_store, uri, keyed):
    track.inspect(make_store(body="axes: {method: [{label: Ours, method: coop}]}\nseeds: 2\n"), fix=True)
    (run,) = (run for key, run in keyed(uri).items() if key != "study")
    assert (run.info.run_name, run.data.params["method"]) == ("Ours", "Ours")


def test_a_parameter_keeps_its_dotted_name_where_the_short_one_is_not_unique(make_store):
    store = make_store(body=SMALL)
    first, second = store.cells()
    varied = {"method.n_ctx": 2, "optim.groups.u": 0.5, "partition.alpha": 1, "data.alpha": 2, "optim.data": 3}
    for cell, fields in ((first, varied), (second, {"method": {"name": "promptfl", "n_ctx": 4}})):
        store.add(replace(cell, varied=fields), store.prints(cell))
    names = ["n_ctx", "u", "partition.alpha", "data.alpha", "optim.data", "method"]
    assert [*runs.Columns.of(store.study(), store.cells()).fields.values()] == names


def test_curves_are_few_and_the_metric_of_the_report_is_among_the_figures(make_store, uri, keyed):
    store = make_store(body=f"{SMALL}report: {{metric: test/acc_worst10}}\n")
    cell = store.cells()[0]
    more = {"test/acc_std": 0.1, "test/acc_worst10": 0.25, "test/base/acc_mean": 0.5, "test/base/loss": 1.0}
    more |= {"val/ece": 0.1, "test/domain/clipart/acc_mean": 0.5, "test/harmonic_mean": 0.5, "of_a_method": 2.0}
    for seed in (1, 2):
        history = [{**record, **more} for record in store.history(cell, seed)]
        store.put(cell, seed, make_result("done", history))
    track.inspect(store, fix=True)
    metrics = keyed(uri)[cell.id].data.metrics
    figures = {"test_acc", "test_acc_std", "val_acc", "n_seeds", "test_acc_worst10", "test_acc_worst10_std"}
    curves = {"val/acc_mean", "test/acc_mean", "train/loss", "comm/up_bytes", "comm/down_bytes", "time/seconds"}
    kept = {"test/acc_worst10", "test/base/acc_mean", "test/harmonic_mean", "of_a_method"}
    assert metrics.keys() == figures | curves | kept
    assert metrics["test_acc_worst10"] == 0.25


def test_means_under_every_rule_are_an_artifact(make_store, uri, tmp_path, keyed):
    store = make_store()
    track.inspect(store, fix=True)
    cell = store.cells()[0]
    run = keyed(uri)[cell.id].info.run_id
    found = json.loads(Path(server.connect(uri).download_artifacts(run, "rules.json", str(tmp_path))).read_text())
    assert found.keys() == {"final", "best_val", "best_test", "mean_last5"}
    finals = [store.history(cell, seed)[-1]["test/acc_mean"] for seed in (1, 2, 3)]
    assert found["final"]["test/acc_mean"]["mean"] == pytest.approx(sum(finals) / 3)
    assert found["best_test"]["test/acc_mean"]["mean"] >= found["final"]["test/acc_mean"]["mean"]


def halved(store: Store) -> tuple[Any, Any]:
    """Makes the first cell of the small study one that was pruned at round 2; the other reached both rungs."""
    pruned, done = (
        replace(cell, role="trial", suggestion=Suggestion(n, {}, (1, 2))) for n, cell in enumerate(store.cells())
    )
    store.begin(store.spec(), [pruned, done], effective=Effective(halving=True))
    store.end(complete=True, exhausted=())
    store.forget(pruned, 2)
    for cell, values in ((pruned, [0.1, 0.123456]), (done, [0.1, 0.5, 0.6, 0.75])):
        for seed in store.seeds(cell):
            found = zip(store.history(cell, seed), values, strict=False)
            history = [{**record, "val/acc_mean": value} for record, value in found]
            store.put(cell, seed, make_result("partial" if cell is pruned else "done", history))
    return pruned, done


def test_rungs_are_metrics_also_of_a_pruned_trial(make_store, uri, keyed, picture):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    pruned, done = halved(store)
    assert {kind for _, kind in track.inspect(store)} == {"stale"}
    track.inspect(store, fix=True)
    found = keyed(uri)
    metrics, tags = found[pruned.id].data.metrics, found[pruned.id].data.tags
    assert (metrics["rung_2"], "rung_4" in metrics, metrics["n_seeds"]) == (0.1235, False, 1)
    assert (tags["fpl.status"], tags["fpl.round"], found[pruned.id].info.status) == ("pruned", "2", "FINISHED")
    assert found["study"].info.status == "FINISHED", "although a trial was pruned"
    metrics = found[done.id].data.metrics
    assert (metrics["rung_2"], metrics["rung_4"], metrics["n_seeds"]) == (0.5, 0.75, 2)
    assert found[pruned.id].data.params["n_ctx"] == "2"
    for cell in (pruned, done):
        steps = {name: step for name, step, *_ in picture(uri, store)[cell.id]["points"] if "/" not in name}
        assert set(steps.values()) == {0}, "MLflow draws bars of figures with one step, 0"


# -- links ---------------------------------------------------------------------------------------------------


def test_a_recorded_study_has_links_to_its_runs(make_store, uri, keyed):
    store = make_store()
    assert tracking.links(store.folder) == {}
    follow(store)
    found, held = keyed(uri), tracking.read(store.folder)
    assert held is not None
    assert held.runs == {cell.id: found[cell.id].info.run_id for cell in store.cells()}
    assert held.parent == found["study"].info.run_id
    assert held.best == [cell.id for cell in reversed(store.cells()) if cell.role == "cell"], "by validation accuracy"
    experiment = server.connect(uri).get_experiment(held.experiment)
    links = tracking.paths(held)
    assert all(f"({link})" in experiment.tags["mlflow.note.content"] for link in links.values())


def test_the_links_open_a_page_with_the_figures_and_what_varies(make_store, uri):
    store = make_store()
    track.inspect(store, fix=True)
    held = tracking.read(store.folder)
    assert held is not None
    experiment = server.connect(uri).get_experiment(held.experiment)
    (text,) = (value for key, value in experiment.tags.items() if key == f"mlflow.sharedViewState.{held.parent}")
    state = json.loads(text)
    assert state["searchFilter"] == f"tags.`mlflow.parentRunId` = '{held.parent}' AND tags.`fpl.asked` = 'yes'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`test_acc`", False)
    assert {"metrics.`test_acc`", "metrics.`val_acc`", "params.`n_ctx`"} <= {*state["selectedColumns"]}
    (chart,) = state["compareRunCharts"]
    assert (chart["selectedParams"], chart["selectedMetrics"]) == (["n_ctx"], ["test_acc"])


def test_the_charts_of_several_objectives_have_all_of_them_as_axes(make_store, uri, keyed):
    search = "search: {sampler: random, objectives: [val/acc_mean, comm/total_bytes], only: [method.n_ctx]}"
    store = make_store(body=f"axes: {{method: {{n_ctx: [2, 4]}}}}\nseeds: 1\n{search}\n")
    track.inspect(store, fix=True)
    held = tracking.read(store.folder)
    assert held is not None
    found = {key: run.data.metrics for key, run in keyed(uri).items() if key in held.runs}
    assert {key: run["comm_total_bytes"] for key, run in found.items()} == {
        row.cell.id: row.over_seeds("comm/total_bytes", "final")["mean"] for row in store.table().rows.values()
    }
    text = server.connect(uri).get_experiment(held.experiment).tags[f"mlflow.sharedViewState.{held.parent}"]
    (chart,) = json.loads(text)["compareRunCharts"]
    assert chart["selectedMetrics"] == ["val_acc", "comm_total_bytes", "test_acc"]


def test_a_table_is_sorted_in_the_direction_of_its_metric(make_store, uri):
    store = make_store(body=f"{SMALL}report: {{metric: comm/total_bytes}}\n")
    track.inspect(store, fix=True)
    held = tracking.read(store.folder)
    assert held is not None
    assert (held.order, held.ascending) == ("comm_total_bytes", True)


def test_many_fields_and_runs_stay_within_the_length_of_a_tag(make_store, uri):
    values = ", ".join(map(str, range(1, 121)))
    store = make_store(body=f"axes: {{method: {{n_ctx: [{values}]}}}}\nseeds: 1\n", rounds=1)
    track.inspect(store, fix=True)
    held = tracking.read(store.folder)
    assert held is not None
    assert len(held.best) == 120
    note = server.connect(uri).get_experiment(held.experiment).tags["mlflow.note.content"]
    assert f"({tracking.paths(held)['charts']})" in note


def test_long_names_of_fields_leave_no_page_without_figures():
    held = tracking.Tracked(experiment="1", parent="f" * 32)
    names = [f"{i:0250d}" for i in range(30)]
    text = writer.page_state(held, names, names, ["test_acc"])
    assert len(text) <= 5000
    assert "metrics.`test_acc`" in json.loads(text)["selectedColumns"]


@pytest.mark.parametrize("text", [None, "{"])
def test_lost_links_come_back(make_store, uri, text):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    before = tracking.links(store.folder)

    def lose() -> None:
        (store.folder / "mlflow.json").unlink()
        if text is not None:
            (store.folder / "mlflow.json").write_text(text)
        assert tracking.links(store.folder) == {}

    lose()
    assert track.inspect(store, fix=True) == []
    assert tracking.links(store.folder) == before
    follow(store)
    lose()
    recorder = track.MLflowCallback()
    recorder.on_study_start(store, store.cells(), [])
    recorder.on_study_end(store, DONE)  # nothing else has changed
    assert tracking.links(store.folder) == before


def test_names_are_such_as_mlflow_and_every_database_accept():
    """Those that are so already are kept; what is refused is replaced or cut off, and nothing becomes empty."""
    kept = "test/base/acc_mean", "val_acc", "lr", "a b-c.d_e", "0"
    assert [runs.mlflow_name(name) for name in kept] == [*kept]

    @given(st.text(st.sampled_from("aZ9_-./é²:%\n"), max_size=8))
    def check(text: str) -> None:
        name, cut = runs.mlflow_name(text), runs.mlflow_name(f"{'x' * (runs.NAME_LENGTH - 3)}{text}")
        assert posixpath.normpath(cut) == cut
        assert re.fullmatch(r"[A-Za-z0-9_\-. /]+", name)
        assert (posixpath.normpath(name), name.strip("/ ")) == (name, name), "as a path it is itself"
        assert runs.mlflow_name(name) == name
        assert runs.NAME_LENGTH - 3 <= len(cut) <= runs.NAME_LENGTH

    check()


def test_the_address_of_a_server_has_no_password():
    assert server.public("https://me:s3cret@host:5000/base/?access_token=s3cret") == "https://host:5000/base"
    assert server.public("http://127.0.0.1:5000") == "http://127.0.0.1:5000"
    assert server.public("postgresql://me:s3cret@host/db") == server.public("databricks") == ""


# -- artifacts -----------------------------------------------------------------------------------------------


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
    store.put(cell, 1, make_result("failed", [], error="out of memory"))
    track.inspect(store, fix=True)
    assert set(picture(uri, store)) == {"study", store.cells()[0].id}
    assert picture(uri, store)["study"]["status"] == "KILLED"
    store.put(cell, 2, make_result("failed", [], error="out of memory"))
    track.inspect(store, fix=True)
    found = picture(uri, store)
    assert found[cell.id]["status"] == found["study"]["status"] == "FAILED"
    assert found[cell.id]["tags"]["fpl.status"] == "failed"
    assert "out of memory" in found[cell.id]["tags"]["fpl.error"]


# -- exactly once --------------------------------------------------------------------------------------------


def test_more_seeds_and_cells_give_what_one_go_would(make_store, uri, tmp_path, picture, keyed, monkeypatch):
    """Also where a run is there twice: none of them can be brought up to date, as parameters do not change."""
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    first = keyed(uri)[store.cells()[0].id]
    server.connect(uri).create_run(first.info.experiment_id, tags=first.data.tags)
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


def test_results_that_were_moved_are_logged_again_where_they_are(make_store, uri, tmp_path, picture, monkeypatch):
    """MLflow keeps where artifacts of an experiment lie: the old one is renamed and deleted."""
    store, old = make_store(body=SMALL, root=tmp_path / "old"), tmp_path / "old"
    shutil.copy(tmp_path / "mlflow.db", old)
    track.inspect(store, fix=True)
    before = picture(f"sqlite:///{old}/mlflow.db", store)
    old.rename(new := tmp_path / "new")
    moved = Store(new, "toy")
    contents = {path: path.read_bytes() for path in new.rglob("*") if path.is_file()}
    assert {kind for _, kind in track.inspect(moved)} == {"missing"}
    assert track.inspect_deleted(new) == {}
    assert {path: path.read_bytes() for path in new.rglob("*") if path.is_file()} == contents, "a check changes nothing"
    track.inspect(moved, fix=True)
    after = picture(f"sqlite:///{new}/mlflow.db", moved)
    assert after == before
    assert all(run["files"] for run in after.values())
    assert server.experiments(new).keys() == {"toy"}
    assert track.inspect(moved) == []


def test_a_check_creates_nothing(make_store, tmp_path):
    store = make_store(body=SMALL, root=tmp_path / "fresh")
    before = {*store.root.rglob("*")}
    assert {kind for _, kind in track.inspect(store)} == {"missing"}
    assert track.inspect_deleted(store.root) == {}
    assert {*store.root.rglob("*")} == before


def test_a_check_leaves_a_deleted_experiment_so(make_store, uri):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    client = server.connect(uri)
    client.delete_experiment(there(client.get_experiment_by_name("toy")).experiment_id)
    assert {kind for _, kind in track.inspect(store)} == {"missing"}
    assert there(client.get_experiment_by_name("toy")).lifecycle_stage == "deleted"


def artifacts(uri: str, store: Store) -> dict[str, Path]:
    """The folders of artifacts of a store's live runs."""
    client, owner = server.connect(uri), writer.identities(store.root)[0]
    live = writer.search(client, [each.experiment_id for each in client.search_experiments()], owner)
    return {run.data.tags["fpl.key"]: Path(there(run.info.artifact_uri).removeprefix("file://")) for run in live}


@pytest.mark.parametrize("shared", [True, False])
def test_a_copy_of_an_output_folder_is_another_study(make_store, uri, tmp_path, picture, monkeypatch, shared):
    """With one database for both, and where each has its own."""
    store, copy = make_store(body=SMALL, root=tmp_path / "a"), tmp_path / "b"
    shutil.copy(tmp_path / "mlflow.db", store.root)
    if shared:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    places = [uri if shared else f"sqlite:///{root}/mlflow.db" for root in (store.root, copy)]
    assert not follow(store)
    before = picture(places[0], store)
    shutil.copytree(store.root, copy, copy_function=shutil.copy2)  # with the times of files
    theirs = Store(copy, "toy")
    assert {kind for _, kind in track.inspect(theirs)} == {"missing"}
    cell = theirs.cells()[0]
    history = theirs.history(cell, 1)
    theirs.put(cell, 1, make_result("diverged", history, error="nan"))
    for one in (theirs, store, theirs):
        assert not follow(one)
    assert track.inspect(store) == track.inspect(theirs) == []
    assert picture(places[0], store) == before
    assert picture(places[1], theirs)[cell.id] != before[cell.id]
    for place, one in zip(places, (store, theirs), strict=True):
        folders = artifacts(place, one)
        assert folders.keys() == before.keys()
        assert all(folder.is_relative_to(one.root / "mlartifacts") for folder in folders.values())


def test_a_folder_that_was_moved_takes_its_artifacts_along(make_store, uri, tmp_path, picture, monkeypatch):
    """Under a database elsewhere; its former place can no longer be made."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    store = make_store(body=SMALL, root=tmp_path / "old")
    assert not follow(store)
    before, known = picture(uri, store), writer.identities(store.root)[0]
    store.root.rename(tmp_path / "new")
    (tmp_path / "old").write_text("no folder")
    moved = Store(tmp_path / "new", "toy")
    assert not follow(moved)
    assert picture(uri, moved) == before
    assert writer.identities(moved.root)[0] == known
    assert all(folder.is_relative_to(moved.root) for folder in artifacts(uri, moved).values())
    assert server.experiments(moved.root).keys() == {"toy"}


def test_what_a_killed_process_left_of_an_upload_is_deleted(make_store, uri, keyed):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    study = keyed(uri)["study"]
    left = Path(study.info.artifact_uri.removeprefix("file://")) / ".artifact.uploading.1234"
    left.write_text("half of it")
    server.connect(uri).update_run(study.info.run_id, status="RUNNING")
    track.inspect(store, fix=True)
    assert not left.exists()


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
    assert len(runs_of(uri)) == len(runs_of(uri, f"toy ({writer.identities(other)[0][:8]})")) == 3


# -- the store alone ---------------------------------------------------------------------------------------


def test_studies_that_begin_at_once_share_one_identity_and_leave_no_part_of_a_killed_one(tmp_path):
    (tmp_path / "mlflow.id.0123abcd.part").write_text("half")
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: writer.identities(tmp_path)[0], range(16)))
    assert (tmp_path / "mlflow.id").read_text().splitlines() == [str(tmp_path), *found]
    assert not list(tmp_path.glob("*.part"))


def test_an_output_folder_inside_of_another_one_has_an_id_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inner = tmp_path / "outputs"
    inner.mkdir()
    assert writer.identities(tmp_path) != writer.identities(inner)


def test_studies_that_begin_at_once_make_one_database_with_its_folder(tmp_path):
    """Two migrations of one file would end in an error; what a killed process has left is no part of it."""
    uri = f"sqlite:///{tmp_path}/new/folder/mlflow.db"
    with ThreadPoolExecutor(4) as pool:
        clients = list(pool.map(lambda _: server.connect(uri), range(4)))
    assert {client.create_experiment(f"toy{n}") for n, client in enumerate(clients)} == {"1", "2", "3", "4"}
    assert [path.name for path in (tmp_path / "new" / "folder").glob("[!.]*")] == ["mlflow.db"]


@pytest.mark.parametrize("name", ["a?b", "a%20b", "[a] #&{b};$c='d'@e:f+g"])
def test_a_folder_of_any_name_holds_its_database(make_store, tmp_path, monkeypatch, name):
    """MLflow and SQLAlchemy cut addresses at `?`, and decode `%`."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = make_store(body=SMALL, root=tmp_path / name)
    assert follow(store) == []
    assert track.inspect(Store(store.root, store.name)) == []
    assert (store.root / "mlflow.db").is_file()
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".yaml"] == [name]


def test_a_path_without_an_address_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path / "a?b"))
    monkeypatch.setattr(server, "sqlite_file", lambda uri: tmp_path / "a")  # as with SQLAlchemy 2.0
    with pytest.raises(ConfigError, match=r"a\?b/mlflow\.db\. Install sqlalchemy>=2\.1"):
        track.MLflowCallback()


def test_mlflow_says_nothing_although_its_import_sets_its_loggers(uri, monkeypatch):
    class Imported:
        def __getattr__(self, name: str) -> Any:
            logging.getLogger("mlflow").setLevel(logging.INFO)
            return getattr(mlflow, name)

    monkeypatch.setitem(sys.modules, "mlflow", cast("Any", Imported()))
    server.connect(uri)
    assert not logging.getLogger("mlflow").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:s3cret@host/db",
        "http://s3cret@host:5000",
        "mysql+pymysql://me:s3cret@host/db?password=s3cret&a=1",
        "https://host/?access_token=s3cret",
    ],
)
def test_an_error_of_a_server_names_it_without_its_secrets(uri: str):
    said = server.why(OSError(f"no {uri} and '{uri}'"), uri)
    assert said.startswith(f"MLflow at {redact(uri)} failed: no ")
    assert "s3cret" not in said


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
        def __init__(self, store: Store, *others: Any) -> None:
            opened.append(store)
            super().__init__(store, *others)

    monkeypatch.setattr(recording, "Writer", Opened)

    def again() -> int:
        opened.clear()
        recorder = track.MLflowCallback()
        recorder.on_study_start(store, store.cells(), [])
        recorder.on_study_end(store, DONE)
        return len(opened)

    assert again() == 0
    client, before = server.connect(uri), keyed(uri)
    deleted = before[store.cells()[0].id]
    client.delete_run(deleted.info.run_id)
    for _ in range(2):
        client.create_run(deleted.info.experiment_id, tags={**deleted.data.tags, "fpl.key": "gone"})
    assert again() == 1
    assert keyed(uri).keys() == before.keys(), "what someone deleted is written again, what has no cell is deleted"
    assert again() == 0
    cell = store.cells()[0]
    store.put(cell, 1, replace(there(store.result(cell, 1)), split_hash="other"))
    assert again() == 1


def test_the_driver_does_not_wait_for_mlflow(make_store, uri, tmp_path, monkeypatch, statuses):
    """The recorder hears of every cell while nothing can be written."""
    store = make_store(body=SMALL)
    write, told = recording.Writer.write_cell, threading.Event()

    def slow(*args: Any) -> None:
        assert told.wait(120)
        write(*args)

    monkeypatch.setattr(recording.Writer, "write_cell", slow)
    recorder = track.MLflowCallback()
    recorder.on_study_start(store, store.cells(), [])
    for cell in store.cells():
        recorder.on_cell_end(store.row(cell))
    told.set()
    recorder.on_study_end(store, DONE)
    assert len(statuses(uri)) == 3


def test_ctrl_c_before_mlflow_is_open_leaves_it_to_the_next_run(make_store, uri, tmp_path, monkeypatch, statuses):
    store = make_store(body=SMALL)
    recorder = track.MLflowCallback()
    opened: list[bool] = []
    monkeypatch.setattr(recorder, "open", lambda: opened.append(True))
    recorder.on_study_start(store, store.cells(), [])
    recorder.on_study_end(store, replace(DONE, exit_code=130))
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
    store.put(cells[3], 1, replace(there(store.result(cells[3], 1)), split_hash="other"))  # the store went on

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
    assert track.inspect_deleted(kept.root) == {"gone": 3}
    assert len(runs_of(uri, "gone")) == 3, "nothing is deleted unless asked for"
    assert track.inspect_deleted(kept.root, fix=True) == {"gone": 3}
    assert track.inspect_deleted(kept.root) == {}
    assert runs_of(uri, "gone") == []
    assert {run.info.run_id for run in runs_of(uri)} == before


def test_a_study_that_runs_is_left_to_its_driver(make_store, uri):
    store = make_store(body=SMALL)
    with locked(store.folder):
        assert track.inspect(store, fix=True) == []
    assert track.inspect(store) != []


def test_an_experiment_has_a_name_of_ones_own_and_is_renamed_with_its_runs(make_store, uri, runs_of, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    store = make_store(body=SMALL)
    (warning,) = follow(store)
    assert warning.startswith("MLFLOW_EXPERIMENT_NAME=mine is ignored")
    assert len(runs_of(uri)) == 3
    renamed = make_store(["tracking.experiment='fpl/{study}'"], body=SMALL)
    assert renamed.folder == store.folder
    follow(renamed)
    assert len(runs_of(uri, "fpl/toy")) == 3
    assert server.experiments(store.root).keys() == {"fpl/toy"}


def test_the_run_of_a_study_lasts_as_long_as_its_work(make_store, uri, keyed):
    store = make_store(body=SMALL)
    track.inspect(store, fix=True)
    runs = keyed(uri)
    parent, children = runs.pop("study").info, [run.info for run in runs.values()]
    assert parent.start_time == min(child.start_time for child in children)
    assert parent.end_time == max(child.end_time for child in children)
