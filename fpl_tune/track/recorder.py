"""Follows a study and writes it to MLflow, in a thread of its own and from the store alone."""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.redact import HIDDEN
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store, write
from fpl_tune.track import ledger, server, views
from fpl_tune.track.ledger import Draw
from fpl_tune.track.server import Book
from fpl_tune.trial import Record

_PATIENCE = 10.0
"""Seconds until MLflow shows a study as running whose first trial is not heard of."""
_log = logging.getLogger("fpl_tune.track")


class Recorder(Callback):
    """Writes every finished cell of a study to MLflow while the next ones run.

    Nothing that goes wrong here stops the study: one warning is given, and what is missing is sent at the end, by the
    next run of the study, or by `repair`. Cells finished before are sent too if MLflow lacks them.

    Args:
        uri: tracking server; None: MLFLOW_TRACKING_URI, else SQLite in `root`.
        root: the output folder.
        seeds: a nested run for every seed too.
        draw: makes a cell's figure; None: no figure.
        warn: takes the warning; None: logged.
    """

    def __init__(
        self,
        uri: str | None,
        root: Path,
        *,
        seeds: bool = False,
        draw: Draw | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.uri, self.seeds, self.draw = server.resolve(uri, root), seeds, draw
        self.warn = warn or _log.warning
        self.problem: str | None = None
        """What went wrong; None while nothing did."""
        self._thread: ThreadPoolExecutor | None = None
        self._writer: Writer | None = None
        self._unopened: Store | None = None
        self._heard = threading.Event()

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self._thread = ThreadPoolExecutor(1, "mlflow")
        self._unopened = store if jobs else None

    def on_job_start(self, cell: Cell, seeds: Sequence[int]) -> None:
        """The first trial is on its way. Before, the import of what runs trials could meet that of mlflow half done."""
        store, self._unopened = self._unopened, None
        if store is not None:
            self.later(self._leave_first)
            self.later(self.open, store)

    def _leave_first(self) -> None:
        """In the thread: the first trial's process has as much to import, and the first result is waited for."""
        self._heard.wait(_PATIENCE)

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        self._heard.set()

    def open(self, store: Store) -> None:
        """In the thread: imports mlflow (1 to 2 s), reaches it and shows the study as running."""
        self._writer = writer_of(store, self.uri, seeds=self.seeds, draw=self.draw)
        self._writer.parent("RUNNING")

    def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
        self._heard.set()
        self.later(self._finished, cell)

    def _finished(self, cell: Cell) -> None:
        if self._writer is not None:
            self._writer.cell(cell)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        """Sends what is left, closes the parent run, and waits for both."""
        assert self._thread is not None
        self._heard.set()
        self.later(self._end, store, _status(outcome), always=True)
        self._thread.shutdown(wait=True)

    def on_abort(self) -> None:
        """Leaves what is not sent yet to the next run, so that the process can end."""
        self._heard.set()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _end(self, store: Store, status: str) -> None:
        writer = self._writer
        if writer is None or self.problem is not None:  # what it knew of MLflow may no longer be so
            writer = writer_of(store, self.uri, seeds=self.seeds, draw=self.draw)
        writer.everything(status)
        self.problem = None

    def later(self, call: Callable[..., None], *args: Any, always: bool = False) -> None:
        """Runs in the thread, unless something went wrong before."""

        def guarded() -> None:
            if self.problem is not None and not always:
                return
            try:
                call(*args)
            except Exception as problem:
                self._failed(problem)

        assert self._thread is not None
        self._thread.submit(guarded)

    def wait(self) -> None:
        """Until everything asked for so far is written."""
        assert self._thread is not None
        self._thread.submit(lambda: None).result()

    def _failed(self, problem: Exception) -> None:
        first = self.problem is None
        self.problem = str(problem) if isinstance(problem, EnvironmentProblem) else server.why(problem, self.uri)
        if first:
            self.warn(
                f"{self.problem} The study goes on, and its store keeps everything: the next run of the study sends "
                "what is missing, or `fpl-tune doctor --fix`."
            )


class Writer:
    """Makes the runs of one store in MLflow equal to it.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """

    def __init__(
        self, store: Store, spec: StudySpec, uri: str, *, seeds: bool = False, draw: Draw | None = None
    ) -> None:
        self.store, self.spec, self.nested, self.draw = store, spec, seeds, draw
        self.seeds, self.rule = self.spec.seed_list(), self.spec.report.rule
        database = uri.startswith(("sqlite:", "postgresql", "mysql", "mssql"))
        client = server.connect(uri)
        artifacts = store.root / "mlartifacts" / store.name if database else None
        self.book = Book(client, store.name, identity(store, uri), artifacts)

    def parent(self, status: str) -> None:
        """The study's run; with its report once it is no longer running."""
        entry = ledger.study_entry(self.store, self.spec, status)
        if status == "RUNNING" or not self.book.holds(entry.key, entry.digest, None):
            self.book.write(entry, {} if status == "RUNNING" else ledger.study_files(self.store))
            self.book.describe({
                "mlflow.note.content": entry.tags["mlflow.note.content"] + self._links(),
                views.SHARED + views.KEY: views.cells(ledger.axes(self.store.cells()), ledger.reported(self.spec)),
            })  # fmt: skip

    def _links(self) -> str:
        """Into the comparison page, the study's own cells selected; empty while there are fewer than two."""
        own = [cell.id for cell in self.store.cells() if cell.role != "reference" and cell.id in self.book.runs]
        if len(own) < 2:
            return ""
        runs = [self.book.runs[key][0].info.run_id for key in own]
        some = f"the first {views.COMPARED} of its {len(own)}" if len(own) > views.COMPARED else f"its {len(own)}"
        return f"\n[Compare {some} cells]({views.comparison('', self.book.experiment, runs)})\n"

    def cell(self, cell: Cell) -> None:
        """A cell and, where asked for, its seeds."""
        for key, seeds in self.due(cell).items():
            digest = ledger.cell_digest(self.store, cell, seeds, self.rule)
            parent = "study" if key == cell.id else cell.id
            if not self.book.holds(key, digest, parent):
                self._write(cell, key, seeds)

    def _write(self, cell: Cell, key: str, seeds: Sequence[int]) -> None:
        if key == cell.id:
            entry = ledger.cell_entry(self.store, cell, seeds, self.rule, ledger.reported(self.spec))
        else:
            entry = ledger.seed_entry(self.store, cell, seeds[0], self.rule, ledger.reported(self.spec))
        self.book.write(entry, ledger.cell_files(self.store, cell, seeds, self.draw))

    def due(self, cell: Cell) -> dict[str, list[int]]:
        """Keys of the runs that a cell has in MLflow, with the seeds of each; none for a cell that lacks a seed."""
        if not ledger.complete(self.store, cell, self.seeds):
            return {}
        nested = {f"{cell.id}/{seed}": [seed] for seed in self.seeds} if self.nested else {}
        return {cell.id: self.seeds, **nested}

    def everything(self, status: str | None = None) -> None:
        """All complete cells, then the study's run in its final state: `status`, or what the store tells."""
        if "study" not in self.book.runs:
            self.parent("RUNNING")
        cells = self.store.cells()
        for cell in cells:
            self.cell(cell)
        self.parent(status or self.state(cells))

    def state(self, cells: Sequence[Cell]) -> str:
        """The state of the study's run once nothing runs."""
        if not all(ledger.complete(self.store, cell, self.seeds) for cell in cells):
            return "KILLED"
        results = [self.store.result(cell, seed) for cell in cells for seed in self.seeds]
        return "FAILED" if any(r and r["status"] in FAILURES for r in results) else "FINISHED"


def identity(store: Store, uri: str) -> str:
    """What tells a store from another of its name on a shared server: an id made once, which it keeps when moved.

    In the database of its own output folder there is no other: a study that is deleted and run anew takes up its runs.
    """
    if uri == f"sqlite:///{store.root.resolve()}/mlflow.db":
        return "local"
    path = store.folder / "tracking.json"
    if not path.is_file():
        write(path, json.dumps({"id": uuid.uuid4().hex}))
    return str(json.loads(path.read_text())["id"])


def _status(outcome: Outcome) -> str:
    return "KILLED" if outcome.pending else "FAILED" if outcome.failed else "FINISHED"


def sync(store: Store, uri: str | None = None, *, seeds: bool | None = None, draw: Draw | None = None) -> None:
    """Makes MLflow equal to a store that nobody runs; repeating it, also after a kill, changes nothing more.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    try:
        writer_of(store, uri, seeds=seeds, draw=draw).everything()
    except EnvironmentProblem:
        raise
    except Exception as problem:
        raise EnvironmentProblem(server.why(problem, server.resolve(uri, store.root))) from problem


def writer_of(store: Store, uri: str | None = None, *, seeds: bool | None = None, draw: Draw | None = None) -> Writer:
    """The writer of a store, where its study's `tracking` says unless told otherwise.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    spec = store.spec()
    if not uri and HIDDEN in (spec.tracking.uri or ""):
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            raise EnvironmentProblem(
                f"The study's records are at {spec.tracking.uri}, whose password is not stored with it. "
                "Give the whole address in MLFLOW_TRACKING_URI."
            )
    resolved = server.resolve(uri or spec.tracking.uri, store.root)
    return Writer(store, spec, resolved, seeds=spec.tracking.seeds if seeds is None else seeds, draw=draw)
