"""What a person sees of things that take long, on a terminal and without one."""

from __future__ import annotations

import io
import sys

import pytest

from fpl_tune.cli import output


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which moves when a test says so."""
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


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


@pytest.mark.parametrize(("seconds", "shown"), [(1.0, False), (3.0, True)])
def test_a_bar_on_a_terminal_after_two_seconds(
    seconds: float, shown: bool, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with output.progress("encoding") as follow:
        follow(0, 10)
        clock[0] += seconds
        follow(5, 10)
    assert ("encoding" in terminal.getvalue()) is shown
