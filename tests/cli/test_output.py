"""What is printed: figures, for people and for programs, and what takes long."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fpl_tune.cli import live, output
from fpl_tune.cli.show import print_results
from fpl_tune.core.paths import list_studies
from fpl_tune.execute.callback import Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import StudyProgress
from fpl_tune.findings.looks import Look
from fpl_tune.study.cells import Cell
from fpl_tune.study.design import Design
from fpl_tune.study.results import VAL, Run, Status
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store

from .conftest import Command


def test_a_measure_that_is_no_share_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], make_store) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2]}}\nseeds: 2\nreport: {metric: time/seconds}\n")
    print_results(store, "final", "table")
    found = capsys.readouterr().out
    assert "time/seconds" in found
    assert re.search(r"│ +2 │ +2 │", found), "time and seeds"
    assert "±" not in found, "seeds are trained together"
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


def test_people_read_words_and_four_digits(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {True: "yes", False: "no", 0.123456: "0.1235", 12345678.0: "1.235e+07", math.nan: "–", None: "–", "a": "a"}
    for value, text in shown.items():
        output.emit({"a": value}, "table")
        row = next(line for line in _lines(capsys) if line.startswith("│ a"))
        assert row.split("│")[2].strip() == text
    output.emit({"seeds": [1, 2]}, "table")
    assert " 1, 2 " in capsys.readouterr().out


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", ["30", "1", "0", "", "many"])
def test_no_letter_of_a_table_is_lost_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    output.emit([{name: f"{name}234567" for name in "abcdef"}], "table")
    cells = [[part.strip() for part in line.split("│")[1:-1]] for line in _lines(capsys) if "│" in line]
    assert ["".join(parts) for parts in zip(*cells, strict=True)] == [f"{name}234567" for name in "abcdef"]


def test_figures_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit([{"test %": "9.1 ± 0.2", "cell": "a"}, {"test %": "10.5 ± 0.1", "cell": "bc"}], "table")
    rows = [line for line in _lines(capsys) if "±" in line]
    assert rows[0] == "│  9.1 ± 0.2 │ a    │"


def test_a_narrow_table_is_as_wide_as_its_cells_and_two_blanks_between_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"trial": "12345", "lr": "0.25", "val": "90.0"}, {"trial": "67890", "lr": "0.50", "val": "80.0"}]
    output.emit(rows, "table", narrow=True)
    lines = _lines(capsys)
    begin = next(number for number, line in enumerate(lines) if "0.25" in line)
    for row, line in zip(rows, lines[begin:], strict=False):
        assert line.strip().split("  ") == [*row.values()]


def test_a_narrow_table_leaves_out_spare_columns_from_the_last_until_it_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"cell": "a" * 12, "b": "1" * 5, "c": "2" * 5, "d": "3" * 5}
    for width, left in {"45": [], "34": ["c"], "26": ["b", "c"], "20": ["d", "b", "c"]}.items():
        monkeypatch.setenv("COLUMNS", width)
        output.emit([row], "table", narrow=True, spare=["d", "b", "c"])
        text = " ".join(_lines(capsys))
        assert [name for name in row if row[name] in text.split()] == [name for name in row if name not in left]
        said = f"columns without room: {', '.join(left)}"
        assert said in text if left else "without room" not in text


def test_a_running_cell_shows_its_round_and_its_last_validation_accuracy(
    make_store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(fill=lambda cell, seed: False)
    cell = store.cells()[0]
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    monkeypatch.setattr(live.output, "console", lambda **_: terminal)
    watcher = live.Watcher()
    watcher.on_study_start(store, [cell], [Job(cell, (1, 2))])
    watcher.on_job_start(cell, (1, 2))
    for val in (0.25, 0.5):
        watcher.on_round_end(cell, [{"seed": s, "round": 3, VAL: val + s / 100, "time/seconds": 1.0} for s in (1, 2)])
    with terminal.capture() as seen:
        watcher.on_abort()
    assert f"3 of {cell.run.rounds} rounds, 51.5 %" in seen.get()


def over(cell: Cell, run: Run) -> Row:
    """A cell whose two seeds ended so."""
    return Row(cell, Design((1, 2)), dict.fromkeys((1, 2), run))


def progress(
    done: int, rounds: int, seconds: float | None = None, *, best: str = "", ending: bool = False
) -> StudyProgress:
    return StudyProgress(done, 2, "cell", rounds, 32, seconds, ending, best)


def test_the_bar_of_a_study_says_what_it_waits_for_and_names_the_best_cell_so_far(
    make_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    low, *_ = cells = store.cells()
    terminal = Console(file=io.StringIO(), width=150, force_terminal=True, color_system=None)
    monkeypatch.setattr(live.output, "console", lambda **_: terminal)
    watcher = live.Watcher()
    watcher.on_study_start(store, cells, [Job(low, (1, 2, 3))])

    def shown() -> str:
        with terminal.capture() as seen:
            watcher._bars.refresh()
        return seen.get()

    watcher.on_progress(progress(0, 0))
    assert "0 of 2 cells, 0 of 32 rounds, starting" in shown()
    watcher.on_setup("encoding caltech101: 128 of 8,242 images")
    assert "0 of 2 cells, 0 of 32 rounds, encoding caltech101: 128 of 8,242 images" in shown()
    watcher.on_progress(progress(1, 20, 65.0, best="best on validation 71.4 % lam=0"))
    assert "1 of 2 cells, 20 of 32 rounds, about 1 min 05 s left, best on validation 71.4 % lam=0" in shown()
    watcher.on_progress(progress(1, 22, 61.0, ending=True))
    text = shown()
    assert "1 of 2 cells, 22 of 32 rounds, ending after the round (Ctrl-C again: immediately)" in text
    assert "running" not in text
    watcher.on_abort()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which moves when a test says so."""
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def _told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on standard error; standard output is for results."""
    seen = capsys.readouterr()
    assert seen.out == ""
    return seen.err.splitlines()


def test_a_study_without_a_terminal_says_where_it_is_once_a_minute(
    make_store, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(["protocol.rounds=8"], fill=lambda cell, seed: False)
    first, second = store.cells()[:2]
    watcher = live.Watcher()
    watcher.on_study_start(store, [first, second], [Job(first, (1, 2)), Job(second, (1, 2))])
    watcher.on_progress(progress(0, 0))
    for text in (
        "starting Ray",
        "encoding caltech101: 128 of 8,242 images",
        "encoding caltech101: 256 of 8,242 images",
    ):
        watcher.on_setup(text)
    assert _told(capsys) == ["0 of 2 cells, 0 of 32 rounds, starting", "starting Ray", "encoding caltech101"]
    for number in range(1, 9):
        clock[0] += 25
        watcher.on_progress(progress(0, 2 * number, 400.0 - 25 * number))
    watcher.on_progress(progress(1, 16, 200.0, best="best on validation 50.0 % lam=0"))
    watcher.on_cell_end(over(first, Run(Status.DONE, 16, rules={"final": {VAL: 0.5}})))
    assert _told(capsys) == [
        "0 of 2 cells, 6 of 32 rounds, about 5 min 25 s left", "0 of 2 cells, 12 of 32 rounds, about 4 min 10 s left",
        f"{first.label}: validation 50.0 %  (1 of 2 cells, 16 of 32 rounds, about 3 min 20 s left, "
        "best on validation 50.0 % lam=0)",
    ]  # fmt: skip
    watcher.on_progress(progress(2, 32, 0.0))
    watcher.on_cell_end(over(second, Run(Status.DIVERGED, 16)))
    assert _told(capsys) == [f"{second.label}: diverged  (2 of 2 cells, 32 of 32 rounds)"]


def test_what_happens_on_the_way_is_a_line_each(make_store, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(fill=lambda cell, seed: False)
    first, *others = store.cells()
    watcher, look = live.Watcher(), Look(3, 4, 1, ("a", "b"), (4, 5))
    watcher.on_study_start(store, store.cells(), [Job(first, (1, 2))])
    watcher.on_progress(progress(0, 0))
    capsys.readouterr()
    watcher.on_stale(first, ["method source", "data"])
    watcher.on_look(look, [])
    halved = Design((1, 2), reduction=3, first_rung=1)
    for _ in others:
        watcher.on_cell_end(Row(replace(first, role="trial"), halved, {1: Run(Status.PARTIAL, 1)}, complete=True))
    assert _told(capsys) == [f"{first.label} runs again: method source; data", str(look)], "pruned ones are counted"
    watcher.on_warning(first, "a checkpoint\nis damaged")
    assert capsys.readouterr() == ("", f"{first.label}: a checkpoint is damaged\n")
    watcher.on_study_end(store, Outcome(1, 0, 0, 0, 1.0, 0))
    assert _told(capsys) == [f"{len(others)} cells stopped early by prune.rule"]
    quiet = live.Watcher(quiet=True)
    quiet.on_study_start(store, store.cells(), [Job(first, (1, 2))])
    quiet.on_progress(progress(0, 0))
    quiet.on_stale(first, ["data"])
    assert _told(capsys) == []


@pytest.mark.parametrize("what", ["encoding", ""])
def test_lines_with_the_time_left_where_there_is_no_terminal(
    what: str, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with output.progress(what) as follow:
        for done in range(0, 5000, 500):
            follow(done, 5000, "encoding" if what == "" else "pool")
            clock[0] += 3
    seen = capsys.readouterr()
    assert seen.out == "", "results only"
    lines = seen.err.splitlines()
    assert len(lines) == 2, "one in ten seconds"
    assert lines[0] == "encoding: 2,000 of 5,000, about 18 s left"
    assert "\x1b" not in seen.err


def test_a_bar_shows_a_share_once_its_total_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "console", lambda **_: terminal)
    with terminal.capture() as before, output.progress("encoding"):
        pass
    with terminal.capture() as after, output.progress("encoding") as follow:
        follow(1, 4)
    assert "encoding" in before.get()
    assert "%" not in before.get()
    assert "25%" in after.get()


def test_the_page_of_a_running_study_is_written_again_but_seldom(
    make_store: Callable[..., Store], clock: list[float]
) -> None:
    store = make_store(fill=lambda cell, seed: cell.number == 0)
    writer, cell = live.ReportWriter(), store.cells()[0]
    page = store.folder / "report.html"
    writer.on_study_start(store, store.cells(), [])
    writer.on_cell_end(store.row(cell))
    assert not page.is_file(), "a study that ends soon writes one page"
    clock[0] += 31
    writer.on_cell_end(store.row(cell))
    assert 'data-written="0"' not in page.read_text(encoding="utf-8")
    page.unlink()
    clock[0] += 5
    writer.on_cell_end(store.row(cell))
    assert not page.is_file()


Offered = Callable[..., list[str]]


@pytest.fixture
def offered(command: Command, monkeypatch: pytest.MonkeyPatch) -> Offered:
    """offered("study", "lam"): what bash is told when the cursor stands behind the last word."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_FPL_TUNE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["fpl-tune", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return command().out.split()

    return ask


def test_studies_that_can_be_run_and_studies_that_have_results(offered: Offered, here: Path) -> None:
    assert offered("study", "lambda") == [name for name in sorted(list_studies()) if name.startswith("lambda")]
    assert offered("show", "") == []
    (here / "outputs" / "mine").mkdir(parents=True)
    (here / "outputs" / "mine" / "study.yaml").touch()
    assert offered("show", "") == offered("status", "") == ["mine"]
    assert not list(here.glob("outputs/.*")), "nothing is written by asking"


def test_methods_also_where_bash_splits_the_word_at_the_sign(offered: Offered) -> None:
    names = ["pfedmoap", "pfedmoap_dp"]
    assert offered("new", "study", "mine", "--method", "pfedmo") == names
    assert offered("run", "method=pfedmo") == [f"method={name}" for name in names]
    assert offered("run", "method", "=", "pfedmo") == names
