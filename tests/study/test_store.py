"""A study's folder: what it takes to read it, stores of other layouts, and results of earlier runs."""

import os
import stat
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.study import earlier
from fpl_tune.study.cells import expand
from fpl_tune.study.schema import SCHEMA
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

from ..conftest import Compose, MakeStore


def test_a_folder_that_cannot_be_written_can_be_read(make_store: MakeStore) -> None:
    store = make_store()
    before = store.frame()
    places = [store.folder, *(path for path in store.folder.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    try:
        again = Store.open(store.root, store.name)
        pd.testing.assert_frame_equal(again.frame(), before)
        assert again.check() == []
        assert best(again).cell.label == "n_ctx=8"
    finally:
        for place in places:
            place.chmod(0o755)


def test_all_files_have_the_modes_that_the_user_s_mask_gives(make_store: MakeStore) -> None:
    before = os.umask(0o027)
    try:
        store = make_store()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.folder.rglob("*") if path.is_file()}
    assert "prompts.safetensors" in modes
    assert set(modes.values()) == {0o640}


@pytest.mark.parametrize("written", [None, SCHEMA - 1, "x"])
def test_a_store_of_another_layout_is_refused_in_one_line(
    make_store: MakeStore, compose: Compose, written: Any
) -> None:
    store = make_store(name="tiny")
    path = store.folder / "study.yaml"
    node = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**node, "schema": written} if written else {**node, "schema": None}))
    match = rf"has layout {written!r}, but this release of fpl-tune reads {SCHEMA}\. Move the folder away"
    with pytest.raises(ConfigError, match=match) as problem:
        Store.open(store.root, store.name)
    assert "\n" not in str(problem.value)
    with pytest.raises(ConfigError, match=match):
        run_study(compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1"), root=store.root)


def test_a_summary_may_be_of_any_metric_of_the_records(make_store: MakeStore) -> None:
    store = make_store()
    found = store.summary(metric="train/loss").set_index("cell")["mean"]
    assert found.tolist() == pytest.approx([0.25] * 4)
    assert store.summary(metric="no/such")["mean"].isna().all()


def test_a_reference_with_a_name_of_its_own_hides_no_cell_s(make_store: MakeStore) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2, 4]}}\nreferences: [{label: CoOp, method: coop}]\n")
    assert store.frame().columns.is_unique
    assert store.summary()["label"].tolist() == ["n_ctx=2", "n_ctx=4", "CoOp, coop"]


def test_cells_of_earlier_runs_stay_in_the_results(compose: Compose, tmp_path: Path) -> None:
    def run(values: str, *overrides: str) -> Store:
        made = compose(f"axes: {{optim: {{lr: [{values}]}}}}\nreferences: [{{method: zeroshot}}]", *overrides)
        assert run_study(made, root=tmp_path).exit_code == 0
        return Store.open(tmp_path, "tiny")

    whole = run("0.1, 0.2", "protocol.rounds=1")
    before, chosen = whole.frame(), best(whole)
    narrow = run("0.1", "protocol.rounds=1", "references=[]")
    assert {cell.label for cell in narrow.cells()} == {"lr=0.1", "lr=0.2", "zeroshot"}
    after = pd.read_csv(narrow.folder / "results.csv")
    assert len(after) == len(before), "no line is lost"
    assert best(narrow).cell.id == chosen.cell.id, "and the best cell stays"
    again = run("0.1, 0.2", "protocol.rounds=1")
    assert again.frame().equals(before), "the plain command undoes it"
    other = run("0.1", "protocol.rounds=2", "references=[]")
    assert [cell.label for cell in other.cells()] == ["lr=0.1"], "figures of other settings do not compare"
    assert len([cell for cell in other.earlier_cells() if other.seeds(cell)]) == 3
    assert run("0.1, 0.2", "protocol.rounds=1").frame().equals(before), "and are not lost"


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("method: [promptfl, coop]", "method: [fedpgp]", 2),
        ("both: [{optim.lr: 0.1, label: a}, {method.n_ctx: 2, label: b}]", "both: [{optim.lr: 0.2, label: a}]", 1),
        ("data: {shots: [2, 3]}", "data: {shots: [3]}", 1),
        ("partition: [iid, dirichlet]", "partition: [iid]", 1),
        ("optim: {lr: [0.1]}", "method: {n_ctx: [2]}", 1),
    ],
)
def test_a_cell_stays_if_only_what_varies_differs(
    first: str, second: str, kept: int, make_store: MakeStore, tmp_path: Path
) -> None:
    store = make_store(body=f"axes: {{{first}}}\nseeds: 1\n")
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump({**store.node(), "axes": yaml.safe_load(f"{{{second}}}")}))
    assert len(earlier.find(store.cells(), expand(config.compose_study(str(path))))) == kept
    assert earlier.find(store.cells(), expand(config.compose_study(str(path), ["optim.momentum=0.123"]))) == []
