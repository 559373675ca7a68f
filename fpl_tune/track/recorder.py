"""The callback that writes a study to MLflow, in its own thread and from the store alone."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue

from fpl_tune.core.files import digest, stamp, stamps, write_text
from fpl_tune.core.paths import output_folder
from fpl_tune.core.redact import redact
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.simulation.simulation import Record
from fpl_tune.study import tracking
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store
from fpl_tune.track import runs, server
from fpl_tune.track.writer import Writer

_log = logging.getLogger("fpl_tune.track")
_WRITTEN = "mlflow.digest"
"""File with a digest of the store, written once all runs of a study are in MLflow."""
SILENT_SECONDS = 10.0
"""Seconds without an answer after which a study at its end no longer waits for MLflow."""
CREATION_SECONDS = 120.0
"""The same while MLflow creates a SQLite database, whose tables take a second, and on a busy machine far longer."""


class _GivenUp(Exception):
    """The study no longer waits for MLflow."""


class MLflowCallback(Callback):
    """Writes every finished cell of a study to MLflow while the next ones run.

    An error never stops the study: there is one warning, and missing records are sent when the study ends, by its next
    run, or by `fpl-tune doctor --fix`. Cells that finished earlier are also sent if MLflow lacks them. If MLflow does
    not respond, the study ends anyway, after `SILENT_SECONDS` and with a warning; while it creates a SQLite
    database, after `CREATION_SECONDS`.

    Args:
        warn: receives the warning; None: it is logged.

    Raises:
        ConfigError: MLflow does not write to the address in MLFLOW_TRACKING_URI.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        server.address(output_folder())
        self.warn = warn or _log.warning
        self.problem: str | None = None
        """The last error; None if there was none."""
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)  # does not delay the exit
        self._answered = math.inf  # time of MLflow's last answer; inf: it was not asked yet
        self._given_up = False
        self._writer: Writer | None = None
        self._opened = False

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._store = Store(store.root, store.name)  # another reader, for the thread
        self._began = round(1000 * time.time())
        if named := os.environ.get("MLFLOW_EXPERIMENT_NAME"):
            self.warn(
                f"MLFLOW_EXPERIMENT_NAME={named} is ignored, as each study has an experiment of its own. Set "
                f"\"tracking.experiment='{named}/{{study}}'\" instead."
            )

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        """Opens MLflow at the first round, not earlier: its imports and those of the executor can deadlock."""
        if cell.run.learns and not self._opened:  # zero-shot cells may run before Ray is imported
            self._opened = True
            self._later(self.open)

    def open(self) -> None:
        """Imports mlflow (1 to 2 s), connects and shows the study as running; called in the thread."""
        self._writer = Writer(self._store, self._alive)
        self._writer.write_study(running=True, began=self._began)

    def on_cell_end(self, row: Row) -> None:
        self.on_round_end(row.cell, [])
        self._later(lambda: self._writer and self._writer.write_cell(row.cell))

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        """Sends the remaining records and closes the parent run, except after Ctrl-C before MLflow was opened."""
        if not self._opened and (outcome.exit_code >= 128 or self._is_written()):
            self.on_abort()
            return
        self._put(lambda: self._guarded(self._write_all))
        self._put(None)
        self._answered = max(self._answered, time.monotonic())
        uri = server.address(self._store.root)
        creating = False
        while self._thread.is_alive():
            self._thread.join(0.1)
            was_creating, creating = creating, server.is_being_created(uri)
            if was_creating and not creating:
                self._answered = time.monotonic()
            limit = CREATION_SECONDS if creating else SILENT_SECONDS
            if time.monotonic() - self._answered > limit:
                self.on_abort()
                self.warn(
                    f"MLflow at {redact(uri)} has not answered for {limit:g} s, and the study ends without it. Its "
                    "store keeps everything: `fpl-tune doctor --fix`, or the next run of the study, sends what is "
                    "missing."
                )
                return

    def on_abort(self) -> None:
        """Leaves records that are not sent yet to the next run, so that the process can end."""
        self._given_up = True
        self._calls.put(None)

    def wait(self) -> None:
        """Blocks until all calls so far have run."""
        done = threading.Event()
        self._put(done.set)
        done.wait()

    def _write_all(self) -> None:
        writer = self._writer
        if writer is None or self.problem is not None:  # its view of MLflow may be out of date
            writer = Writer(self._store, self._alive)
        writer.write_all()
        self.problem = None
        with suppress(OSError):  # a full disk: the next run looks again
            write_text(self._store.folder / _WRITTEN, self._state())

    def _is_written(self) -> bool:
        """True if nothing has changed since all runs were written, so MLflow, which takes 2 s, need not be imported."""
        path = self._store.folder / _WRITTEN
        if tracking.read(self._store.folder) is None:  # of an earlier release, or damaged
            return False
        return path.is_file() and path.read_text(encoding="utf-8") == self._state() != ""

    def _state(self) -> str:
        """Digest of the study's files and of MLflow's database, which others also write; empty for a server."""
        folder, database = self._store.folder, server.sqlite_file(uri := server.address(self._store.root))
        if database is None:
            return ""
        known = [runs.FORMAT, uri, str(folder.resolve()), self._store.stated(), stamp(database)]
        return digest(repr([*known, *stamps(folder / "cells")]))

    def _later(self, call: Callable[[], object]) -> None:
        """Runs a call in the thread, unless an earlier one failed."""
        self._put(lambda: None if self.problem else self._guarded(call))

    def _put(self, call: Callable[[], object] | None) -> None:
        """Queues a call for the thread; None ends the thread."""
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call)

    def _work(self) -> None:
        """The thread's loop."""
        for call in iter(self._calls.get, None):
            call()

    def _alive(self) -> None:
        """Records that MLflow has answered. Raises `_GivenUp` if the study no longer waits for it."""
        if self._given_up:
            raise _GivenUp
        self._answered = time.monotonic()

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            import_module("mlflow")  # takes seconds before MLflow is asked for the first time
            self._alive()
            call()
        except _GivenUp:
            return
        except Exception as problem:
            first = self.problem is None
            self.problem = server.why(problem, server.address(self._store.root))
            if first and not self._given_up:
                self.warn(
                    f"{self.problem} The study goes on and its store keeps everything: the next run of the study, or "
                    "`fpl-tune doctor --fix`, sends what is missing."
                )
