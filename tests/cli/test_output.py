"""How figures are printed, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from fpl_tune.cli import live, output
from fpl_tune.cli.show import print_results
from fpl_tune.execute.job import Job
from fpl_tune.study.results import VAL


def test_a_measure_that_is_no_share_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], make_store) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2]}}\nseeds: 2\nreport: {metric: time/seconds}\n")
    print_results(store, "final", "table")
    found = capsys.readouterr().out
    assert "time/seconds" in found
    assert "2 ± 0" in found
    assert "│ test" not in found


ROWS = [{"cell": "lam=0", "mean": 0.5, "n": np.int64(3)}, {"cell": "a,b", "mean": math.nan, "n": None}]


def test_json_is_valid_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, "json")
    assert json.loads(capsys.readouterr().out) == [
        {"cell": "lam=0", "mean": 0.5, "n": 3},
        {"cell": "a,b", "mean": None, "n": None},
    ]


def test_csv_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit(ROWS, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [r["cell"] for r in rows] == ["lam=0", "a,b"]
    assert [r["mean"] for r in rows] == ["0.5", ""]


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_no_letter_of_a_table_is_lost_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    output.emit([{name: f"{name}234567" for name in "abcdef"}], "table")
    cells = [[part.strip() for part in line.split("│")[1:-1]] for line in _lines(capsys) if "│" in line]
    assert ["".join(parts) for parts in zip(*cells, strict=True)] == [f"{name}234567" for name in "abcdef"]


def test_figures_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit([{"test %": "9.1 ± 0.2", "cell": "a"}, {"test %": "10.5 ± 0.1", "cell": "bc"}], "table")
    rows = [line for line in _lines(capsys) if "±" in line]
    assert rows[0] == "│  9.1 ± 0.2 │ a    │"


def test_a_running_cell_shows_its_round_and_its_last_validation_accuracy(
    make_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(fill=lambda cell, seed: False)
    cell = store.cells()[0]
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    monkeypatch.setattr(live.output, "console", lambda: terminal)
    watcher = live.Watcher(live.Eta())
    watcher.on_study_start(store, [cell], [Job(cell, (1, 2))])
    watcher.on_job_start(cell, (1, 2))
    for val in (0.25, 0.5):
        watcher.on_round_end(cell, [{"seed": s, "round": 3, VAL: val + s / 100, "time/seconds": 1.0} for s in (1, 2)])
    with terminal.capture() as seen:
        watcher.on_abort()
    assert f"3/{cell.run.rounds} 51.5 %" in seen.get()
