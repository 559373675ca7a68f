"""The progress of a study: bars with the time left on a terminal, plain lines elsewhere; and its page."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from fpl_tune.cli import output
from fpl_tune.core.formatting import counted
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.eta import Eta
from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import Progress, short, validation
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.looks import Look
from fpl_tune.study.results import VAL, aggregate
from fpl_tune.study.standing import State
from fpl_tune.study.store import Store


class Watcher(Progress):
    """Shows cells, their rounds and the time left.

    Args:
        eta: a callback of the same study, called before this one.
        quiet: shows warnings alone.
        every: seconds between two lines of a running study without a terminal, at least.
    """

    def __init__(self, eta: Eta, quiet: bool = False, every: float = 60.0) -> None:
        super().__init__(eta)
        self._every, self._said = every, time.monotonic()
        self._console = output.console()
        self._console.quiet = quiet
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}", markup=False),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._pruned = 0  # cells that ended early, and have no line of their own

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        super().on_study_start(store, cells, jobs)
        self._study = self._bars.add_task(store.name, total=0, note="cells")
        if jobs:
            self._bars.start()
            if self._bars.disable:
                before = sum(cell.id not in self._known for cell in cells)
                self._console.print(f"{counted(self.total, 'cell')} to run, {before} done before")

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        self._console.print(f"{cell.label} runs again: {'; '.join(reasons)}", style="yellow")

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        super().on_round_end(cell, records)
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(short(cell.label), total=cell.run.rounds, note="rounds")
        self._bars.update(self._tasks[cell.id], completed=records[0]["round"])
        if VAL in records[0]:
            seen = aggregate([record[VAL] for record in records])["mean"]
            self._bars.update(self._tasks[cell.id], note=f"{100 * seen:.1f} %")
        self._update()
        if self._bars.disable and time.monotonic() - self._said >= self._every:
            self._said = time.monotonic()
            cells = f"{self.complete}/{counted(self.total, 'cell')} done"
            self._console.print(f"{cells}, {self.rounds}, {self._time_left()}")

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_job_pause(cell, list(results))
        before = self.best
        super().on_cell_end(cell, results)
        self._update()
        if self._bars.disable and {r["status"] for r in results.values()} == {State.PRUNED}:
            self._pruned += 1  # often dozens at once, at the end of a search
        elif self._bars.disable:
            states = sorted({str(r["status"]) for r in results.values()} - {State.DONE.value})
            text = validation(results) or ", ".join(states)
            text += ", the best so far" if self.best is not before and before[1] else ""
            more = self.complete < self.total and self._eta.seconds is not None
            left = f", {self._time_left()}" if more else ""
            self._console.print(f"{cell.label}: {text}  ({self.complete}/{counted(self.total, 'cell')}{left})")

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        super().on_look(look, jobs)
        self._update()
        self._console.print(str(look))

    def on_warning(self, cell: Cell, text: str) -> None:
        output.warn(f"{cell.label}: {text}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self._bars.stop()
        if self._pruned:
            self._console.print(f"{counted(self._pruned, 'cell')} stopped early by prune.rule")

    def on_abort(self) -> None:
        self._bars.stop()

    def _update(self) -> None:
        """Shows the cells that ended, the time left and the best cell in the study's bar."""
        note = ", ".join(filter(None, ["cells", self._time_left(), self.best_text]))
        self._bars.update(self._study, completed=self.complete, total=self.total, note=note)

    def _time_left(self) -> str:
        return self.time_left(again=" (Ctrl-C again: at once)")


_EVERY = 30.0
"""Seconds between two pages of a running study, at least; they take a twentieth of its time, at most."""


class ReportWriter(Callback):
    """Writes the report page while the study runs, and when it ends, before the recorder attaches it to the MLflow run.

    A browser that shows the page of a running study loads it again.
    """

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store, self._due = store, time.monotonic() + _EVERY

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        began = time.monotonic()
        if began >= self._due:
            from fpl_tune import report  # takes its time to load

            with contextlib.suppress(OSError):  # a full disk: the next page may find room
                report.build(self._store, running=True)
            self._due = time.monotonic() + max(_EVERY, 20 * (time.monotonic() - began))

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if (outcome.done or outcome.skipped) and outcome.exit_code < 128:  # after Ctrl-C the command ends at once
            from fpl_tune import report  # takes its time to load

            report.build(store)
