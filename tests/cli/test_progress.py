"""What a person sees of things that take long, on a terminal and without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fpl_tune.cli import live, output
from fpl_tune.study.store import Store


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


def test_the_page_of_a_running_study_is_written_again_but_seldom(
    make_store: Callable[..., Store], clock: list[float]
) -> None:
    store = make_store(fill=lambda cell, seed: cell.number == 0)
    writer, cell = live.ReportWriter(), store.cells()[0]
    page = store.folder / "report.html"
    writer.on_study_start(store, store.cells(), [])
    writer.on_cell_end(cell, {})
    assert not page.is_file(), "a study that ends soon writes one page"
    clock[0] += 31
    writer.on_cell_end(cell, {})
    assert 'data-written="0"' not in page.read_text(encoding="utf-8")
    page.unlink()
    clock[0] += 5
    writer.on_cell_end(cell, {})
    assert not page.is_file()
