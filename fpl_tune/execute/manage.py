"""Maintenance of studies: status, stop, failures. Imports no PyTorch."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.study.cells import axes_of
from fpl_tune.study.lock import STOP_FILE, owner
from fpl_tune.study.results import FAILURES

if TYPE_CHECKING:
    from fpl_tune.study.cells import Cell
    from fpl_tune.study.store import Store
    from fpl_tune.study.table import StudyTable


def stop_requested(folder: Path) -> bool:
    """True if the study is asked to stop."""
    return os.path.exists(folder / STOP_FILE)


def status(store: Store) -> dict[str, Any]:
    """Numbers of cells by state and of seeds with a result, the process that runs the study, and the seconds left."""
    table = store.table()
    fields = {"study": store.name, **table.status(), "run_by": None, "seconds_left": None, "ending": False}
    if running := owner(store.folder):
        fields["run_by"] = f"process {running['pid']} on {running['host']} since {running['since']}"
        with suppress(ValueError):  # a file has an invalid time
            left = _seconds_left(table, datetime.fromisoformat(running["since"]).timestamp())
            fields["seconds_left"] = None if left is None else round(left)
        fields["ending"] = stop_requested(store.folder)
    return fields


def _seconds_left(table: StudyTable, began: float) -> float | None:
    """Estimates the seconds until a running study is done, from its files, which lack the rounds of running cells.

    Args:
        table: the study's table.
        began: time at which its process started, in seconds since 1970.

    Returns:
        None before the first result of that process.
    """
    from fpl_tune.execute.work import Pace, SearchCosts, confirmation_to_come, work_left, work_to_come
    from fpl_tune.findings.choice import most_points

    search, rows = table.study.search, [*table.rows.values()]
    learning = {row.cell.id for row in rows if not row.cell.rounds == 1 < row.cell.node["protocol"]["rounds"]}
    measured = SearchCosts(row for row in rows if row.cell.id in learning)

    def cost(cell: Cell) -> float:  # planned paces are not stored; a cell that trains nothing has one round
        return float(cell.id in learning) * (1.0 if search.sampler is None else measured(cell))

    more = 0.0
    if search.sampler is not None:
        n_searches = math.prod(map(len, axes_of(table.study.axes).values()))
        more = work_to_come([row for row in rows if row.cell.role == "trial"], search, n_searches, cost)
        more += confirmation_to_come(rows, n_searches, cost, most_points(search.objectives))
    work = work_left(rows, cost, more=more)
    runs = [(cost(row.cell), run) for row in rows if cost(row.cell) for run in row.results.values()]
    ended = [(datetime.fromisoformat(run.finished).timestamp(), each, run) for each, run in runs]
    ended = [one for one in ended if one[0] >= began]
    if not ended:
        return None
    first = max(began, min(at - run.costs["time/seconds"] for at, _, run in ended))  # before that, Ray was starting
    pace = Pace(first)
    pace.add(max(at for at, *_ in ended), sum(each * run.rounds for _, each, run in ended))
    return pace.seconds(time.time(), work)


def stop(store: Store) -> None:
    """Asks the process that runs the study to end after the round, with a checkpoint.

    The request is not lost: the process has removed older requests before it is named as the owner.

    Raises:
        ConfigError: no process runs it.
    """
    if owner(store.folder) is None:
        raise ConfigError(f"Only a running study can be stopped, but {store.name} is not running.")
    (store.folder / STOP_FILE).touch()


def failed_seeds(store: Store) -> list[str]:
    """Label, seed and error of each seed that failed or diverged."""
    return [
        f"{cell.label}, seed {seed}: {run.error}"
        for cell in (store.cells() if store.exists else ())
        for seed, run in store.row(cell).results.items()
        if run.status in FAILURES
    ]
