"""Callbacks of a study, and the outcome of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import StudyProgress
from fpl_tune.findings.looks import Look
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store


class Callback:
    """Receives the events of a study. Every method does nothing by default; none can change the study.

    Events come in one thread, in the order in which they happen.
    """

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        """Before the first job.

        Args:
            store: the study's results so far.
            cells: all cells so far, finished ones included.
            jobs: the queued jobs.
        """

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        """Stored results of a cell are out of date, and its seeds run again."""

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        """An executor has received a job."""

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        """A job has stopped with a checkpoint. It resumes later or is pruned."""

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        """A round has ended; one record per seed of the job."""

    def on_progress(self, progress: StudyProgress) -> None:
        """The progress, at the start and end, before each `on_cell_end`, and regularly as rounds end."""

    def on_setup(self, text: str) -> None:
        """Something takes time before the next round: `text` names it, such as "starting Ray"."""

    def on_warning(self, cell: Cell, text: str) -> None:
        """A problem that does not stop the study."""

    def on_cell_end(self, row: Row) -> None:
        """All seeds of a cell have a result.

        Args:
            row: the cell, its state, and its results by seed: `row.cell`, `row.state`, `row.results`.
        """

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        """Comparisons were looked at, in a study that adds seeds until they are decided.

        Args:
            look: the result of the look.
            jobs: the jobs that are queued for the next look.
        """

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        """After the last job, also when the study was stopped or has failed."""

    def on_abort(self) -> None:
        """Instead of `on_study_end`, when the process is about to exit."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run of a study. Counts are of cells."""

    done: int
    failed: int
    skipped: int
    """Finished by an earlier run."""
    pending: int
    """Left for the next run."""
    seconds: float
    exit_code: int
    """0: done; 1: some cells failed; 130 or 143: stopped by a signal."""
    failures: tuple[str, ...] = ()
    """Labels and seeds with their error; those that have one error are in one text, the first of them by name."""
