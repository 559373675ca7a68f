"""A line that is written again and again: shorter texts leave nothing of longer ones, and it ends once."""

import os
import shutil

import pytest

from fpl_tune.execute.line import Line


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
