"""A damaged file costs its cell or seed, never the study: it is named, the rest is read, the study runs it again."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study
from fpl_tune.core.errors import ConfigError
from fpl_tune.report.facts import Facts
from fpl_tune.study.schema import DamagedFile
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

from ..conftest import Compose, MakeStore

CELL = ("cell.json", "seed=2/result.json", "seed=2/metrics.jsonl", "seed=2/prompts.safetensors")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "head": lambda data: b"\x00\xff\x80\x00" + data[4:],
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "nested": lambda data: b"[" * 100_000,
    "text": lambda data: b'"text"\n',
    "role": lambda data: data.replace(b'"role": "', b'"role": "no such '),
    "status": lambda data: data.replace(b'"status": "', b'"status": "no such '),
    "ids": lambda data: b'{"cells": ["../../x"]}',
    "repeated": lambda data: data.replace(b'"cells": [', b'"cells": ["0123456789abcdef", "0123456789abcdef", '),
    "metric": lambda data: data.replace(b'"val/acc_mean": ', b'"val/acc_mean": "high", "was": '),
    "round": lambda data: data.replace(b'"round": 2', b'"round": 1'),
}
CASES = [
    *((name, damage) for name in (*CELL, "cells.json") for damage in ("head", "truncated", "text")),
    *(("seed=2/metrics.jsonl", damage) for damage in ("nested", "empty", "metric", "round")),
    ("seed=2/result.json", "metric"),
    ("cell.json", "nested"),
    ("cell.json", "role"),
    ("seed=2/result.json", "status"),
    ("cells.json", "ids"),
    ("cells.json", "repeated"),
]


@pytest.fixture
def store(make_store: MakeStore) -> Store:
    return make_store()


def read_everything(store: Store) -> Store:
    """Reads what the command line and the page read; none may fail."""
    store = Store.open(store.root, store.name)
    assert store.status()["cells"] >= 2
    best(store)
    facts = Facts(store)
    assert facts.best is not None
    for cell in facts.cells:
        facts.curve(cell, "test/acc_mean")
    return store


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_a_damaged_file_is_named_and_the_rest_is_read(
    store: Store, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cell = store.cells()[1]
    path = store.folder / (f"cells/{cell.id}/{name}" if name in CELL else name)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        again = read_everything(store)
    (line,) = {record.getMessage() for record in caplog.records}
    assert line.startswith(f"{path} is damaged: ")
    assert line.endswith(". Run the study again: it makes the file anew.")
    assert "\n" not in line
    if damage in ("role", "status"):
        assert damage in line, "the field is named"
    assert [problem.path for problem in Store.open(store.root, store.name).check()] == [path]
    if name == "cells.json":
        assert [c.id for c in again.cells()] == [c.id for c in store.cells()]
    elif name == "cell.json":
        assert cell.id not in {c.id for c in again.cells()}
    else:
        assert again.seeds(cell) == [1, 3]
        assert again.missing(cell, store.spec()) == [2]


@pytest.mark.parametrize("damage", ["head", "truncated", "empty", "nested", "text"])
def test_a_damaged_study_file_is_one_line_and_other_studies_are_read(
    store: Store, make_store: MakeStore, damage: str
) -> None:
    other = make_store(name="other")
    path = store.folder / "study.yaml"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(ConfigError, match=r"study.yaml is damaged: .* Run the study again") as raised:
        Store.open(store.root, store.name).frame()
    assert "\n" not in str(raised.value)
    assert best(Store.open(store.root, other.name)).tested == 3


def test_other_files_in_the_folder_are_not_read(store: Store) -> None:
    cell = store.cells()[0]
    shutil.copytree(store.seed_folder(cell, 1), store.folder / "cells" / cell.id / "seed=1 (copy)")
    (store.folder / "cells" / "notes.txt").write_text("mine")
    shutil.copytree(store.folder / "cells" / cell.id, store.folder / "cells" / "copy of a cell")
    again = read_everything(store)
    assert [c.id for c in again.cells()] == [c.id for c in store.cells()]
    assert (again.earlier_cells(), again.seeds(cell)) == ([], [1, 2, 3])


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


def test_aliases_of_a_stored_study_are_not_written_out(store: Store) -> None:
    path = store.folder / "study.yaml"
    bomb = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]\n" for i in range(1, 10))
    path.write_text(f"{path.read_text()}x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n{bomb}")
    with pytest.raises(DamagedFile, match="more than 400000 values, aliases written out"):
        Store.open(store.root, store.name).frame()
