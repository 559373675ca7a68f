"""What a person sees while a study runs: one live table with an ETA, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fpl_tune.cli import output
from fpl_tune.study.cells import Cell
from fpl_tune.study.job import Job
from fpl_tune.study.runner import Listener, Outcome
from fpl_tune.study.store import Store
from fpl_tune.trial import Record, rounds_of


class Watcher(Listener):
    """Counts rounds of all cells: what is left is estimated from the pace so far."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = output.console()
        self._quiet = quiet
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
        )
        self._tasks: dict[str, TaskID] = {}
        self._rounds: dict[str, int] = {}
        self._known: dict[str, int] = {}
        self._done = self._complete = self._failed = self._before = 0
        self._began = time.monotonic()
        self._best: tuple[float, str] | None = None
        self._live: Live | None = None

    def begin(self, store: Store, cells: Sequence[Cell], todo: Sequence[Job]) -> None:
        self._known = {job.cell.id: rounds_of(job.cell.run) for job in todo}
        self._before = len(cells) - len(self._known)
        self._began = time.monotonic()
        for cell in cells:
            if cell.id not in self._known:
                self._count_best(cell, [r for s in store.seeds(cell) if (r := store.result(cell, s))])
        if self._quiet or not todo:
            return
        if self._console.is_terminal:
            self._live = Live(self._draw(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self._console.print(f"{len(self._known)} cells to run, {self._before} done before")

    def stale(self, cell: Cell, reasons: Sequence[str]) -> None:
        if not self._quiet:
            self._console.print(f"{cell.label} runs again: {'; '.join(reasons)}", style="yellow")

    def started(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._known.setdefault(cell.id, rounds_of(cell.run))

    def progress(self, cell: Cell, records: Sequence[Record]) -> None:
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(cell.label, total=rounds_of(cell.run))
        number = max(record["round"] for record in records)
        self._done += number - self._rounds.get(cell.id, 0)
        self._rounds[cell.id] = number
        self._bars.update(self._tasks[cell.id], completed=number)
        self._refresh()

    def finished(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._done += self._known.get(cell.id, 0) - self._rounds.pop(cell.id, 0)
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))
        good = self._count_best(cell, list(results.values()))
        self._complete += 1
        self._failed += any(r["status"] in ("failed", "diverged") for r in results.values())
        if not self._quiet and self._live is None:
            states = {r["status"] for r in results.values()} - {"done"}
            text = ", ".join(sorted(states)) if good is None else f"validation {100 * good:.1f} %"
            self._console.print(f"{cell.label}: {text}  ({self._complete}/{len(self._known)} cells, {self._eta()})")
        self._refresh()

    def end(self, store: Store, outcome: Outcome) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _count_best(self, cell: Cell, results: Sequence[dict[str, Any]]) -> float | None:
        """Mean validation accuracy of a cell, kept if it is the best so far; None where no seed is done."""
        good = [r["rules"]["final"]["val/acc_mean"] for r in results if r["status"] == "done"]
        if not good:
            return None
        mean = sum(good) / len(good)
        if cell.role != "reference" and (self._best is None or mean > self._best[0]):
            self._best = (mean, cell.label)
        return mean

    def _eta(self) -> str:
        if not self._done:
            return "measuring the pace"
        left = (time.monotonic() - self._began) / self._done * (sum(self._known.values()) - self._done)
        return f"about {output.duration(max(left, 0))} left"

    def _draw(self) -> Table:
        head = f"[bold]{self._before + self._complete}[/]/{self._before + len(self._known)} cells done"
        if self._failed:
            head += f", [red]{self._failed} failed[/]"
        if self._best:
            head += f"   best on validation: [green]{self._best[1]}[/] {100 * self._best[0]:.1f} %"
        table = Table.grid(padding=(0, 1))
        table.add_row(f"{head}   {self._eta()}   [dim]{output.duration(time.monotonic() - self._began)}[/]")
        table.add_row(self._bars)
        return table

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._draw())
