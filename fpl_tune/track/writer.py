"""Makes the runs of a store in MLflow equal to the store, and lists where they differ."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.config import StudySpec
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.files import write_text
from fpl_tune.core.redact import HIDDEN
from fpl_tune.study import schema
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.lock import owner
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store
from fpl_tune.track import artifacts, ledger, server, views
from fpl_tune.track.artifacts import Files
from fpl_tune.track.ledger import Entry, parent_of
from fpl_tune.track.problems import why

if TYPE_CHECKING:
    from mlflow.entities import Run

FEW = 100
"""Nested runs that a study has at most unless `tracking.seeds` asks for them."""
_PAGE = 1000
_NAME = 250
"""Characters of a run's name; SQLite takes more, other databases refuse."""
_PARENT, _DIGEST = "mlflow.parentRunId", "fpl.digest"
_KIND = "mlflow.experimentKind", "custom_model_development"
"""Tag without which MLflow 3 opens the experiment in the view for traces."""


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
        self.client: Any = server.connect(uri)
        self.owner = identity(store, uri)
        self.experiment = self._experiment(uri.startswith(("sqlite:", "postgresql", "mysql", "mssql")))
        self.runs: dict[str, list[Run]] = {}
        """Runs in MLflow by key, oldest first."""
        for run in self._search():
            self.runs.setdefault(str(run.data.tags.get("fpl.key")), []).append(run)

    def parent(self, status: str) -> None:
        """Writes the study's run; with its report once it is no longer running."""
        entry = ledger.study_entry(self.store, self.spec, status)
        if status == "RUNNING" or not self.holds(entry.key, entry.digest):
            files = {} if status == "RUNNING" else artifacts.study_files(self.store)
            self.write(entry, files)
            if self.spec.tracking.register and "model/MLmodel" in files:
                self.register(self.spec.tracking.register, entry)
            note, shared = entry.tags["mlflow.note.content"] + self._links(), views.SHARED + views.KEY
            self.client.set_experiment_tag(self.experiment, "mlflow.note.content", note)
            self.client.set_experiment_tag(self.experiment, shared, views.cells(ledger.axes(self.store.cells())))

    def _links(self) -> str:
        """A link to the comparison of the study's own cells; empty while there are fewer than two."""
        cells = [cell.id for cell in self.store.cells() if cell.candidate and self.runs.get(cell.id)]
        if len(cells) < 2:
            return ""
        runs = [self.runs[key][0].info.run_id for key in cells]
        some = f"the first {views.COMPARED} of its {len(cells)}" if len(cells) > views.COMPARED else f"its {len(cells)}"
        return f"\n[Compare {some} cells]({views.comparison('', self.experiment, runs)})\n"

    def cell(self, cell: Cell) -> None:
        """Writes a cell's runs that differ from the store."""
        for key, (seeds, digest) in self.due(cell).items():
            if not self.holds(key, digest):
                nested = key != cell.id
                entry = ledger.cell_entry(self.store, cell, seeds, self.rule, nested=nested)
                self.write(entry, {} if nested else artifacts.cell_files(self.store, cell, seeds))

    def due(self, cell: Cell) -> dict[str, tuple[list[int], str]]:
        """The runs that MLflow should hold of a cell by key: seeds and digest; none if a seed has no result yet."""
        if any(self.store.result(cell, seed) is None for seed in self.seeds):
            return {}  # its means are not yet what they will stay
        seeds = list(self.store.shown_results(cell))
        runs = {cell.id: seeds} | ({f"{cell.id}/{seed}": [seed] for seed in seeds} if self.nested else {})
        return {key: (own, ledger.cell_digest(self.store, cell, own, self.rule)) for key, own in runs.items()}

    def everything(self, status: str | None = None) -> None:
        """Writes all complete cells, then the study's run with its final status; None: the status that results give."""
        if not self.runs.get("study"):
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
        runs, due = self.runs, [(cell, self.due(cell)) for cell in self.store.cells()]
        expected = {"study": (f"the run of {self.store.name}", "")}
        expected |= {key: (cell.label, digest) for cell, of in due for key, (_, digest) in of.items()}
        found = []
        for key, (what, digest) in expected.items():
            number = len(runs.get(key, []))
            if number == 0:
                found.append(Finding("missing", key, f"{what} is not in MLflow"))
            elif number > 1:
                found.append(Finding("duplicate", key, f"{what} is in MLflow {number} times"))
            elif key != "study" and not self.holds(key, digest):
                found.append(Finding("stale", key, f"{what} differs from the store, or is incomplete"))
            elif key == "study" and runs[key][0].info.status == "RUNNING" and owner(self.store.folder) is None:
                found.append(Finding("zombie", key, f"{what} is open, but no process runs the study"))
        waiting = {cell.id for cell, of in due if not of}  # their runs are written when they have run
        for key in runs.keys() - expected.keys():
            if runs[key] and key.partition("/")[0] not in waiting:
                found.append(Finding("orphan", key, f"MLflow has a run {key}, but the study has no such cell"))
        return found

    # -- MLflow ------------------------------------------------------------------------------------------------

    def _experiment(self, database: bool) -> str:
        """The experiment's id: found, restored if someone deleted it, or created; a database takes no artifacts."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", self.store.name)
        found = self.client.get_experiment_by_name(name)
        if found is None:
            folder = (self.store.root / "mlartifacts" / self.store.name).resolve()
            place = folder.as_uri() if database else None
            return self.client.create_experiment(name, artifact_location=place, tags=dict([_KIND]))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        if _KIND[0] not in found.tags:
            self.client.set_experiment_tag(found.experiment_id, *_KIND)
        return found.experiment_id

    def _search(self) -> Iterator[Run]:
        """All live runs of this store, oldest first."""
        search = partial(
            self.client.search_runs,
            [self.experiment],
            filter_string=f"tags.`fpl.study` = '{self.store.name}' and tags.`fpl.store` = '{self.owner}'",
            max_results=_PAGE,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        )
        page = search()
        yield from page
        while page.token:
            page = search(page_token=page.token)
            yield from page

    def holds(self, key: str, digest: str) -> bool:
        """Whether there is exactly one run of this entry, complete, closed and below its parent."""
        runs = self.runs.get(key, [])
        if len(runs) != 1 or runs[0].info.status == "RUNNING":
            return False
        tags = runs[0].data.tags
        return tags.get(_DIGEST) == digest and tags.get(_PARENT) == self._parent_id(key)

    def _parent_id(self, key: str) -> str | None:
        """Run id of an entry's parent; None where there is none."""
        runs = self.runs.get(parent_of(key) or "")
        return runs[0].info.run_id if runs else None

    def delete(self, key: str, keep: int = 0) -> None:
        """Deletes the runs of an entry, but for the oldest `keep`."""
        for run in self.runs.get(key, [])[keep:]:
            self.client.delete_run(run.info.run_id)
        self.runs[key] = self.runs.get(key, [])[:keep]

    def write(self, entry: Entry, files: Files) -> None:
        """Writes an entry's run anew, in place of any there are. The study's own run, which has children, is updated.

        The tag with the digest is set last: a run without it was cut short, and is written anew.
        """
        from mlflow.entities import Metric, Param, RunTag

        self.delete(entry.key, keep=1 if entry.kind == "study" else 0)
        kept = self.runs[entry.key]
        run = kept[0].info.run_id if kept else self._create(entry)
        self.client.log_batch(
            run,
            metrics=[Metric(p.key, p.value, p.timestamp, p.step) for p in entry.metrics],
            params=[Param(k, v) for k, v in entry.params.items()],
            tags=[RunTag(k, v) for k, v in entry.tags.items()],
        )
        if entry.datasets:
            self.client.log_inputs(run, datasets=[_dataset(*named) for named in entry.datasets])
        self._attach(run, files)
        if entry.status == "RUNNING":
            self.client.update_run(run, status="RUNNING")
        else:
            self.client.set_terminated(run, entry.status, entry.end or None)
            self.client.set_tag(run, _DIGEST, entry.digest)
        self.runs[entry.key] = [self.client.get_run(run)]

    def register(self, name: str, entry: Entry) -> None:
        """Makes the model of an entry's run the newest version of a registered model."""
        run = self.runs[entry.key][0].info
        if not self.client.search_registered_models(filter_string=f"name = '{name}'"):
            self.client.create_registered_model(name)
        found = self.client.search_model_versions(f"name = '{name}' and run_id = '{run.run_id}'")
        if not any(version.tags.get(_DIGEST) == entry.digest for version in found):
            tags = {_DIGEST: entry.digest}
            self.client.create_model_version(name, f"{run.artifact_uri}/model", run.run_id, tags=tags)

    def _create(self, entry: Entry) -> str:
        """Creates an empty run; returns its id."""
        tags = {"fpl.study": self.store.name, "fpl.store": self.owner, "fpl.kind": entry.kind, "fpl.key": entry.key}
        if parent := self._parent_id(entry.key):
            tags[_PARENT] = parent
        start, name = entry.start or int(1000 * time.time()), entry.name[:_NAME]
        return self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=name).info.run_id

    def _attach(self, key: str, files: Files) -> None:
        """Uploads artifacts in one call; an artifact of the same path is replaced."""
        if not files:
            return
        with tempfile.TemporaryDirectory(prefix="fpl-tune-") as folder:
            for name, content in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    path.symlink_to(content.resolve())
            self.client.log_artifacts(key, folder)


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
            writer.delete(finding.key)
    if owner(store.folder) is None:
        writer.everything()
    return found


def _dataset(name: str, digest: str) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=name, digest=digest, source_type="fpl-tune", source="{}")
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])
