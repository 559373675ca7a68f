"""What many short trials cost the process that runs a study: processor time, memory, files, a suggestion."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from bench_platform import study_file, suggestion_seconds

from fpl_tune import config
from fpl_tune.api import start_study
from fpl_tune.cli.live import ReportWriter, Watcher
from fpl_tune.core.formatting import counted
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store
from fpl_tune.track import MLflowCallback

_SHORT = (
    "data.train_per_class=12",
    "data.test_per_class=3",
    "data.shots=4",
    "data.domains=[clipart]",
    "partition.n_clients=1",
    "protocol.rounds=1",
    "protocol.epochs=1",
    "method=promptfl",
    "execution.parallel=1",
)


class Costs(Callback):
    """Processor time and memory of this process, its threads included, when cells end."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []
        self.began = time.process_time()

    def on_cell_end(self, row: Row) -> None:
        self.marks.append((time.process_time(), psutil.Process().memory_info().rss))

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.ended = time.process_time()


def bench_trials(trials: int) -> list[dict[str, Any]]:
    """Runs a study of one-round trials of one client under Ray, as `fpl-tune study` does with its page and MLflow.

    Returns:
        Rows of what, value, unit. The halves of the study tell costs that grow with what is stored from those that do
        not.
    """
    with tempfile.TemporaryDirectory(dir=os.environ.get("FPL_TUNE_OUTPUT")) as folder:
        root = Path(folder)
        file = study_file(root / "trials.yaml", {"axes": {"optim.lr": [1e-5 * (i + 1) for i in range(trials)]}})
        costs = Costs()
        callbacks = [Watcher(quiet=True), ReportWriter(), MLflowCallback(), costs]
        outcome = start_study(ComposedStudy.of(config.compose_study(str(file), _SHORT)), root=root, callbacks=callbacks)
        assert outcome.done == trials, outcome
        times, sizes = zip(*costs.marks, strict=True)
        first, middle, last, half = trials // 10, trials // 2, trials - 1, (trials - 1 - trials // 2)
        store = root / "trials"
        rows = [
            ("driver", 1e3 * (costs.ended - costs.began) / trials, "ms of processor time a trial, page and MLflow"),
            ("first half", 1e3 * (times[middle] - times[first]) / (middle - first), "ms a trial"),
            ("second half", 1e3 * (times[last] - times[middle]) / half, "ms a trial"),
            ("end", costs.ended - times[last], "s after the last trial: results.csv, page, MLflow"),
            ("memory", sizes[last] / 1e6, "MB"),
            ("memory, slope", (sizes[last] - sizes[middle]) / 1e3 / half, "KB a trial"),
            ("page", (store / "report.html").stat().st_size / 1e6, "MB"),
            ("suggestion", 1e3 * suggestion_seconds(root, _SHORT, trials), f"ms after {counted(trials, 'trial')}"),
        ]
    return [{"what": what, "value": round(value, 1), "unit": unit} for what, value, unit in rows]
