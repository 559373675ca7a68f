"""The progress of a study: bars with the time left on a terminal, plain lines elsewhere; and its page."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fpl_tune.cli import output
from fpl_tune.core.formatting import counted, figure
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.eta import Eta
from fpl_tune.execute.job import Job
from fpl_tune.execute.manage import stop_requested
from fpl_tune.simulation.simulation import Record
from fpl_tune.study import results as tables
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import VAL, aggregate
from fpl_tune.study.selection import objectives_of, selecting_rule, sign
from fpl_tune.study.store import Store
from fpl_tune.study.trial import State

_LABEL = 44  # letters of a cell's label in its line


class Watcher(Callback):
    """Shows cells, their rounds and the time left.

    Args:
        eta: a callback of the same study, called before this one.
        quiet: shows warnings alone.
    """

    def __init__(self, eta: Eta, quiet: bool = False) -> None:
        self._eta = eta
        self._console = output.console()
        self._console.quiet = quiet
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}", markup=False),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._known: set[str] = set()
        self._unasked = self._complete = 0  # trials that the search has not suggested yet; cells that ended
        self._pruned = 0  # cells that ended early, and have no line of their own
        self._folder = Path()
        self._best = -math.inf, ""  # the first objective, negated where less is better; the cell's label

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._folder, self._known = store.folder, {job.cell.id for job in jobs}
        self._store, study = store, store.study()
        self._objectives, self._rule = objectives_of(study), selecting_rule(study.report.rule)
        self._study = self._bars.add_task(store.name, total=0, note="cells")
        before = [cell for cell in cells if cell.id not in self._known]
        for cell in before:
            self._validation(cell, store.shown_results(cell))
        if jobs:
            self._bars.start()
            if self._bars.disable:
                self._console.print(f"{counted(self._total, 'cell')} to run, {len(before)} done before")

    def on_trials_queued(self, cells: Sequence[Cell], remaining: int) -> None:
        self._known |= {cell.id for cell in cells}
        self._unasked = remaining

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        self._console.print(f"{cell.label} runs again: {'; '.join(reasons)}", style="yellow")

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._known.add(cell.id)

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(_short(cell.label), total=cell.run.rounds, note="rounds")
        self._bars.update(self._tasks[cell.id], completed=records[0]["round"])
        if VAL in records[0]:
            seen = aggregate([record[VAL] for record in records])["mean"]
            self._bars.update(self._tasks[cell.id], note=f"{100 * seen:.1f} %")
        self._update()

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_job_pause(cell, list(results))
        self._complete += 1
        self._update()
        if self._bars.disable and {r["status"] for r in results.values()} == {State.PRUNED}:
            self._pruned += 1  # often dozens at once, at the end of a search
        elif self._bars.disable:
            states = sorted({str(r["status"]) for r in results.values()} - {State.DONE.value})
            before = self._best
            text = self._validation(cell, results) or ", ".join(states)
            text += ", the best so far" if self._best is not before and before[1] else ""
            more = self._complete < self._total and self._eta.seconds is not None
            left = f", {self._time_left()}" if more else ""
            self._console.print(f"{cell.label}: {text}  ({self._complete}/{counted(self._total, 'cell')}{left})")

    def on_warning(self, cell: Cell, text: str) -> None:
        output.warn(f"{cell.label}: {text}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self._bars.stop()
        if self._pruned:
            self._console.print(f"{counted(self._pruned, 'cell')} stopped early by prune.rule")

    def on_abort(self) -> None:
        self._bars.stop()

    @property
    def _total(self) -> int:
        """Cells that this process runs."""
        return len(self._known) + self._unasked

    def _validation(self, cell: Cell, results: dict[int, dict[str, Any]]) -> str:
        """The mean validation accuracy of a cell in words, remembered if the objective makes it the best; empty if no
        seed is done."""
        good = [r["rules"]["final"][VAL] for r in results.values() if r["status"] == State.DONE]
        if not good:
            return ""
        mean = aggregate(good)["mean"]
        if cell.candidate and len(good) == len(results) and len(self._objectives) == 1:
            (objective,) = self._objectives
            histories = (self._store.history(cell, seed) for seed in results)
            reached = aggregate([tables.figure(history, objective, self._rule) for history in histories])["mean"]
            self._best = max(self._best, (sign(objective) * reached, cell.label), key=lambda known: known[0])
        return f"validation {100 * mean:.1f} %"

    def _update(self) -> None:
        """Shows the cells that ended, the time left and the best cell in the study's bar."""
        reached, label = self._best
        name = self._objectives[0]
        value = figure(sign(name) * reached, name)
        shown = f"on validation {100 * reached:.1f} %" if name == VAL else f"{name} {value}"
        best = f", best {shown} {_short(label)}" if label else ""
        note = f"cells, {self._time_left()}{best}"
        self._bars.update(self._study, completed=self._complete, total=self._total, note=note)

    def _time_left(self) -> str:
        """The ETA, unless the study stops after this round: because of a signal or `fpl-tune stop`."""
        return output.left(self._eta.seconds, ending=stop_requested(self._folder), again=" (Ctrl-C again: at once)")


def _short(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


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
