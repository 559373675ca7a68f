"""The progress of a study: bars with the time left on a terminal, plain lines elsewhere; and its page."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column

from fpl_tune.cli import output
from fpl_tune.core.formatting import counted
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import StudyProgress, short
from fpl_tune.findings.looks import Look
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import VAL, aggregate
from fpl_tune.study.standing import CellState, Row
from fpl_tune.study.store import Store

_LINE_EVERY = 60.0
"""Minimum seconds between two progress lines without a terminal; the ends of cells are always printed."""


class Watcher(Callback):
    """Shows cells, their rounds and the time left on standard error.

    Args:
        quiet: True to show only warnings.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._console = output.console(stderr=True)
        self._console.quiet = quiet
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", markup=False, table_column=Column()),  # wraps if it is long
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._setup = ""  # the last setup text
        self._pruned = 0  # cells that ended early, which are not printed one by one

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._study = self._bars.add_task(store.name, total=None, note="")
        self._printed_at = -math.inf if jobs else time.monotonic()  # with something to run, the first line is due
        if jobs:
            self._bars.start()

    def on_setup(self, text: str) -> None:
        self._bars.update(self._study, note=f"{self._progress}, {text}")
        if self._bars.disable and (what := text.partition(":")[0]) != self._setup:
            self._setup = what
            self._console.print(what)

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        self._console.print(f"{cell.label} runs again: {'; '.join(reasons)}", style="yellow")

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(short(cell.label), total=cell.run.rounds, note="")
        seen = [record[VAL] for record in records if VAL in record]
        note = f"{records[0]['round']} of {counted(cell.run.rounds, 'round')}"
        note += f", {100 * aggregate(seen)['mean']:.1f} %" if seen else ""
        self._bars.update(self._tasks[cell.id], completed=records[0]["round"], note=note)

    def on_progress(self, progress: StudyProgress) -> None:
        self._progress = progress
        line = progress.line(again=" (Ctrl-C again: immediately)")
        self._bars.update(self._study, completed=progress.done, total=progress.total, note=line)
        if self._bars.disable and time.monotonic() - self._printed_at >= _LINE_EVERY:
            self._printed_at = time.monotonic()
            self._console.print(line)

    def on_cell_end(self, row: Row) -> None:
        self.on_job_pause(row.cell, list(row.results))
        states = {row.status(seed) for seed in row.results}
        if self._bars.disable and states == {CellState.PRUNED}:
            self._pruned += 1  # often dozens at the end of a search
        elif self._bars.disable:
            text = validation(row) or ", ".join(sorted(states - {CellState.DONE.value}))
            self._console.print(f"{row.cell.label}: {text}  ({self._progress.line()})")

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        self._console.print(str(look))

    def on_warning(self, cell: Cell, text: str) -> None:
        output.warn(f"{cell.label}: {text}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self._bars.stop()
        if self._pruned:
            self._console.print(f"{counted(self._pruned, 'cell')} stopped early by prune.rule")

    def on_abort(self) -> None:
        self._bars.stop()


def validation(row: Row) -> str:
    """The mean validation accuracy of the seeds that are done, as text; empty if there are none."""
    good = [row.results[seed].rules["final"][VAL] for seed in row.counts]
    return f"validation {100 * aggregate(good)['mean']:.1f} %" if good else ""


_EVERY = 30.0
"""Minimum seconds between two pages of a running study; they take at most a twentieth of its time."""


class ReportWriter(Callback):
    """Writes the report page while the study runs, and when it ends, before the recorder attaches it to the MLflow run.

    The page of a running study reloads itself in the browser.
    """

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store, self._due = store, time.monotonic() + _EVERY

    def on_cell_end(self, row: Row) -> None:
        began = time.monotonic()
        if began >= self._due:
            from fpl_tune import report  # takes its time to load

            with contextlib.suppress(OSError):  # a full disk: the next page may find room
                report.build(self._store, running=True)
            self._due = time.monotonic() + max(_EVERY, 20 * (time.monotonic() - began))

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if (outcome.done or outcome.skipped) and outcome.exit_code < 128:  # after Ctrl-C the command ends immediately
            from fpl_tune import report  # takes its time to load

            report.build(store)
