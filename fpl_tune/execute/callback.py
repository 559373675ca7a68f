"""What follows a study, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fpl_tune.execute.job import Job
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.trial import Record


class Callback:
    """Base of what follows a study. Nothing it does changes the study."""

    def begin(self, store: Store, cells: Sequence[Cell], todo: Sequence[Job]) -> None:
        """Before the first job; `cells` of the axes, `todo` what is missing."""

    def unasked(self, trials: int) -> None:
        """Trials that a search will still ask for, now; heard before `begin` and whenever it has asked for some."""

    def queued(self, cells: Sequence[Cell]) -> None:
        """Trials that a search has come up with and that will run."""

    def stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        """Stored results of a cell are no longer valid and run again."""

    def started(self, cell: Cell, seeds: Sequence[int]) -> None:
        """A job was handed out."""

    def progress(self, cell: Cell, records: Sequence[Record]) -> None:
        """A round, one record per seed that runs."""

    def warned(self, cell: Cell, text: str) -> None:
        """Something went wrong that does not stop the study."""

    def finished(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        """All seeds of a cell have a result; by seed."""

    def end(self, store: Store, outcome: Outcome) -> None:
        """After the last job, however the study ended."""

    def cut(self) -> None:
        """Instead of `end`, where the process is to end at once."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a study ended; numbers of cells."""

    done: int
    failed: int
    skipped: int
    """Finished before."""
    pending: int
    """Left for the next time."""
    seconds: float
    exit_code: int
    """0 done, 1 with failed cells, 4 budget ended, 130 or 143 stopped."""
    failures: tuple[str, ...] = ()
    """label, seed and error of what failed."""
