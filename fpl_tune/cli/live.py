"""The progress of a study: a live table with the ETA on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from fpl_tune.cli import output
from fpl_tune.core.formatting import counted, duration
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.eta import Eta
from fpl_tune.execute.job import Job, stop_requested
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import VAL, aggregate
from fpl_tune.study.selection import Candidates
from fpl_tune.study.status import FAILURES, Status
from fpl_tune.study.store import Store


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
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[last]}"),
        )
        self._tasks: dict[str, TaskID] = {}
        self._known: set[str] = set()
        self._complete = self._failed = self._before = 0
        self._began = time.monotonic()
        self._folder = Path()
        self._said = False  # that the study is ending
        self._candidates = Candidates()
        self._live: Live | None = None
        self._unasked = 0  # trials that the search has not suggested yet

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._known = {job.cell.id for job in jobs}
        finished = [cell for cell in cells if cell.id not in self._known]
        self._before = len(finished)
        self._folder, self._candidates = store.folder, Candidates(axes_of(store.spec().axes))
        self._began = time.monotonic()
        for cell in finished:
            self._count_best(cell, list(store.seed_results(cell).values()))
        if self._console.is_terminal and jobs and not self._console.quiet:
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        elif jobs:
            self._console.print(f"{counted(self._total, 'cell')} to run, {self._before} done before")

    def on_trials_remaining(self, trials: int) -> None:
        self._unasked = trials

    def on_trials_queued(self, cells: Sequence[Cell]) -> None:
        self._known |= {cell.id for cell in cells}

    def on_stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        self._console.print(f"{cell.label} runs again: {'; '.join(reasons)}", style="yellow")

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._known.add(cell.id)

    def on_job_pause(self, cell: Cell, seeds: Sequence[int]) -> None:
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(cell.label, total=cell.run.rounds, last="rounds")
        self._bars.update(self._tasks[cell.id], completed=max(record["round"] for record in records))
        if seen := [record[VAL] for record in records if VAL in record]:
            self._bars.update(self._tasks[cell.id], last=f"{100 * fmean(seen):.1f} %")
        if self._live is None and not self._said and stop_requested(self._folder):
            self._said = True
            self._console.print("Ending after the round, with a checkpoint.")

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_job_pause(cell, list(results))
        good = self._count_best(cell, list(results.values()))
        self._complete += 1
        self._failed += any(r["status"] in FAILURES for r in results.values())
        if self._live is None:
            states = {str(r["status"]) for r in results.values()} - {str(Status.DONE)}
            text = ", ".join(sorted(states)) if good is None else f"validation {100 * good:.1f} %"
            more = self._complete < self._total and self._eta.seconds is not None
            left = f", {self._time_left()}" if more else ""
            self._console.print(f"{cell.label}: {text}  ({self._complete}/{counted(self._total, 'cell')}{left})")

    def on_warning(self, cell: Cell, text: str) -> None:
        output.warn(f"{cell.label}: {text}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.on_abort()

    def on_abort(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def _total(self) -> int:
        """Cells that this process runs."""
        return len(self._known) + self._unasked

    def _count_best(self, cell: Cell, results: Sequence[dict[str, Any]]) -> float | None:
        """Mean validation accuracy of a cell, a candidate for the best; None if no seed is done."""
        good = [r["rules"]["final"][VAL] for r in results if r["status"] == Status.DONE]
        if not good:
            return None
        mean = aggregate(good)["mean"]
        self._candidates.add(cell, mean)
        return mean

    def _time_left(self) -> str:
        """The ETA, unless the study stops after this round: because of a signal or `fpl-tune stop`."""
        return output.left(self._eta.seconds, ending=stop_requested(self._folder), again=" (Ctrl-C again: at once)")

    def _draw(self) -> Group:
        """Called by the display's own thread, so that the clock runs between events."""
        head = f"[bold]{self._before + self._complete}[/]/{counted(self._before + self._total, 'cell')} done"
        if self._failed:
            head += f", [red]{self._failed} failed[/]"
        lines = [f"{head}   {self._time_left()}   [dim]{duration(time.monotonic() - self._began)}[/]"]
        if best := self._candidates.choice():  # a line of its own, which folds instead of being cut
            lines.append(f"best on validation: [green]{100 * best.val:.1f} %[/] {escape(best.label)}")
        return Group(*map(Text.from_markup, lines), *([self._bars] if self._tasks else []))


_EVERY = 30.0
"""Seconds between two pages of a running study, at least; they take a twentieth of its time, at most."""


class ReportWriter(Callback):
    """Writes the report page while the study runs, and when it ends, before the recorder attaches it to the MLflow run.

    A browser that shows the page of a running study loads it again.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._due = math.inf

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store, self._due = store, time.monotonic() + _EVERY

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        began = time.monotonic()
        if self._store is None or began < self._due:
            return
        from fpl_tune import report  # takes its time to load

        with contextlib.suppress(OSError):  # a full disk: the next page may find room
            report.build(self._store, running=True)
        took = time.monotonic() - began
        self._due = time.monotonic() + max(_EVERY, 20 * took)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if (outcome.done or outcome.skipped) and outcome.exit_code < 128:  # after Ctrl-C the command ends at once
            from fpl_tune import report  # takes its time to load

            with output.progress("writing the report") as progress:
                report.build(store, progress=progress)
