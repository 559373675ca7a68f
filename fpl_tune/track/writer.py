"""Makes the runs of a store in MLflow equal to the store.

A run is found by its tags. One whose digest is the store's is left alone; any other is deleted and written anew, its
digest last, so that what a kill left half-written is replaced by the next writer.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.files import write_text
from fpl_tune.study.cells import Cell
from fpl_tune.study.lock import owner
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store
from fpl_tune.track import runs, server, views
from fpl_tune.track.problems import explained
from fpl_tune.track.runs import STUDY, Entry

if TYPE_CHECKING:
    from mlflow.entities import Run

FEW = 100
"""Runs of seeds that a study has at most unless `tracking.seeds` asks for them."""
_PAGE, _EXPERIMENTS = 1000, 10_000
_PARENT, _DIGEST = "mlflow.parentRunId", "fpl.digest"
_KIND = "mlflow.experimentKind", "custom_model_development"
"""Tag without which MLflow 3 opens the experiment in the view for traces."""


class Finding(NamedTuple):
    """The runs of a study that differ from its store in one way."""

    study: str
    kind: str
    """missing, stale (it differs, is incomplete, or is there twice), or orphaned (the store has no such cell)"""
    runs: list[str]
    """Labels of cells and names of runs."""


class Writer:
    """Makes the runs of one store in MLflow equal to it.

    Args:
        store: the study's store.
        uri: the tracking server's address; None: see `server.resolve`.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """

    def __init__(self, store: Store, uri: str | None = None) -> None:
        self.store, self.spec = store, store.spec()
        if not uri and self.spec.tracking.uri and not os.environ.get("MLFLOW_TRACKING_URI"):
            raise EnvironmentProblem(
                f"The records of {store.name} are on a server whose address is not stored with it. "
                "Give the address in MLFLOW_TRACKING_URI."
            )
        uri = server.resolve(uri, store.root)
        self.seeds, self.rule = self.spec.seed_list(), self.spec.report.rule
        few = len(store.cells()) * len(self.seeds) <= FEW and self.spec.search.sampler is None
        self.nested = few if self.spec.tracking.seeds is None else self.spec.tracking.seeds
        self.client: Any = server.connect(uri)
        self.identity = identity(store.root, uri)
        self.experiment = self._experiment(uri.startswith(("sqlite:", "postgresql", "mysql", "mssql")))
        self.runs: dict[str, list[Run]] = {}
        """Runs in MLflow by key, oldest first."""
        for run in search(self.client, [self.experiment], self.identity, store.name):
            self.runs.setdefault(str(run.data.tags.get("fpl.key")), []).append(run)

    def write_study(self, status: str) -> None:
        """Writes the study's run; with its report once it is no longer running."""
        entry = runs.study_entry(self.store, self.spec, status)
        if self.holds(entry.key, entry.digest):
            return
        self.write(entry)
        view = views.cells(runs.axes(self.store.cells()))
        for name, text in (("mlflow.note.content", entry.tags["mlflow.note.content"]), (views.TAG, view)):
            self.client.set_experiment_tag(self.experiment, name, text)

    def write_cell(self, cell: Cell) -> None:
        """Writes a cell's runs that differ from the store."""
        for key, (seeds, digest) in self.due(cell).items():
            if not self.holds(key, digest):
                self.write(runs.cell_entry(self.store, cell, seeds, self.rule, nested=key != cell.id))

    def write_all(self, status: str | None = None) -> None:
        """Writes all complete cells, then the study's run with its final status; None: the status that results give."""
        if not self.runs.get(STUDY):
            self.write_study("RUNNING")
        for cell in self.store.cells():
            self.write_cell(cell)
        if status is None:
            results = [self.store.result(cell, seed) for cell in self.store.cells() for seed in self.seeds]
            failed = any(result and result["status"] in FAILURES for result in results)
            status = "KILLED" if None in results else "FAILED" if failed else "FINISHED"
        self.write_study(status)

    def due(self, cell: Cell) -> dict[str, tuple[list[int], str]]:
        """The runs that MLflow should hold of a cell by key: seeds and digest; none if a seed has no result yet."""
        if any(self.store.result(cell, seed) is None for seed in self.seeds):
            return {}  # its means are not yet what they will stay
        seeds = list(self.store.shown_results(cell))
        found = {cell.id: seeds} | ({f"{cell.id}/{seed}": [seed] for seed in seeds} if self.nested else {})
        return {key: (own, runs.cell_digest(self.store, cell, own, self.rule)) for key, own in found.items()}

    def holds(self, key: str, digest: str) -> bool:
        """Whether there is exactly one run of this entry, complete, closed and below its parent."""
        found = self.runs.get(key, [])
        if len(found) != 1 or found[0].info.status == "RUNNING":
            return False
        tags = found[0].data.tags
        return tags.get(_DIGEST) == digest and tags.get(_PARENT) == self._parent_id(key)

    def findings(self) -> list[Finding]:
        """Lists the runs that differ from the store."""
        found: dict[str, list[str]] = {"missing": [], "stale": [], "orphaned": []}
        own = self.runs.get(STUDY, [])
        if len(own) != 1 or own[0].info.status == "RUNNING":
            found["stale" if own else "missing"].append(self.store.name)
        for cell in self.store.cells():
            for key, (seeds, digest) in self.due(cell).items():
                if not self.holds(key, digest):
                    name = cell.label if key == cell.id else f"{cell.label}, seed {seeds[0]}"
                    found["stale" if self.runs.get(key) else "missing"].append(name)
        found["orphaned"] = [str(self.runs[key][0].info.run_name) for key in self.orphans()]
        return [Finding(self.store.name, kind, names) for kind, names in found.items() if names]

    def orphans(self) -> list[str]:
        """Keys of runs without a cell; those of cells that miss a seed are written anew when it has run."""
        due = {cell.id: self.due(cell) for cell in self.store.cells()}
        expected = {STUDY}.union(*due.values())
        return [
            key for key, of in self.runs.items() if of and key not in expected and due.get(key.partition("/")[0]) != {}
        ]

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

    def _parent_id(self, key: str) -> str | None:
        """Run id of an entry's parent; None where there is none."""
        found = self.runs.get(runs.parent_of(key) or "")
        return found[0].info.run_id if found else None

    def delete(self, key: str, keep: int = 0) -> None:
        """Deletes the runs of an entry, but for the oldest `keep`."""
        for run in self.runs.get(key, [])[keep:]:
            self.client.delete_run(run.info.run_id)
        self.runs[key] = self.runs.get(key, [])[:keep]

    def write(self, entry: Entry) -> None:
        """Writes an entry's run anew, in place of any there are; the study's own, which has children, is updated."""
        from mlflow.entities import Metric, Param, RunTag

        self.delete(entry.key, keep=1 if entry.key == STUDY else 0)
        kept = self.runs[entry.key]
        run = kept[0].info.run_id if kept else self._create(entry)
        self.client.log_batch(
            run,
            metrics=[Metric(p.key, p.value, p.timestamp, p.step) for p in entry.metrics],
            params=[Param(k, v) for k, v in entry.params.items()],
            tags=[RunTag(k, v) for k, v in entry.tags.items()],
        )
        self._attach(run, entry)
        if entry.status == "RUNNING":
            self.client.update_run(run, status="RUNNING")
        else:
            self.client.set_terminated(run, entry.status, entry.end or None)
        self.client.set_tag(run, _DIGEST, entry.digest)
        self.runs[entry.key] = [self.client.get_run(run)]

    def _create(self, entry: Entry) -> str:
        """Creates an empty run; returns its id."""
        kind = runs.kind_of(entry.key)
        tags = {"fpl.study": self.store.name, "fpl.store": self.identity, "fpl.kind": kind, "fpl.key": entry.key}
        if parent := self._parent_id(entry.key):
            tags[_PARENT] = parent
        start, name = entry.start or int(1000 * time.time()), entry.name[: runs.NAME_LENGTH]
        return self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=name).info.run_id

    def _attach(self, run: str, entry: Entry) -> None:
        """Uploads an entry's files in one call; an artifact of the same path is replaced."""
        if not entry.files:
            return
        with tempfile.TemporaryDirectory(prefix="fpl-tune-") as folder:
            for name, content in entry.files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    path.symlink_to(content.resolve())
            self.client.log_artifacts(run, folder)


def identity(root: Path, uri: str) -> str:
    """Tells the studies of an output folder from others on a shared server: a random id in the folder.

    The folder's own database holds no others.
    """
    if uri == server.local(root):
        return "local"
    path = root / "mlflow.id"
    if not path.is_file():
        write_text(path, uuid.uuid4().hex)
    found = path.read_text(errors="replace").strip()
    if not found.isalnum():
        raise EnvironmentProblem(
            f"{path} must hold letters and digits, but is damaged. Restore it, or remove it: all runs are written anew."
        )
    return found


def search(client: Any, experiments: Sequence[str], identity: str, study: str | None = None) -> Iterator[Run]:
    """Yields the live runs of an output folder, or of one of its studies, oldest first."""
    of = f" and tags.`fpl.study` = '{study}'" if study is not None else ""
    token = None
    while token != "":
        page = client.search_runs(
            list(experiments),
            filter_string=f"tags.`fpl.store` = '{identity}'{of}",
            max_results=_PAGE,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            page_token=token,
        )
        yield from page
        token = page.token or ""


def sync(store: Store, uri: str | None = None) -> None:
    """Makes MLflow equal to the store of a study that is not running; idempotent, also after a kill.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    with explained(server.resolve(uri, store.root)):
        Writer(store, uri).write_all()


def inspect(store: Store, uri: str | None = None, *, fix: bool = False) -> list[Finding]:
    """Lists where MLflow differs from the store of a study; nothing while a process runs the study.

    Args:
        store: the study's store.
        uri: the tracking server's address; None: see `server.resolve`.
        fix: also delete runs without a cell, and write all others that differ anew.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    if owner(store.folder) is not None:
        return []
    with explained(server.resolve(uri, store.root)):
        writer = Writer(store, uri)
        found = writer.findings()
        if fix:
            for key in writer.orphans():
                writer.delete(key)
            writer.write_all()
        return found


def inspect_deleted(root: Path, uri: str | None = None, *, fix: bool = False) -> list[Finding]:
    """Lists the runs of studies whose folder is gone from an output folder; `fix`: also deletes them.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    uri = server.resolve(uri, root)
    if uri == server.local(root) and not (root / "mlflow.db").is_file():
        return []
    found: dict[str, list[str]] = {}
    with explained(uri):
        client: Any = server.connect(uri)
        experiments = [each.experiment_id for each in client.search_experiments(max_results=_EXPERIMENTS)]
        for run in list(search(client, experiments, identity(root, uri))):  # pages shift while runs are deleted
            study = str(run.data.tags.get("fpl.study"))
            if not (root / study).is_dir():
                found.setdefault(study, []).append(str(run.info.run_name))
                if fix:
                    client.delete_run(run.info.run_id)
    return [Finding(study, "orphaned", names) for study, names in sorted(found.items())]
