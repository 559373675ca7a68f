"""The callback that writes a study to MLflow, in its own thread and from the store alone."""

from __future__ import annotations

import logging
import os
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

_log = logging.getLogger("fpl_tune.track")


class Recorder(Callback):
    """Writes every finished cell of a study to MLflow while the next ones run.

    An error never stops the study: it gives one warning, and what is missing is sent when the study ends, by its next
    run, or by `fpl-tune doctor --fix`. Cells that finished earlier are sent too if MLflow lacks them.

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
        self._opened = False

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store = store

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        """Opens MLflow at the first round, not earlier: its imports and those of the trials' executor can deadlock."""
        if cell.run.learns and not self._opened:  # zero-shot cells may run before Ray is imported
            self._opened = True
            self._later(self.open)

    def open(self) -> None:
        """In the thread: imports mlflow (1 to 2 s), reaches it and shows the study as running."""
        self._writer = Writer(self._store, self.uri)
        self._writer.write_study("RUNNING")

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self.on_round_end(cell, [])
        self._later(self._write_cell, cell)

    def _write_cell(self, cell: Cell) -> None:
        if self._writer is not None:
            self._writer.write_cell(cell)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        """Sends what is left, closes the parent run, and waits for both; not after Ctrl-C while MLflow is not open."""
        if outcome.exit_code >= 128 and not self._opened:
            self.on_abort()
            return
        status = "KILLED" if outcome.pending else "FAILED" if outcome.failed else "FINISHED"
        self._thread.submit(self._guarded, self._write_all, status)
        self._thread.shutdown(wait=True)

    def on_abort(self) -> None:
        """Leaves what is not sent yet to the next run, so that the process can end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _write_all(self, status: str) -> None:
        writer = self._writer
        if writer is None or self.problem is not None:  # its view of MLflow may be out of date
            writer = Writer(self._store, self.uri)
        writer.write_all(status)
        self.problem = None

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        """Runs a call in the thread, unless an earlier one failed."""
        self._thread.submit(lambda: None if self.problem else self._guarded(call, *args))

    def wait(self) -> None:
        """Blocks until all calls so far have run."""
        self._thread.submit(lambda: None).result()

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as problem:
            first = self.problem is None
            self.problem = why(problem, server.resolve(self.uri, self._store.root))
            if first:
                self.warn(
                    f"{self.problem} The study goes on and its store keeps everything: the next run of the study, or "
                    "`fpl-tune doctor --fix`, sends what is missing."
                )
