"""Stores of other releases: earlier ones open and go on, later ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.study.cells import expand
from fpl_tune.study.schema import SCHEMA
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

Compose = Callable[..., Any]
EARLY: dict[str, str] = json.loads(Path(__file__).with_name("store_of_schema_1.json").read_text(encoding="utf-8"))
"""A study as release 0.1 left it, before its files had a schema number: path -> content."""


@pytest.fixture
def early(tmp_path: Path) -> Store:
    for name, text in EARLY.items():
        path = tmp_path / "early" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Store.open(tmp_path, "early")


def test_a_store_of_the_first_release_opens(early: Store) -> None:
    before = pd.read_csv(StringIO(EARLY["results.csv"])).replace({"cell": early.former()})
    pd.testing.assert_frame_equal(early.frame(), before, check_dtype=False)
    assert sorted(early.former()) == ["34346f27", "a50c7955"]
    assert early.summary()["status"].tolist() == ["done", "done"]
    assert best(early).cell.label == "lr=0.1"
    for cell in early.cells():
        assert config.to_run(config.as_dict(cell.run)) == cell.run
        assert config.identity(cell.run) == cell.id == early.fingerprints(cell)["config"]
        former = next(old for old, new in early.former().items() if new == cell.id)
        for name, text in EARLY.items():  # histories, results and prompts are as they were
            if name.startswith(f"cells/{former}/seed="):
                assert (early.folder / name.replace(former, cell.id)).read_text() == text
        result = early.result(cell, 2)
        assert result is not None
        assert [r["round"] for r in early.history(cell, 2)] == list(range(1, result["rounds"] + 1))
        assert early.missing(cell, early.spec()) == []


def test_a_summary_may_be_of_any_metric_of_the_records(early: Store) -> None:
    found = early.summary(metric="test/acc_worst10").set_index("cell")["mean"]
    for cell in early.cells():
        values = [early.history(cell, seed)[-1]["test/acc_worst10"] for seed in (1, 2)]
        assert found[cell.id] == pytest.approx(sum(values) / 2)
    assert early.summary(metric="time/test_seconds")["mean"].isna().all(), "its records held none yet"


def test_its_cells_are_those_of_the_same_study_now(early: Store) -> None:
    """Nothing that was stored is lost by the fields that runs have got since."""
    node = early.node()
    node |= {"axes": {"optim": {"lr": [0.1]}}, "references": []}
    assert [cell.id for cell in expand(config.to_study(node), node)] == [config.identity(early.cells()[0].run)]


@pytest.mark.parametrize("name", ["study.yaml", "cell.json"])
def test_a_store_of_a_later_release_is_refused(early: Store, name: str) -> None:
    path = early.folder / name if name == "study.yaml" else early.seed_folder(early.cells()[0], 1).with_name(name)
    early = Store(early.root, early.name)
    node = yaml.safe_load(path.read_text())
    path.write_text(json.dumps({**node, "schema": SCHEMA + 1}))
    with pytest.raises(ConfigError, match=rf"has schema {SCHEMA + 1}, and this fpl-tune knows {SCHEMA}. Install a"):
        early.frame()


def test_files_carry_their_schema_and_a_later_one_is_not_run_over(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1")
    run_study(*made, root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    path = tmp_path / "tiny" / "study.yaml"
    stored = yaml.safe_load(path.read_text())
    assert stored["schema"] == SCHEMA
    assert json.loads((tmp_path / "tiny" / "cells" / store.cells()[0].id / "cell.json").read_text())["schema"] == SCHEMA
    path.write_text(yaml.safe_dump({**stored, "schema": SCHEMA + 1}))
    with pytest.raises(ConfigError, match="Install a newer fpl-tune"):
        run_study(*made, root=tmp_path)


def test_a_reference_with_a_name_of_its_own_hides_no_cell_s(make_store: Callable[..., Store]) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2, 4]}}\nreferences: [{label: CoOp, method: coop}]\n")
    assert store.frame().columns.is_unique
    assert store.summary()["label"].tolist() == ["n_ctx=2", "n_ctx=4", "CoOp, coop"]
