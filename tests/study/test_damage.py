"""A damaged file costs its cell or seed, never the study: it is named, the rest is read, the study runs it again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fpl_tune.api import start_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute import manage
from fpl_tune.report.facts import Facts
from fpl_tune.study.schema import SCHEMA, DamagedFile, read_prompts
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

Compose = Callable[..., Any]
MakeStore = Callable[..., Store]

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "binary": lambda data: b"\x80\x00\xff" + data[3:],
    "list": lambda data: b"[1, 2]\n",
    "nothing": lambda data: b"null\n",
    "nested": lambda data: b"[" * 100_000,
    "text": lambda data: b'"text"\n',
}
FILES = ("cell.json", "seed=2/result.json", "seed=2/metrics.jsonl")
EDITS: dict[str, dict[str, Any]] = {
    "cell.json": {"number": "one", "role": "king", "varied": [], "run": {}, "schema": "two", "fingerprints": 1},
    "seed=2/result.json": {"status": "no such", "rounds": -1, "rules": [], "finished": "now", "comm/up_bytes": None},
}


def read_everything(store: Store) -> None:
    """What ls, show, status, report and best read; none may fail."""
    store = Store.open(store.root, store.name)
    assert manage.status(store)["cells"] >= 2
    assert len(store.frame()) > 0
    best(store)
    facts = Facts(store)
    assert facts.best is not None
    for cell in facts.cells:
        facts.curve(cell, "test/acc_mean")


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    make_store(name="other")
    return make_store()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*FILES, "cells.json"])
def test_a_damaged_file_is_named_and_the_rest_is_read(
    store: Store, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cell = store.cells()[1]
    path = store.folder / (name if name == "cells.json" else f"cells/{cell.id}/{name}")
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        read_everything(store)
    (line,) = {record.getMessage() for record in caplog.records}
    assert line.startswith(f"{path} is damaged: ")
    assert "fpl-tune doctor --fix" in line
    assert "\n" not in line
    (found,) = manage.check_files(store.root, store.name)
    assert found.path == path
    again = Store(store.root, store.name)
    again.check()
    if name.startswith("seed"):
        assert again.seeds(cell) == [1, 3]
    elif name == "cells.json":
        assert [c.id for c in again.cells()] == [c.id for c in store.cells()]
    else:
        assert cell.id not in {c.id for c in again.cells()}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, edits in EDITS.items() for field in edits])
def test_an_edited_field_is_named(store: Store, name: str, field: str) -> None:
    path = store.folder / "cells" / store.cells()[1].id / name
    path.write_text(json.dumps({**json.loads(path.read_text()), field: EDITS[name][field]}))
    read_everything(store)
    (found,) = manage.check_files(store.root, store.name)
    assert found.path == path
    assert field.split("/")[0] in found.why


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_study_file_is_one_line_and_other_studies_are_read(store: Store, damage: str) -> None:
    path = store.folder / "study.yaml"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ConfigError, match=r"study.yaml is damaged: .* Run the study again") as raised:
        Store.open(store.root, store.name).frame()
    assert "\n" not in str(raised.value)
    (found,) = manage.check_files(store.root, store.name)
    assert found.path == path
    assert best(Store.open(store.root, "other")).seeds == 3


def test_damage_in_the_middle_of_a_history_is_found_by_the_doctor_and_set_aside(store: Store) -> None:
    cell = store.cells()[0]
    path = store.seed_folder(cell, 1) / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round"', b'"r{und"', 1))
    with pytest.raises(DamagedFile, match="line 1: round"):
        Store(store.root, store.name).history(cell, 1)
    (found,) = manage.check_files(store.root, store.name, fix=True)
    assert (found.path, found.remedy) == (path, "")
    assert path.with_name("metrics.jsonl.damaged").is_file()
    assert manage.check_files(store.root, store.name) == []
    assert Store(store.root, store.name).missing(cell, store.spec()) == [1]


def test_strays_are_named_and_not_read(store: Store) -> None:
    cell = store.cells()[0]
    copy = store.folder / "cells" / cell.id / "seed=1 (copy)"
    shutil.copytree(store.seed_folder(cell, 1), copy)
    (store.folder / "cells" / "notes.txt").write_text("mine")
    shutil.copytree(store.folder / "cells" / cell.id, store.folder / "cells" / "copy of a cell")
    read_everything(store)
    assert {f.path.name for f in manage.check_files(store.root, store.name)} == {
        "seed=1 (copy)", "notes.txt", "copy of a cell",
    }  # fmt: skip
    assert copy.is_dir()


@pytest.fixture(scope="module")
def whole() -> dict[str, Path]:
    """The store of a study that has run, once for this module."""
    return {}


@pytest.mark.parametrize("name", [*FILES, "cells.json", "study.yaml"])
def test_the_study_sets_a_damaged_file_aside_and_runs_what_is_missing(
    compose: Compose, tmp_path: Path, whole: dict[str, Path], name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1")
    if not whole:
        whole["root"] = tmp_path_factory.mktemp("whole")
        assert start_study(*made, root=whole["root"]).exit_code == 0
    root = tmp_path / "out"
    shutil.copytree(whole["root"], root)
    store = Store(root, "tiny")
    (cell,) = store.cells()
    before = {seed: store.history(cell, seed) for seed in (1, 2)}
    path = store.folder / (name if name in ("cells.json", "study.yaml") else f"cells/{cell.id}/{name}")
    path.write_bytes(path.read_bytes()[:9])
    times = {seed: (store.seed_folder(cell, seed) / "result.json").stat().st_mtime_ns for seed in (1, 2)}
    assert start_study(*made, root=root).exit_code == 0
    assert path.with_name(f"{path.name}.damaged").is_file()
    after = Store.open(root, "tiny")
    assert manage.check_files(root, "tiny") == []
    for seed in (1, 2):
        figures = [{k: v for k, v in record.items() if "/" in k and "time" not in k} for record in before[seed]]
        assert [
            {k: v for k, v in record.items() if "/" in k and "time" not in k} for record in after.history(cell, seed)
        ] == figures
        again = (store.seed_folder(cell, seed) / "result.json").stat().st_mtime_ns != times[seed]
        assert again == (seed == 2 and name.startswith("seed"))
    assert after.node()["name"] == "tiny"
    assert f"schema: {SCHEMA}" in (after.folder / "study.yaml").read_text()


@pytest.mark.parametrize("damage", ["truncated", "binary", "text"])
def test_damaged_prompts_keep_their_figures_and_are_learned_again(store: Store, damage: str) -> None:
    cell = store.cells()[0]
    path = store.seed_folder(cell, 1) / "prompts.safetensors"
    save_file({"shared.context": torch.zeros(2, 3)}, path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    read_everything(store)
    with pytest.raises(DamagedFile, match="it is not a whole safetensors file"):
        read_prompts(path)
    (found,) = manage.check_files(store.root, store.name)
    assert found.path == path
    assert Store(store.root, store.name).missing(cell, store.spec()) == []
    manage.check_files(store.root, store.name, fix=True)
    assert Store(store.root, store.name).missing(cell, store.spec()) == [1]


def test_aliases_of_a_stored_study_are_not_written_out(store: Store) -> None:
    path = store.folder / "study.yaml"
    bomb = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]\n" for i in range(1, 10))
    path.write_text(f"{path.read_text()}x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n{bomb}")
    with pytest.raises(DamagedFile, match="more than 400000 values, aliases written out"):
        Store.open(store.root, store.name).frame()
