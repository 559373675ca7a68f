"""A line that is written again and again: shorter texts leave nothing of longer ones, and it ends once."""

import os
import shutil

import pytest

from fpl_tune.execute.callback import Outcome
from fpl_tune.execute.line import Line, ProgressLine
from fpl_tune.execute.progress import StudyProgress
from fpl_tune.findings.looks import Look

from ..conftest import MakeStore


def test_a_shorter_text_covers_a_longer_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = Line()
    line.show("12345")
    line.show("123")
    line.show("1")
    assert capsys.readouterr() == ("", "\r12345\r123  \r1  ")
    line.end("12")
    line.show("x")
    assert capsys.readouterr().err == "\r12\n\rx"
    line.close()
    line.close()
    assert capsys.readouterr().err == "\n", "once, and not where nothing stands"


def test_a_text_is_as_wide_as_the_terminal_where_there_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((10, 5)))
    Line().show("a" * 20)
    assert capsys.readouterr().err == "\r" + "a" * 20, "a file has no width"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    Line().show("a" * 20)
    assert capsys.readouterr().err == "\r" + "a" * 9


def test_a_study_is_one_line_and_what_is_to_stay_has_lines_of_its_own(
    make_store: MakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store, line = make_store(), ProgressLine()
    cell = store.cells()[0]

    def seen() -> str:
        out, err = capsys.readouterr()
        assert out == ""
        return err.replace(" \n", "\n").rstrip(" ")

    line.on_study_start(store, [cell], [])
    line.on_setup("starting Ray")
    assert seen() == "\rtoy: starting Ray"
    line.on_progress(StudyProgress(1, 4, "cell", 2, 8, 60.0, False, "best on validation 71.4 % lam=0"))
    assert seen() == "\rtoy: 1 of 4 cells, 2 of 8 rounds, about 1 min 00 s left, best on validation 71.4 % lam=0"
    line.on_warning(cell, "a checkpoint\nis damaged")
    assert seen().split() == f"{cell.label}: a checkpoint is damaged".split()
    line.on_look(look := Look(3, 4, 1, ("a", "b"), (4, 5)), [])
    assert seen().split() == f"toy: {look}".split()
    line.on_study_end(store, Outcome(3, 1, 0, 0, 1.0, 1, ("lam=1, seed 2: ValueError:\nno luck",)))
    first, second = (text.strip() for text in seen().split("\r")[1:])
    assert first == "toy: 1 of 4 cells, 2 of 8 rounds, best on validation 71.4 % lam=0", "no time is left"
    assert second == "lam=1, seed 2: ValueError: no luck"
    line.on_progress(StudyProgress(1, 4, "cell", 2, 8, None, False, ""))
    line.on_abort()
    assert seen().endswith("\n"), "what follows begins a new line"
