"""The callback that writes a study to MLflow, in its own thread and from the store alone."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fpl_tune import config
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store
from fpl_tune.track import server
from fpl_tune.track.problems import why
from fpl_tune.track.writer import Writer

_PATIENCE = 10.0
"""Seconds after which MLflow is opened although the first trial has not reported."""
_log = logging.getLogger("fpl_tune.track")


class Recorder(Callback):
    """Writes every finished cell of a study to MLflow while the next ones run.

    An error never stops the study: it gives one warning, and what is missing is sent when the study ends, by its next
    run, or by `repair`. Cells that finished earlier are sent too if MLflow lacks them.

    Args:
        uri: tracking server; None: MLFLOW_TRACKING_URI, else SQLite in the output folder.
        warn: receives the warning; None: it is logged.

    Raises:
        ConfigError: MLflow does not write to that address.
    """

    def __init__(self, uri: str | None = None, *, warn: Callable[[str], None] | None = None) -> None:
        source = "tracking.uri" if uri else "MLFLOW_TRACKING_URI"
        config.check_tracking(uri or os.environ.get("MLFLOW_TRACKING_URI"), source)
        self.uri, self.warn = uri, warn or _log.warning
        self.problem: str | None = None
        """The last error; None if there was none."""
        self._thread = ThreadPoolExecutor(1, "mlflow")  # starts with its first call
        self._writer: Writer | None = None
        self._due, self._wake = False, threading.Event()

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store, self._due = store, bool(jobs)

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        """Opens MLflow, not earlier: two threads that import what MLflow and trials share can deadlock."""
        if self._due and cell.run.learns:  # zero-shot cells may run before Ray is imported
            self._due = False
            self._later(self._leave_first)
            self._later(self.open)

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        if cell.run.learns:
            self._wake.set()

    def _leave_first(self) -> None:
        """In the thread: waits, since the first trial's process needs the processor for its own imports."""
        self._wake.wait(_PATIENCE)
        self._wake.set()

    def open(self) -> None:
        """In the thread: imports mlflow (1 to 2 s), reaches it and shows the study as running."""
        self._writer = Writer(self._store, self.uri)
        self._writer.parent("RUNNING")

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_round_end(cell, [])
        self._later(self._finished, cell)

    def _finished(self, cell: Cell) -> None:
        if self._writer is not None:
            self._writer.cell(cell)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        """Sends what is left, closes the parent run, and waits for both; not after Ctrl-C while MLflow is not open."""
        if outcome.exit_code >= 128 and not self._wake.is_set():
            self.on_abort()
            return
        self._wake.set()
        self._later(self._end, _status(outcome), always=True)
        self._thread.shutdown(wait=True)

    def on_abort(self) -> None:
        """Leaves what is not sent yet to the next run, so that the process can end."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._wake.set()

    def _end(self, status: str) -> None:
        writer = self._writer
        if writer is None or self.problem is not None:  # its view of MLflow may be out of date
            writer = Writer(self._store, self.uri)
        writer.everything(status)
        self.problem = None

    def _later(self, call: Callable[..., None], *args: Any, always: bool = False) -> None:
        """Runs a call in the thread, unless an earlier one failed."""

        def guarded() -> None:
            if self.problem is None or always:
                try:
                    call(*args)
                except Exception as problem:
                    self._failed(problem)

        self._thread.submit(guarded)

    def wait(self) -> None:
        """Blocks until all calls so far have run."""
        self._thread.submit(lambda: None).result()

    def _failed(self, problem: Exception) -> None:
        first = self.problem is None
        self.problem = why(problem, server.resolve(self.uri, self._store.root))
        if first:
            self.warn(
                f"{self.problem} The study goes on and its store keeps everything: the next run of the study, or "
                "`fpl-tune doctor --fix`, sends what is missing."
            )


def _status(outcome: Outcome) -> str:
    return "KILLED" if outcome.pending else "FAILED" if outcome.failed else "FINISHED"
