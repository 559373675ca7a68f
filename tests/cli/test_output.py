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
from fpl_tune.cli.status import list_results
from fpl_tune.execute.job import Job
from fpl_tune.study.results import VAL


def test_percent() -> None:
    assert output.percent(0.8734, 0.0042) == "87.3 ± 0.4"
    assert output.percent(0.8734, math.nan) == "87.3"
    assert output.percent(math.nan) == "–"


def test_a_measure_that_is_no_share_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], make_store) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2]}}\nseeds: 2\nreport: {metric: time/seconds}\n")
    print_results(store, "final", "table")
    found = capsys.readouterr().out
    assert "time/seconds" in found
    assert "2 ± 0" in found
    assert "test %" not in found


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


def test_table_without_terminal_is_plain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    output.emit(ROWS, "table", title="Title", best=[0])
    text = capsys.readouterr().out
    assert "\x1b[" not in text
    assert "Title" in text
    assert "lam=0" in text


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_names_and_figures_are_not_broken_where_text_can_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    row = {
        "method": "of_twenty_letters___",
        "what": "many words " * 10,
        "why": "more words " * 10,
        "difference": "+0.25",
    }
    output.emit([row], "table")
    lines = _lines(capsys)
    assert max(map(len, lines)) <= 60
    assert [any(whole in line for line in lines) for whole in ("of_twenty_letters___", "difference", "+0.25")] == [
        True
    ] * 3


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


def test_no_word_of_a_results_table_is_split_at_forty_columns(
    capsys: pytest.CaptureFixture[str], make_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    store = make_store()
    print_results(store, "final", "table")
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("│")]
    assert all(len(line) <= 40 for line in rows)
    words = " ".join(rows).replace("│", " ").split()
    assert {word for cell in store.cells() for word in cell.label.split()} <= set(words)
    assert not any(store.cells()[0].id[:4] in word for word in words), "ids need wider terminals"


def test_no_word_of_the_list_of_studies_is_split_at_forty_columns(
    capsys: pytest.CaptureFixture[str], make_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(store.root))
    list_results("table")
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].replace("┃", " ").split() == ["study", "cells", "running"]
    assert [store.name, str(len(store.cells())), "no"] == printed[3].replace("│", " ").split()


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
    shown = live.Group(watcher._draw())
    watcher.on_abort()
    with terminal.capture() as seen:
        terminal.print(shown)
    assert f"3/{cell.run.rounds} 51.5 %" in seen.get()
