"""The progress of a study in one line, for notebooks and users' own programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import StudyProgress
from fpl_tune.findings.looks import Look
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store


class Line:
    """A line on standard error that is written again and again."""

    def __init__(self) -> None:
        self._width = 0  # characters of the present text

    def show(self, text: str) -> None:
        """Replaces the text. It is cut to the terminal's width: a wrapped line cannot be replaced."""
        if sys.stderr.isatty():
            text = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def end(self, text: str) -> None:
        """Replaces the text for the last time, and begins a new line."""
        print(f"\r{text:<{self._width}}", file=sys.stderr, flush=True)
        self._width = 0

    def close(self) -> None:
        """Keeps the text, and begins a new line."""
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0


class ProgressLine(Callback):
    """Shows the progress of a study in one line, which is updated in place."""

    def __init__(self) -> None:
        self._line, self._name, self._text = Line(), "", ""

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._name = store.name

    def on_setup(self, text: str) -> None:
        self._line.show(f"{self._name}: {text}")

    def on_progress(self, progress: StudyProgress) -> None:
        self._text = f"{self._name}: {progress.line(over=True)}"
        self._line.show(f"{self._name}: {progress.line()}")

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        self._line.end(f"{self._name}: {look}")

    def on_warning(self, cell: Cell, text: str) -> None:
        self._line.end(f"{cell.label}: {' '.join(text.split())}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if self._text:
            self._line.end(self._text)
        for failure in outcome.failures:
            self._line.end(" ".join(failure.split()))

    def on_abort(self) -> None:
        self._line.close()
