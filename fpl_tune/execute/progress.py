"""How far a running study is: cells, rounds, the time left and the best cell so far, and these in one line."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fpl_tune.core.formatting import counted, figure, left
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.eta import Eta
from fpl_tune.execute.job import Job
from fpl_tune.execute.manage import stop_requested
from fpl_tune.simulation.simulation import Record
from fpl_tune.study import results as tables
from fpl_tune.study.cells import Cell
from fpl_tune.study.looks import Look
from fpl_tune.study.results import VAL, aggregate
from fpl_tune.study.selection import objectives_of, selecting_rule, sign
from fpl_tune.study.standing import State
from fpl_tune.study.store import Store

_LABEL = 44  # letters of a cell's label in a line
_EVERY = 0.2  # seconds between two lines, at least


class Progress(Callback):
    """Counts the cells and rounds of a study, and keeps the best cell so far.

    Args:
        eta: a callback of the same study, called before this one.
    """

    def __init__(self, eta: Eta) -> None:
        self._eta = eta
        self._folder = Path()
        self._known: set[str] = set()  # cells that this process runs
        self._again = 0  # times that a cell runs on after a look
        self._unasked = 0  # trials that the search has not suggested yet
        self._seeds = 0  # of a trial; the first ones are suggested before the study starts, and are among its jobs then
        self._rounds: dict[str, dict[int, int]] = {}  # by cell and seed
        self._planned: dict[str, int] = {}  # rounds of all seeds by cell; of one that ended, those that it ran
        self.complete = 0
        """Cells that ended."""
        self.best = -math.inf, ""
        """The first objective, negated where less is better, and the cell's label, which is empty before the first."""

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store, self._folder, study = store, store.folder, store.study()
        self._known = {job.cell.id for job in jobs}
        self._objectives, self._rule = objectives_of(study), selecting_rule(study.report.rule)
        self._seeds = len(study.seed_list())
        for job in jobs:
            self._planned[job.cell.id] = self._planned.get(job.cell.id, 0) + job.cell.run.rounds * len(job.seeds)
        for cell in cells:
            if cell.id not in self._known:
                self._remember(cell, store.shown_results(cell))

    def on_trials_queued(self, cells: Sequence[Cell], remaining: int) -> None:
        self._planned |= {cell.id: cell.run.rounds * self._seeds for cell in cells if cell.id not in self._known}
        self._known |= {cell.id for cell in cells}
        self._unasked = remaining

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._again += job.cell.id in self._known
            self._known.add(job.cell.id)
            ran = sum(self._rounds.get(job.cell.id, {}).values())
            self._planned[job.cell.id] = ran + job.cell.run.rounds * len(job.seeds)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        self._known.add(cell.id)

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        seeds = self._rounds.setdefault(cell.id, {})
        seeds.update({int(record["seed"]): int(record["round"]) for record in records})
        ran = sum(seeds.values())
        self._planned[cell.id] = max(self._planned.get(cell.id, 0), ran)  # seeds may follow one another

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.complete += 1
        self._planned[cell.id] = sum(self._rounds.get(cell.id, {}).values())
        self._remember(cell, results)

    @property
    def total(self) -> int:
        """Cells that this process runs, counted again where they run on after a look."""
        return len(self._known) + self._again + self._unasked

    @property
    def rounds(self) -> str:
        """Rounds that were trained of all cells and seeds, and of how many, unless a search asks for more trials."""
        done = sum(sum(seeds.values()) for seeds in self._rounds.values())
        return f"{done:,}{'' if self._unasked else f' of {sum(self._planned.values()):,}'} rounds"

    @property
    def best_text(self) -> str:
        """The best cell and its value; empty before the first."""
        reached, label = self.best
        if not label:
            return ""
        name = self._objectives[0]
        if name == VAL:
            return f"best on validation {100 * reached:.1f} % {short(label)}"
        return f"best {name} {figure(sign(name) * reached, name)} {short(label)}"

    def time_left(self, again: str = "") -> str:
        """The ETA, unless the study stops after this round because of a signal or `fpl-tune stop`; `again` is added."""
        return left(self._eta.seconds, ending=stop_requested(self._folder), again=again)

    def _remember(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        """Keeps a cell whose seeds are all done, if the objective makes it the best."""
        whole = bool(results) and all(result["status"] == State.DONE for result in results.values())
        if whole and cell.candidate and len(self._objectives) == 1:
            (objective,) = self._objectives
            histories = (self._store.history(cell, seed) for seed in results)
            reached = aggregate([tables.figure(history, objective, self._rule) for history in histories])["mean"]
            self.best = max(self.best, (sign(objective) * reached, cell.label), key=lambda known: known[0])


def validation(results: dict[int, dict[str, Any]]) -> str:
    """The mean validation accuracy of the seeds that are done, in words; empty where none is."""
    good = [result["rules"]["final"][VAL] for result in results.values() if result["status"] == State.DONE]
    return f"validation {100 * aggregate(good)['mean']:.1f} %" if good else ""


def short(label: str) -> str:
    """A label that fits in a line."""
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


class Line:
    """A line on standard error that is written again and again: for notebooks and programs of one's own."""

    def __init__(self) -> None:
        self._width = 0  # of the text that stands there

    def show(self, text: str) -> None:
        """Writes over the text; one that is wider than the terminal could not be written over."""
        if sys.stderr.isatty():
            text = text[: shutil.get_terminal_size().columns - 1]
        print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
        self._width = len(text)

    def end(self, text: str) -> None:
        """Writes over the text for the last time; what follows stands below."""
        print(f"\r{text:<{self._width}}", file=sys.stderr, flush=True)
        self._width = 0

    def close(self) -> None:
        """Leaves the text that stands there; what follows stands below."""
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0


class ProgressLine(Progress):
    """Shows the progress in a line, which each round writes again."""

    def __init__(self, eta: Eta) -> None:
        super().__init__(eta)
        self._line, self._written = Line(), -math.inf

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        super().on_round_end(cell, records)
        self._show()

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        super().on_cell_end(cell, results)
        self._show()

    def on_look(self, look: Look, jobs: Sequence[Job]) -> None:
        super().on_look(look, jobs)
        self._line.end(f"{self._store.name}: {look}")

    def on_warning(self, cell: Cell, text: str) -> None:
        self._line.end(f"{cell.label}: {' '.join(text.split())}")

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        if self.complete or self._rounds:
            self._show(over=True)
        for failure in outcome.failures:
            self._line.end(" ".join(failure.split()))

    def on_abort(self) -> None:
        self._line.close()

    def _show(self, over: bool = False) -> None:
        now = time.monotonic()
        if over or now - self._written >= _EVERY:
            self._written = now
            parts = [f"{self.complete}/{counted(self.total, 'cell')}", self.rounds]
            parts += [] if over else [self.time_left()]
            parts += filter(None, [self.best_text])
            write = self._line.end if over else self._line.show
            write(f"{self._store.name}: {', '.join(parts)}")
