"""Stores of schema 1 are converted when they are opened: nothing is run again, nothing is lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fpl_tune.api import start_study
from fpl_tune.execute import manage
from fpl_tune.study import migrate
from fpl_tune.study.lock import locked
from fpl_tune.study.schema import SCHEMA
from fpl_tune.study.store import Store

Compose = Callable[..., Any]


def as_schema_1(folder: Path) -> dict[str, str]:
    """Rewrites a store as release 0.1 would have left it; returns former id -> id."""
    store = Store(folder.parent, folder.name)
    ids = {f"{0xA0000000 + cell.number:08x}": cell.id for cell in store.cells()}
    former = {new: old for old, new in ids.items()}
    for cell in store.cells():
        path = folder / "cells" / cell.id / "cell.json"
        node = json.loads(path.read_text())
        del node["schema"]
        node["id"] = node["fingerprints"]["config"] = former[cell.id]
        path.write_text(json.dumps(node))
        for result in path.parent.glob("seed=*/result.json"):
            found = json.loads(result.read_text())
            del found["metrics_bytes"]
            result.write_text(json.dumps(found))
        path.parent.rename(path.parent.with_name(former[cell.id]))
    (folder / "cells.json").write_text(json.dumps([former[cell.id] for cell in store.cells()]))
    node = yaml.safe_load((folder / "study.yaml").read_text())
    del node["schema"]
    (folder / "study.yaml").write_text(yaml.safe_dump(node, sort_keys=False))
    return ids


@pytest.fixture
def made(compose: Compose, tmp_path: Path) -> tuple[Any, Store, pd.DataFrame, dict[str, bytes]]:
    """A study that has run, as a store of schema 1; its table and its seeds' files before."""
    composed = compose("axes: {optim: {lr: [0.1, 0.2]}}\nreferences: [{method: zeroshot}]", "protocol.rounds=1")
    assert start_study(*composed, root=tmp_path).exit_code == 0
    store = Store(tmp_path, "tiny")
    table = store.frame()
    files = contents(store)
    as_schema_1(store.folder)
    return composed, Store(tmp_path, "tiny"), table, files


def contents(store: Store) -> dict[str, bytes]:
    """Histories and prompts by cell and seed."""
    found = (path for path in store.folder.glob("cells/*/seed=*/*") if path.name != "result.json")
    return {str(path.relative_to(store.folder)): path.read_bytes() for path in found}


def test_nothing_is_run_again_and_nothing_is_lost(made: Any) -> None:
    composed, early, table, files = made
    assert all(len(cell.id) == 8 and cell.id.startswith("a0") for cell in early.cells())
    store = Store.open(early.root, "tiny")
    pd.testing.assert_frame_equal(store.frame(), table)
    assert contents(store) == files
    assert manage.check_files(store.root, "tiny") == []
    times = {path: path.stat().st_mtime_ns for path in store.folder.glob("cells/*/seed=*/*")}
    assert times
    assert start_study(*composed, root=store.root).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in store.folder.glob("cells/*/seed=*/*")} == times
    assert store.former() == {f"{0xA0000000 + cell.number:08x}": cell.id for cell in store.cells()}


def test_running_the_study_converts_its_store_too(made: Any) -> None:
    composed, early, table, files = made
    assert start_study(*composed, root=early.root).exit_code == 0
    assert contents(early) == files
    pd.testing.assert_frame_equal(Store(early.root, "tiny").frame(), table)


def test_a_kill_at_any_step_is_made_good_by_the_next_call(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, early, table, files = made
    step = 0
    for step in range(1, 20):
        left = [step]

        def die(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        def replace(self: Path, target: Path, real: Any = Path.replace) -> Path:
            die()
            return real(self, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", replace)
            try:
                migrate.convert(early.folder)
            except KeyboardInterrupt:
                continue
        break
    assert step > 4
    store = Store.open(early.root, "tiny")
    pd.testing.assert_frame_equal(store.frame(), table)
    assert contents(store) == files
    assert f"schema: {SCHEMA}" in (store.folder / "study.yaml").read_text()
    before = {path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file()}
    migrate.convert(store.folder)
    assert {path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file()} == before


def test_a_store_that_is_run_is_read_as_it_is(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, early, table, _ = made
    with locked(early.folder), caplog.at_level(logging.WARNING):
        store = Store.open(early.root, "tiny")
        assert len(store.frame()) == len(table)
    assert "is not converted: A study is run by one process at a time" in caplog.text


def test_a_changed_default_means_the_same_and_a_varied_value_stays() -> None:
    moap = {"name": "pfedmoap", "d_gating": 128}
    assert migrate.current_method({"name": "x", "inner": moap}, {})["inner"] == {"name": "pfedmoap", "d_gating": None}
    assert migrate.current_method(moap, {"method.d_gating": 128}) == moap
    assert migrate.current_method({**moap, "d_gating": 64}, {})["d_gating"] == 64
