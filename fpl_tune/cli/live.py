"""What a person sees while a study runs: one live table with an ETA, or plain lines without a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from fpl_tune.cli import output
from fpl_tune.study.runner import Listener


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
        self._labels: dict[str, str] = {}
        self._rounds: dict[str, int] = {}
        self._total = self._done = self._cells = self._complete = self._failed = 0
        self._began = self._last_line = time.monotonic()
        self._best: tuple[float, str] | None = None
        self._live: Live | None = None

    def begin(self, store: Any, cells: Sequence[Any], todo: Sequence[Any]) -> None:
        """todo: the cells that will run."""
        self._cells, self._complete = len(cells), len(cells) - len(todo)
        self._total = sum(rounds_of(cell) for cell in todo)
        for result in (r for cell in cells for r in store.results(cell)):
            self._count_best(result[0], result[1])
        if self._quiet or not todo:
            return
        if self._console.is_terminal:
            self._live = Live(self._draw(), console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        else:
            self._console.print(f"{len(todo)} cells to run, {self._complete} done before")
        self._began = time.monotonic()

    def progress(self, cell: Any, records: Sequence[dict[str, Any]]) -> None:
        if cell.id not in self._tasks:
            self._tasks[cell.id] = self._bars.add_task(cell.label, total=rounds_of(cell))
        number = max(record["round"] for record in records)
        self._done += number - self._rounds.get(cell.id, 0)
        self._rounds[cell.id] = number
        self._bars.update(self._tasks[cell.id], completed=number)
        self._refresh()

    def finished(self, cell: Any, results: dict[int, dict[str, Any]]) -> None:
        """results: seed -> result of every seed of the cell."""
        self._done += rounds_of(cell) - self._rounds.pop(cell.id, 0)
        if cell.id in self._tasks:
            self._bars.remove_task(self._tasks.pop(cell.id))
        good = [r for r in results.values() if r["status"] == "done"]
        self._complete += bool(good)
        self._failed += len(good) < len(results)
        text = "failed"
        if good:
            val = sum(r["rules"]["final"]["val/acc_mean"] for r in good) / len(good)
            self._count_best(cell, val)
            text = f"validation {100 * val:.1f} %"
        if not self._quiet and self._live is None:
            self._console.print(f"{cell.label}: {text}  ({self._complete}/{self._cells} cells, {self._eta()})")
        self._refresh()

    def end(self, store: Any, outcome: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _count_best(self, cell: Any, val: float) -> None:
        if cell.role != "reference" and (self._best is None or val > self._best[0]):
            self._best = (val, cell.label)

    def _eta(self) -> str:
        if not self._done:
            return "measuring the pace"
        left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        return f"about {output.duration(max(left, 0))} left"

    def _draw(self) -> Table:
        head = f"[bold]{self._complete}[/]/{self._cells} cells done"
        if self._failed:
            head += f", [red]{self._failed} failed[/]"
        if self._best and not math.isnan(self._best[0]):
            head += f"   best on validation: [green]{self._best[1]}[/] {100 * self._best[0]:.1f} %"
        table = Table.grid(padding=(0, 1))
        table.add_row(f"{head}   {self._eta()}   [dim]{output.duration(time.monotonic() - self._began)}[/]")
        table.add_row(self._bars)
        return table

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._draw())


def rounds_of(cell: Any) -> int:
    """Communication rounds of a cell, all stages together."""
    stages = cell.run.stages
    return sum(stage.rounds for stage in stages) if stages else cell.run.protocol.rounds
