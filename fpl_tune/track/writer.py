"""Makes the runs of a store in MLflow equal to the store."""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from fpl_tune.config import StudySpec
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.files import write_text
from fpl_tune.redact import HIDDEN
from fpl_tune.study import earlier, schema
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store
from fpl_tune.track import artifacts, ledger, server, views
from fpl_tune.track.problems import why
from fpl_tune.track.server import Book

FEW = 100
"""Nested runs that a study has at most unless `tracking.seeds` asks for them."""


class Due(NamedTuple):
    """A run that MLflow should hold."""

    key: str
    seeds: list[int]
    digest: str
    parent: str


class Writer:
    """Makes the runs of one store in MLflow equal to it.

    Args:
        store: the study's store.
        spec: the study.
        uri: the tracking server's address.
        seeds: also write a nested run for every seed; None: if they are few.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """

    def __init__(self, store: Store, spec: StudySpec, uri: str, *, seeds: bool | None = None) -> None:
        self.store, self.spec, self.nested = store, spec, _few(spec) if seeds is None else seeds
        self.seeds, self.rule = self.spec.seed_list(), self.spec.report.rule
        database = uri.startswith(("sqlite:", "postgresql", "mysql", "mssql"))
        client = server.connect(uri)
        artifacts = store.root / "mlartifacts" / store.name if database else None
        self.book = Book(client, store.name, identity(store, uri), artifacts, store.former())

    def parent(self, status: str) -> None:
        """Writes the study's run; with its report once it is no longer running."""
        entry = ledger.study_entry(self.store, self.spec, status)
        if status == "RUNNING" or not self.book.holds(entry.key, entry.digest, None):
            files = {} if status == "RUNNING" else artifacts.study_files(self.store)
            self.book.write(entry, files)
            if self.spec.tracking.register and "model/MLmodel" in files:
                self.book.register(self.spec.tracking.register, entry)
            self.book.describe({
                "mlflow.note.content": entry.tags["mlflow.note.content"] + self._links(),
                views.SHARED + views.KEY: views.cells(ledger.axes(self.store.cells())),
            })  # fmt: skip

    def _links(self) -> str:
        """A link to the comparison of the study's own cells; empty while there are fewer than two."""
        cells = [cell.id for cell in self.store.cells() if cell.candidate and self.book.runs.get(cell.id)]
        if len(cells) < 2:
            return ""
        runs = [self.book.runs[key][0].info.run_id for key in cells]
        some = f"the first {views.COMPARED} of its {len(cells)}" if len(cells) > views.COMPARED else f"its {len(cells)}"
        return f"\n[Compare {some} cells]({views.comparison('', self.book.experiment, runs)})\n"

    def cell(self, cell: Cell) -> None:
        """Writes a cell's runs that differ from the store."""
        for due in self.due(cell):
            if not self.book.holds(due.key, due.digest, due.parent):
                self._write(cell, due)

    def _write(self, cell: Cell, due: Due) -> None:
        entry = ledger.cell_entry(self.store, cell, due.seeds, self.rule)
        if due.key != cell.id:
            entry = ledger.seed_entry(entry, due.seeds[0])
        files = (
            artifacts.cell_files(self.store, cell, due.seeds) if due.key == cell.id else {}
        )  # the cell has its seeds'
        self.book.write(entry, files)

    def due(self, cell: Cell) -> list[Due]:
        """Lists the runs that MLflow should hold of a cell; none if a seed has no result yet."""
        if not ledger.complete(self.store, cell, self.seeds):
            return []
        kept = earlier.seeds(self.store, cell)
        nested = [(f"{cell.id}/{seed}", [seed], cell.id) for seed in kept] if self.nested else []
        return [
            Due(key, seeds, ledger.cell_digest(self.store, cell, seeds, self.rule), parent)
            for key, seeds, parent in [(cell.id, kept, "study"), *nested]
        ]

    def everything(self, status: str | None = None) -> None:
        """Writes all complete cells, then the study's run with its final status; None: the status that results give."""
        if not self.book.runs.get("study"):
            self.parent("RUNNING")
        cells = self.store.cells()
        for cell in cells:
            self.cell(cell)
        self.parent(status or self.state(cells))

    def state(self, cells: Sequence[Cell]) -> str:
        """The status of the study's run when no process runs the study."""
        if not all(ledger.complete(self.store, cell, self.seeds) for cell in cells):
            return "KILLED"
        results = [self.store.result(cell, seed) for cell in cells for seed in self.seeds]
        return "FAILED" if any(r and r["status"] in FAILURES for r in results) else "FINISHED"


def _few(spec: StudySpec) -> bool:
    """Whether a study has several seeds, and at most `FEW` in all cells of its axes together."""
    seeds = len(spec.seed_list())
    cells = math.prod(len(values) for values in axes_of(spec.axes).values())
    return spec.search.sampler is None and seeds > 1 and cells * seeds <= FEW


def identity(store: Store, uri: str) -> str:
    """Tells a store from another of its name on a shared server: a random id that moves with the store.

    The database of its own output folder holds no other: a study that is deleted and run again replaces its runs.
    """
    if uri == f"sqlite:///{store.root.resolve()}/mlflow.db":
        return "local"
    path = store.folder / "tracking.json"
    if not path.is_file():
        write_text(path, json.dumps({"id": uuid.uuid4().hex}))
    return schema.read_tracking(path)


def sync(store: Store, uri: str | None = None, *, seeds: bool | None = None) -> None:
    """Makes MLflow equal to the store of a study that is not running; idempotent, also after a kill.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    try:
        writer_of(store, uri, seeds=seeds).everything()
    except EnvironmentProblem:
        raise
    except Exception as problem:
        raise EnvironmentProblem(why(problem, server.resolve(uri, store.root))) from problem


def writer_of(store: Store, uri: str | None = None, *, seeds: bool | None = None) -> Writer:
    """Makes the writer of a store; `uri` and `seeds` default to the study's `tracking`.

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
    return Writer(store, spec, resolved, seeds=spec.tracking.seeds if seeds is None else seeds)
