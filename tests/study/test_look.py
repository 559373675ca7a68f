"""What is asked of stored studies: best, export, diff, retry."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fpl_tune import config
from fpl_tune.api import start_study as run_study
from fpl_tune.clip import load_towers
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute import manage
from fpl_tune.execute import scheduler as driver
from fpl_tune.execute.plan import diff as differences
from fpl_tune.execute.plan.diff import Differ
from fpl_tune.study.cells import expand
from fpl_tune.study.export import export, nearest_words
from fpl_tune.study.lock import locked
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

Compose = Callable[..., Any]
MakeStore = Callable[..., Store]


def test_best_reads_validation_only(make_store: MakeStore) -> None:
    store = make_store()
    chosen = best(store)
    assert chosen.cell.label == "n_ctx=8"
    assert chosen.tested == 3
    # Reversing all test figures changes what is reported, not what is chosen.
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            rules = {n: {**r, "test/acc_mean": 1 - r["test/acc_mean"]} for n, r in result["rules"].items()}
            store.put(cell, seed, store.history(cell, seed), {**result, "rules": rules})
    again = best(store)
    assert again.cell.id == chosen.cell.id
    assert again.test == pytest.approx(1 - chosen.test)
    with pytest.raises(ConfigError, match="reads test metrics"):
        best(store, "best_test")


def test_an_exported_cell_is_a_study_of_the_same_configuration(compose: Compose, tmp_path: Path) -> None:
    body = "axes: {method: [promptfl, fedprox], optim.lr: [0.1]}"
    run_study(compose(body, "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    for cell in store.cells():
        folder = tmp_path / f"export-{cell.id}"
        names = {path.name for path in export(store, cell, folder)}
        assert names == {
            f"tiny-{cell.id}.yaml",
            "environment.txt",
            "expected.csv",
            "prompts-seed1.safetensors",
            "prompts-seed2.safetensors",
            "reproduce.sh",
            "run.yaml",
            "words.txt",
        }
        (again,) = expand(config.compose_study(str(folder / f"tiny-{cell.id}.yaml")))
        assert again.id == cell.id
        lines = (folder / "words.txt").read_text().splitlines()
        assert len(lines) == 2
        found = [part.split(" ") for part in lines[0].partition(": ")[2].split(", ")]
        assert len(found) == 16
        assert all(word.isalpha() and float(distance) > 0 for word, distance in found)
        expected = pd.read_csv(folder / "expected.csv")
        assert set(expected["cell"]) == {cell.id}
        final = [store.result(cell, seed) or {} for seed in (1, 2)]
        accuracies = [result["rules"]["final"]["test/acc_mean"] for result in final]
        assert expected.loc[expected["rule"] == "final", "test/acc_mean"].tolist() == pytest.approx(accuracies)
        assert "cat expected.csv" in (folder / "reproduce.sh").read_text()
        subprocess.run(["sh", "-n", str(folder / "reproduce.sh")], check=True)
    with pytest.raises(ConfigError, match="empty folder"):
        export(store, store.cells()[0], tmp_path)


def test_nearest_words_of_words_are_themselves() -> None:
    towers = load_towers("compact")
    context = towers.words("a photo of a red star")
    (found,) = nearest_words(towers, context)
    assert [word for word, _ in found] == ["a", "photo", "of", "a", "red", "star"]
    assert [distance for _, distance in found] == pytest.approx([0.0] * 6, abs=1e-3)
    assert nearest_words(towers, torch.zeros(3)) == []


def diff(spec: config.Study, store: Store) -> list[tuple[str, str, str]]:
    """Label, state and why of the study's cells, then of those that it no longer has."""
    cells = expand(spec)
    differ = Differ(spec, store, cells)
    found = [(cell.label, (item := differ.item(cell)).status, item.why) for cell in cells]
    return [*found, *((cell.label, state, why) for cell, state, why in differ.outside())]


def test_diff_says_what_would_run_and_why(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_study(compose("axes: {optim: {lr: [0.1, 0.2]}}", "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    spec = compose("axes: {optim: {lr: [0.1, 0.3]}}", "protocol.rounds=1", "seeds=3")
    assert diff(spec, store) == [
        ("lr=0.1", "partial", "without seed 3"),
        ("lr=0.3", "new", ""),
        ("lr=0.2", "gone", "not in the study"),
    ]
    assert diff(replace(spec, seeds=4), store)[0][2] == "without seeds 3, 4"
    real = driver.fingerprints
    monkeypatch.setattr(differences, "fingerprints", lambda run: {**real(run), "data": "other"})
    assert diff(spec, store)[0] == ("lr=0.1", "stale", "data")


def test_diff_names_cells_that_earlier_settings_left_and_that_can_come_back(compose: Compose, tmp_path: Path) -> None:
    for values in ("0.1, 0.2", "0.1", "0.3"):
        run_study(compose(f"axes: {{optim: {{lr: [{values}]}}}}", "protocol.rounds=1"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")

    def states(values: str) -> list[tuple[str, str, str]]:
        spec = compose(f"axes: {{optim: {{lr: [{values}]}}}}", "protocol.rounds=1")
        return sorted(diff(spec, store))

    gone = ("gone", "not in the study")
    assert states("0.3") == [("lr=0.1", *gone), ("lr=0.2", *gone), ("lr=0.3", "done", "")]
    assert states("0.1") == [("lr=0.1", "done", ""), ("lr=0.2", *gone), ("lr=0.3", *gone)]


def test_diff_names_the_fields_that_made_a_cell_new(compose: Compose, tmp_path: Path) -> None:
    run_study(compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=1"), root=tmp_path)
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=2", "data.shots=3")
    new, gone = diff(made, Store.open(tmp_path, "tiny"))
    assert (new[1], gone[1]) == ("new", "gone")
    assert set(new[2].split(", ")) == {"data.shots 4 -> 3", "protocol.rounds 1 -> 2"}


def test_status_stop_and_retry(make_store: MakeStore) -> None:
    store = make_store(fill=lambda cell, seed: seed < 3)
    found = manage.status(store)
    assert (found["cells"], found["seeds"], found["seeds_wanted"], found["run_by"]) == (4, 8, 12, None)
    with pytest.raises(ConfigError, match="toy is not running"):
        manage.stop(store)
    with locked(store.folder):
        manage.stop(store)
        assert (store.folder / "study.stop").exists()
        with pytest.raises(ConfigError, match="one process at a time"):
            manage.retry_failed(store)
    cell = store.cells()[1]
    result = store.result(cell, 1)
    assert result is not None
    store.put(cell, 1, [], {**result, "status": "failed", "error": "no luck"})
    store.put(cell, 2, [], {**result, "status": "diverged", "error": "no finite number"})
    assert manage.retry_failed(store, ["failed"]) == [(cell, f"{cell.label}, seed 1: no luck")]
    assert store.seeds(cell) == [2]
    assert manage.retry_failed(store) == [(cell, f"{cell.label}, seed 2: no finite number")]
