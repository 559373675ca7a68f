"""Makes the runs of a store in MLflow equal to the store, and lists where they differ."""

from __future__ import annotations

import json
import math
import os
import uuid
from typing import NamedTuple

from fpl_tune.config import StudySpec
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.files import write_text
from fpl_tune.redact import HIDDEN
from fpl_tune.study import earlier, schema
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.lock import owner
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store
from fpl_tune.track import artifacts, ledger, server, views
from fpl_tune.track.problems import why
from fpl_tune.track.server import Book

FEW = 100
"""Nested runs that a study has at most unless `tracking.seeds` asks for them."""


class Finding(NamedTuple):
    """One difference between a study's store and MLflow."""

    kind: str
    """missing, duplicate, stale, orphan or zombie"""
    key: str
    """"study", a cell's id, or "<id>/<seed>"."""
    text: str


class Writer:
    """Makes the runs of one store in MLflow equal to it.

    Args:
        store: the study's store.
        uri: the tracking server's address; None: the study's `tracking.uri`, see `server.resolve`.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """

    def __init__(self, store: Store, uri: str | None = None) -> None:
        self.store, self.spec = store, store.spec()
        uri = _address(store, self.spec, uri)
        self.seeds, self.rule = self.spec.seed_list(), self.spec.report.rule
        self.nested = _few(self.spec) if self.spec.tracking.seeds is None else self.spec.tracking.seeds
        database = uri.startswith(("sqlite:", "postgresql", "mysql", "mssql"))
        client = server.connect(uri)
        artifacts = store.root / "mlartifacts" / store.name if database else None
        self.book = Book(client, store.name, identity(store, uri), artifacts, store.former())

    def parent(self, status: str) -> None:
        """Writes the study's run; with its report once it is no longer running."""
        entry = ledger.study_entry(self.store, self.spec, status)
        if status == "RUNNING" or not self.book.holds(entry.key, entry.digest):
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
        for key, (seeds, digest) in self.due(cell).items():
            if not self.book.holds(key, digest):
                nested = key != cell.id
                entry = ledger.cell_entry(self.store, cell, seeds, self.rule, nested=nested)
                self.book.write(entry, {} if nested else artifacts.cell_files(self.store, cell, seeds))

    def due(self, cell: Cell) -> dict[str, tuple[list[int], str]]:
        """The runs that MLflow should hold of a cell by key: seeds and digest; none if a seed has no result yet."""
        if not ledger.complete(self.store, cell, self.seeds):
            return {}
        seeds = earlier.seeds(self.store, cell)
        runs = {cell.id: seeds} | ({f"{cell.id}/{seed}": [seed] for seed in seeds} if self.nested else {})
        return {key: (own, ledger.cell_digest(self.store, cell, own, self.rule)) for key, own in runs.items()}

    def everything(self, status: str | None = None) -> None:
        """Writes all complete cells, then the study's run with its final status; None: the status that results give."""
        if not self.book.runs.get("study"):
            self.parent("RUNNING")
        for cell in self.store.cells():
            self.cell(cell)
        self.parent(status or self._status())

    def _status(self) -> str:
        """The status of the study's run when no process runs the study."""
        results = [self.store.result(cell, seed) for cell in self.store.cells() for seed in self.seeds]
        if None in results:
            return "KILLED"
        return "FAILED" if any(r and r["status"] in FAILURES for r in results) else "FINISHED"

    def differences(self) -> list[Finding]:
        """Lists the runs in MLflow that differ from the store."""
        runs, due = self.book.runs, [(cell, self.due(cell)) for cell in self.store.cells()]
        expected = {"study": (f"the run of {self.store.name}", "")}
        expected |= {key: (cell.label, digest) for cell, of in due for key, (_, digest) in of.items()}
        found = []
        for key, (what, digest) in expected.items():
            number = len(runs.get(key, []))
            if number == 0:
                found.append(Finding("missing", key, f"{what} is not in MLflow"))
            elif number > 1:
                found.append(Finding("duplicate", key, f"{what} is in MLflow {number} times"))
            elif key != "study" and not self.book.holds(key, digest):
                found.append(Finding("stale", key, f"{what} differs from the store, or is incomplete"))
            elif key == "study" and runs[key][0].info.status == "RUNNING" and owner(self.store.folder) is None:
                found.append(Finding("zombie", key, f"{what} is open, but no process runs the study"))
        waiting = {cell.id for cell, of in due if not of}  # their runs are written when they have run
        for key in runs.keys() - expected.keys():
            if runs[key] and key.partition("/")[0] not in waiting:
                found.append(Finding("orphan", key, f"MLflow has a run {key}, but the study has no such cell"))
        return found


def _few(spec: StudySpec) -> bool:
    """Whether a study has several seeds, and at most `FEW` in all cells of its axes together."""
    seeds = len(spec.seed_list())
    cells = math.prod(len(values) for values in axes_of(spec.axes).values())
    return spec.search.sampler is None and seeds > 1 and cells * seeds <= FEW


def _address(store: Store, spec: StudySpec, uri: str | None) -> str:
    """The tracking server's address; the study's own is stored without its password."""
    if not uri and HIDDEN in (spec.tracking.uri or ""):
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            raise EnvironmentProblem(
                f"The study's records are at {spec.tracking.uri}, whose password is not stored with it. "
                "Give the whole address in MLFLOW_TRACKING_URI."
            )
    return server.resolve(uri or spec.tracking.uri, store.root)


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


def sync(store: Store, uri: str | None = None) -> None:
    """Makes MLflow equal to the store of a study that is not running; idempotent, also after a kill.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    try:
        Writer(store, uri).everything()
    except Exception as problem:
        raise EnvironmentProblem(why(problem, server.resolve(uri, store.root))) from problem


def inspect(store: Store, uri: str | None = None) -> list[Finding]:
    """Lists the differences. Reads only, but restores an experiment that was deleted.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    return Writer(store, uri).differences()


def repair(store: Store, uri: str | None = None) -> list[Finding]:
    """Repairs what `inspect` finds: deletes runs without a cell, and writes all others that differ anew.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    writer = Writer(store, uri)
    found = writer.differences()
    for finding in found:
        if finding.kind == "orphan":
            writer.book.delete(finding.key)
    if owner(store.folder) is None:
        writer.everything()
    return found
