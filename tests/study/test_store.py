"""A study's folder: what it takes to read it, earlier results, and damaged files, which cost their cell or seed."""

import json
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fpl_tune.config import compose_study
from fpl_tune.core.clients import ClientsSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import write_text
from fpl_tune.core.formatting import quantity
from fpl_tune.core.metrics import Metric, check_reported, objectives
from fpl_tune.findings.choice import best
from fpl_tune.report.charts import curve_of
from fpl_tune.study.export import export
from fpl_tune.study.results import make_result
from fpl_tune.study.schema import SCHEMA, DamagedFile, Effective
from fpl_tune.study.store import Store

from ..conftest import Compose, MakeStore, start_study, there
from ..conftest import start_study as run_study
from ..report.conftest import amend, findings_of


def test_a_folder_that_cannot_be_written_can_be_read(make_store: MakeStore) -> None:
    store = make_store()
    before = store.table().frame()
    places = [store.folder, *(path for path in store.folder.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        again = Store.open(store.root, store.name)
        pd.testing.assert_frame_equal(again.table().frame(), before)
        assert again.check() == []
        assert best(again.table()).cell.label == "n_ctx=8"
    finally:
        for place in places:
            place.chmod(0o755)


def test_what_was_stored_before_clients_varied_has_the_usual_ones(make_store: MakeStore) -> None:
    store = make_store(body="axes: {clients.drop: [0, 0.3]}\nreferences: [{method: zeroshot}]\nseeds: 1\n")
    before = [cell.node for cell in store.cells()]
    assert [node["clients"]["drop"] for node in before] == [0, 0.3, 0, 0.3]
    study = yaml.safe_load((store.folder / "study.yaml").read_text())
    del study["clients"]
    write_text(store.folder / "study.yaml", yaml.safe_dump(study, sort_keys=False))
    for path in store.folder.glob("cells/*/cell.json"):
        cell = json.loads(path.read_text())
        if not cell["run"]["clients"]["drop"]:
            del cell["run"]["clients"]
            write_text(path, json.dumps(cell))
    assert [cell.node for cell in Store.open(store.root, store.name).cells()] == before
    assert compose_study(str(store.folder / "study.yaml")).clients == ClientsSpec()


def test_tables_lack_what_the_study_no_longer_asks_for_also_after_a_kill(make_store: MakeStore) -> None:
    store = make_store()
    store.end(complete=True, exhausted=())
    left = store.cells()[:2]
    ended = time.time_ns() - 10**9  # a second ago
    for name in ("results.csv", "rules.csv"):
        os.utime(store.folder / name, ns=(ended, ended))
    for path in store.folder.glob("cells/*/seed=*/result.json"):
        os.utime(path, ns=(0, 0))
    store.begin(store.spec(), left)  # and is killed before its first result
    store.refresh_tables()
    for name in ("results.csv", "rules.csv"):
        assert {*pd.read_csv(store.folder / name)["cell"]} == {cell.id for cell in left}


@pytest.mark.parametrize("lost", ["results.csv", "rules.csv"])
def test_a_table_that_is_missing_or_older_than_a_result_is_written_again(make_store: MakeStore, lost: str) -> None:
    store = make_store()
    store.end(complete=True, exhausted=())
    path = store.folder / lost
    whole = path.read_text()
    assert whole.startswith("cell,seed,status,rule,"), "no number of the row"
    path.unlink()
    store.refresh_tables()
    assert path.read_text() == whole
    path.write_text("newer than all results")
    store.refresh_tables()
    assert path.read_text() == "newer than all results"
    os.utime(path, ns=(0, 0))
    store.refresh_tables()
    assert path.read_text() == whole


def test_all_files_have_the_modes_that_the_user_s_mask_gives(make_store: MakeStore) -> None:
    before = os.umask(0o027)
    try:
        store = make_store()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.folder.rglob("*") if path.is_file()}
    assert "prompts.safetensors" in modes
    assert set(modes.values()) == {0o640}


@pytest.mark.parametrize("written", [None, SCHEMA - 2, "x"])
def test_a_store_of_another_layout_is_refused_in_one_line(
    make_store: MakeStore, compose: Compose, written: Any
) -> None:
    store = make_store(name="tiny")
    path = store.folder / "study.yaml"
    node = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**node, "schema": written} if written else {**node, "schema": None}))
    match = rf"has layout {written!r}, but this version of fpl-tune reads {SCHEMA}\. Move the folder away"
    with pytest.raises(ConfigError, match=match) as problem:
        Store.open(store.root, store.name)
    assert "\n" not in str(problem.value)
    with pytest.raises(ConfigError, match=match):
        run_study(compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1"), root=store.root)


def test_cells_that_are_not_asked_for_are_in_no_table_and_return(compose: Compose, tmp_path: Path) -> None:
    def run(values: str, *overrides: str) -> Store:
        made = compose(f"axes: {{optim: {{lr: [{values}]}}}}\nreferences: [{{method: zeroshot}}]", *overrides)
        assert run_study(made, root=tmp_path).exit_code == 0
        return Store.open(tmp_path, "tiny")

    whole = run("0.1, 0.2", "protocol.rounds=1").table().frame()
    narrow = run("0.1", "protocol.rounds=1", "references=[]")
    assert set(pd.read_csv(narrow.folder / "results.csv")["label"]) == {"lr=0.1"}
    assert len(narrow.files()) == 3
    assert run("0.1, 0.2", "protocol.rounds=1").table().frame().equals(whole), "times included: nothing ran again"


CELL = ("cell.json", "seed=2/result.json", "seed=2/metrics.jsonl", "seed=2/prompts.safetensors")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "head": lambda data: b"\x00\xff\x80\x00" + data[4:],
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "nested": lambda data: b"[" * 100_000,
    "text": lambda data: b'"text"\n',
    "another": lambda data: re.sub(rb'"id": "[0-9a-f]{16}"', b'"id": "0123456789abcdef"', data),
    "role": lambda data: data.replace(b'"role":"', b'"role":"no such '),
    "status": lambda data: data.replace(b'"status": "', b'"status": "no such '),
    "ids": lambda data: b'{"cells": ["../../x"]}',
    "repeated": lambda data: re.sub(rb'("cells": \[\n)(.*\n)', rb"\1\2\2", data),
    "metric": lambda data: data.replace(b'"val/acc_mean": ', b'"val/acc_mean": "high", "was": '),
    "round": lambda data: data.replace(b'"round": 2', b'"round": 1'),
}
CASES = [
    *((name, damage) for name in (*CELL, "cells.json") for damage in ("head", "truncated", "text")),
    *(("seed=2/metrics.jsonl", damage) for damage in ("nested", "empty", "metric", "round")),
    ("seed=2/result.json", "metric"),
    ("cell.json", "nested"),
    ("cell.json", "another"),
    ("seed=2/result.json", "status"),
    ("cells.json", "role"),
    ("cells.json", "ids"),
    ("cells.json", "repeated"),
]


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


def read_everything(store: Store) -> Store:
    """Reads what the command line and the page read; none may fail."""
    store = Store.open(store.root, store.name)
    assert store.table().status()["cells"] >= 2
    best(store.table())
    findings = findings_of(store)
    assert findings.best is not None
    for cell in findings.cells:
        curve_of(findings, cell, "test/acc_mean")
    return store


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_file_is_named_and_the_rest_is_read(
    store: Store, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cell = store.cells()[1]
    path = store.folder / (f"cells/{cell.id}/{name}" if name in CELL else name)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        try:
            again = read_everything(store)
            (line,) = [record.getMessage() for record in caplog.records]
        except DamagedFile as problem:  # without the file that says what cells are, nothing can be shown
            assert name == "cells.json"
            again, line = store, str(problem)
    assert line.startswith(f"{path} is damaged: ")
    assert line.endswith(". Run the study again to recreate the file.")
    assert "\n" not in line
    if damage in ("role", "status"):
        assert damage in line, "the field is named"
    assert [problem.path for problem in Store.open(store.root, store.name).check()] == [path]
    if name == "cell.json":
        assert cell.id not in {c.id for c in again.cells()}
    elif name != "cells.json":
        assert again.seeds(cell) == [1, 3]
        assert [leg.seeds for leg in again.row(cell).standing.left] == [(2,)]


def test_the_fingerprints_of_the_last_start_count(store: Store) -> None:
    cell, spec = store.cells()[0], store.spec()
    for version in ("1", "2"):
        store.begin(spec, store.cells(), prints={cell.id: {"method": version}})
        assert store.prints(cell) == Store(store.root, store.name).prints(cell) == {"method": version}


def test_a_seed_that_is_stored_again_is_lost_no_more(store: Store) -> None:
    cell = store.cells()[1]
    history, result = store.history(cell, 2), there(store.result(cell, 2))
    path = store.seed_folder(cell, 2) / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert [problem.path for problem in store.check()] == [path]
    assert store.seeds(cell) == [1, 3]
    store.put(cell, 2, replace(result, records=lambda: history))
    assert store.seeds(cell) == [1, 2, 3]
    assert store.history(cell, 2) == history


def test_a_seed_that_diverged_has_no_prompts_of_a_former_run(store: Store, tmp_path: Path) -> None:
    cell = store.cells()[1]
    history = store.history(cell, 2)[:1]
    assert (store.seed_folder(cell, 2) / "prompts.safetensors").is_file()
    store.put(cell, 2, make_result("diverged", history))
    exported = {path.name for path in export(store, cell, tmp_path / "exported")}
    assert {name for name in exported if name.startswith("prompts")} == {f"prompts-seed{s}.safetensors" for s in (1, 3)}


@pytest.mark.parametrize("removed", [False, True])
def test_a_damaged_file_of_marks_is_gone_once_the_study_begins_again(store: Store, removed: bool) -> None:
    """The user may have removed it since."""
    cell = store.cells()[0]
    path = store.folder / "cells" / cell.id / "marks.json"
    path.write_text("{")
    assert [problem.path for problem in store.check()] == [path]
    if removed:
        path.unlink()
    store.begin(store.spec(), store.cells())
    assert not path.exists()
    assert Store.open(store.root, store.name).check() == []


@pytest.mark.parametrize("damage", ["head", "truncated", "empty", "nested", "text"])
def test_a_damaged_study_file_is_one_line_and_other_studies_are_read(
    store: Store, make_store: MakeStore, damage: str
) -> None:
    other = make_store(name="other")
    path = store.folder / "study.yaml"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ConfigError, match=r"study.yaml is damaged: .* Run the study again") as raised:
        Store.open(store.root, store.name).table().frame()
    assert "\n" not in str(raised.value)
    assert best(Store.open(store.root, other.name).table()).tested == (1, 2, 3)


def test_metrics_of_methods_that_are_not_loaded_are_those_of_each_study(make_store: MakeStore) -> None:
    body = "axes: {method.n_ctx: [2, 4]}\nseeds: 2\nsearch: {sampler: random, objectives: [own/score]}\n"
    for name, higher in (("higher", True), ("lower", False)):
        store = make_store(body=body, name=name)
        own = Metric("own/score", "score of its own", maximize=higher)
        store.begin(store.spec(), store.cells(), effective=Effective(metrics=[own]))
        amend(store, own__score=lambda cell: float(cell.varied["method.n_ctx"]))
    for name, tokens in (("higher", 4), ("lower", 2), ("higher", 4)):  # the files of the first are cached
        assert best(Store.open(store.root, name).table()).cell.label == f"n_ctx={tokens}"
        assert quantity("own/score") == "score of its own"
    with pytest.raises(ConfigError, match="no run reports 'own/score'"):
        check_reported("own/score")
    assert "own/score" not in objectives()
    make_store(name="another").table()
    assert quantity("own/score") == "own score"


def test_a_study_s_folder_may_be_renamed(store: Store) -> None:
    before = store.table().frame()
    store.folder.rename(store.root / "renamed")
    again = read_everything(Store(store.root, "renamed"))
    assert again.check() == []
    pd.testing.assert_frame_equal(again.table().frame(), before)


def test_a_study_file_of_another_study_is_damaged(store: Store, make_store: MakeStore) -> None:
    other = make_store(name="other", body="axes: {method: {n_ctx: [2]}}\nseeds: 2\n")
    shutil.copyfile(other.folder / "study.yaml", store.folder / "study.yaml")
    with pytest.raises(
        DamagedFile, match=r"study\.yaml is damaged: it belongs to study 'other', but cells\.json to 'toy'"
    ):
        Store.open(store.root, store.name).table().status()
    assert Store.open(store.root, other.name).table().status()["seeds"] == 2


def test_a_start_removes_what_a_killed_process_left_and_a_page_that_is_being_written_is_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study starts while another process has written the page, but not moved it yet."""
    left, own = store.folder / "cells.json.0123abcd.part", store.folder / "film.part"
    page, replace, started = store.folder / "report.html", Path.replace, list[Path]()

    def start_before(self: Path, target: Path) -> Path:
        if target == page and not started:
            started.append(self)
            assert self.is_file()
            store.begin(store.spec(), store.cells())
        return replace(self, target)

    for path in (left, own):
        path.touch()
    monkeypatch.setattr(Path, "replace", start_before)
    write_text(page, "whole")
    assert started
    assert page.read_text() == "whole"
    assert [*store.folder.rglob("*.part")] == [own], "what a user calls so stays"


def test_files_of_the_user_stay_where_the_study_runs_again(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1")
    assert start_study(made, root=tmp_path).exit_code == 0
    (cell,) = Store(tmp_path, "tiny").cells()
    place = tmp_path / "tiny" / "cells" / cell.id
    mine = [tmp_path / "tiny/notes/x", tmp_path / "tiny/cells/copy/x", place / "seed=1 (copy)/result.json/x"]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.touch()
    mine += [tmp_path / "tiny" / "cells" / "notes.txt", place / "seed=notes"]
    for path in mine[-2:]:
        path.touch()
    assert start_study(made, root=tmp_path).exit_code == 0
    assert all(path.is_file() for path in mine)


def test_other_files_in_the_folder_are_not_read(store: Store) -> None:
    cell = store.cells()[0]
    shutil.copytree(store.seed_folder(cell, 1), store.folder / "cells" / cell.id / "seed=1 (copy)")
    (store.folder / "cells" / "notes.txt").write_text("mine")
    shutil.copytree(store.folder / "cells" / cell.id, store.folder / "cells" / "copy of a cell")
    again = read_everything(store)
    assert [c.id for c in again.cells()] == [c.id for c in store.cells()]
    assert (len(again.files()), again.seeds(cell)) == (len(store.cells()), [1, 2, 3])


@pytest.fixture(scope="module")
def whole() -> dict[str, Path]:
    """The store of a study that has run, once for this module."""
    return {}


@pytest.mark.parametrize("name", [*CELL, "cells.json", "study.yaml"])
def test_the_study_replaces_a_damaged_file_and_runs_the_seed_again(
    compose: Compose, tmp_path: Path, whole: dict[str, Path], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1")
    if not whole:
        whole["root"] = tmp_path_factory.mktemp("whole")
        assert start_study(made, root=whole["root"]).exit_code == 0
    root = tmp_path / "out"
    shutil.copytree(whole["root"], root)
    store = Store(root, "tiny")
    (cell,) = store.cells()
    path = store.folder / (f"cells/{cell.id}/{name}" if name in CELL else name)
    before = {seed: (_figures(store, seed), _written(store, seed)) for seed in (1, 2)}
    path.write_bytes(DAMAGES["truncated"](path.read_bytes()))
    assert start_study(made, root=root).exit_code == 0
    after = Store.open(root, "tiny")
    assert after.check() == []
    for seed in (1, 2):
        figures, written = before[seed]
        assert _figures(after, seed) == figures
        assert (_written(after, seed) != written) == (seed == 2 and name.startswith("seed"))


def _figures(store: Store, seed: int) -> list[dict[str, Any]]:
    """The records of the only cell, without times."""
    (cell,) = store.cells()
    return [{k: v for k, v in record.items() if "time" not in k} for record in store.history(cell, seed)]


def _written(store: Store, seed: int) -> int:
    (cell,) = store.cells()
    return (store.seed_folder(cell, seed) / "result.json").stat().st_mtime_ns
