"""Makes the runs of a store in MLflow equal to the store.

A run is found by its tags. If its digest is that of the store, it is left alone; otherwise it is deleted and logged
again. The digest is written last: a run that a kill left incomplete is replaced by the next writer.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from filelock import FileLock

from fpl_tune.core.files import sweep, write_text
from fpl_tune.core.metrics import metric
from fpl_tune.study import tracking
from fpl_tune.study.cells import Cell
from fpl_tune.study.lock import owner
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store
from fpl_tune.track import runs, server
from fpl_tune.track.runs import STUDY_KEY, Columns, LoggedRun

if TYPE_CHECKING:
    from mlflow.entities import Run

_RUNS, _EXPERIMENTS = 50_000, 10_000
"""Maximum numbers of runs in one answer of MLflow, and of experiments that are searched."""
_ID = "mlflow.id"
_PARENT, _DIGEST, _NOTE = "mlflow.parentRunId", "fpl.digest", "mlflow.note.content"
_LINKED = 40
"""Maximum number of runs in the comparison link of an experiment's note, which has at most 5,000 characters."""
_LINKS_EVERY = 1.0
"""Minimum seconds between updates of the links while cells are written, since each update lists all cells."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag without which MLflow 3 opens the experiment in the view for traces."""

VIEW = "mlflow.sharedViewState."
"""Prefix of tags in which MLflow stores shared views of an experiment's page; the view's key follows. By default
MLflow's page shows no metrics until one chooses columns."""
_FIELDS = (12, 4, 0)
"""Maximum numbers of fields as columns and axes, tried until the state fits in a tag; a screen has room for 12."""
_TAG_LENGTH = 5000
"""Maximum characters of an experiment's tag."""
_SECTIONS = ("Model metrics", "test", "val", "train")
"""Sections of charts in order, by the first part of metrics' names; by default MLflow puts names without one last."""


class Writer:
    """Makes the runs of one store in MLflow equal to it.

    Args:
        store: the study's store.
        alive: called whenever MLflow has answered; may raise an exception to end the writing.
        reads: True to create and change nothing, in order to find the `differences` alone.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """

    def __init__(self, store: Store, alive: Callable[[], None] = lambda: None, *, reads: bool = False) -> None:
        self.store, self._alive = store, alive
        uri = server.address(store.root)
        self.server = server.public(uri)
        self._ids = identities(store.root, write=not reads)
        self.identity = self._ids[0]
        self.runs: dict[str, list[Run]] = defaultdict(list)
        """Runs in MLflow by key, oldest first."""
        self._linked = -math.inf
        if reads and not server.exists(uri):
            return
        self.client: Any = server.connect(uri)
        experiment = self._experiment(uri.startswith(("sqlite", "postgresql", "mysql", "mssql")), reads)
        if experiment is None:
            return
        self.experiment: str = experiment
        for run in search(self.client, [self.experiment], self.identity):
            self.runs[str(run.data.tags.get("fpl.key"))].append(run)

    def write_study(self, *, running: bool = False, began: int = 0) -> None:
        """Writes the study's run; its report is attached once it is no longer running.

        Args:
            running: True while the study runs.
            began: milliseconds since 1970 at which it began, for a study that has no result yet.
        """
        entry = runs.study_entry(self.store, running=running, began=began)
        if not self._holds(STUDY_KEY, entry.digest):
            self._write(entry)
        self._describe(self.link(), entry.tags[_NOTE])

    def write_cell(self, cell: Cell) -> None:
        """Writes a cell's run if it differs from the store."""
        self._write_cell(self.store.row(cell), self._columns())
        if time.monotonic() - self._linked > _LINKS_EVERY:
            self.link()

    def write_all(self) -> None:
        """Writes all complete cells, then the study's run with its final status.

        Runs of cells that are not asked for are marked, and those without a cell are deleted.
        """
        if not self.runs[STUDY_KEY]:
            self.write_study(running=True)
        columns, table = self._columns(), self.store.table()
        for row in table.rows.values():
            self._write_cell(row, columns)
        on_disk = self.store.ids()
        for key in self.runs.keys() - {STUDY_KEY, *table.rows}:
            if key in on_disk:
                self._mark(key, "no")
            else:
                self.delete(key)
        self.write_study()

    def link(self) -> tracking.Tracked:
        """Writes mlflow.json, from which the report page and the terminal make links to MLflow."""
        columns = self._columns()
        logged = [cell for cell in self.store.cells() if self.runs[cell.id]]
        cells = {cell.id: self.runs[cell.id][0] for cell in logged}
        best = [cell.id for cell in logged if cell.candidate and "n_seeds" in cells[cell.id].data.metrics]
        tracked = tracking.Tracked(
            experiment=self.experiment,
            parent=self.runs[STUDY_KEY][0].info.run_id,
            server=self.server,
            order=columns.headline,
            ascending=metric(columns.metric).maximize is False,
            runs={key: run.info.run_id for key, run in cells.items()},
            best=sorted(best, key=lambda key: -cells[key].data.metrics.get("val_acc", -math.inf)),
        )
        with suppress(OSError):  # a full disk: the next run writes it
            tracking.write(self.store.folder, tracked)
        self._linked = time.monotonic()
        return tracked

    def differences(self) -> dict[str, str]:
        """Finds the runs that differ from the store: key -> missing, stale or orphaned."""
        columns = self._columns()
        digests = {key: runs.cell_digest(row, columns) for key, row in self.store.table().rows.items()}
        digests[STUDY_KEY] = runs.study_entry(self.store).digest
        unasked = {*self.store.ids()} - digests.keys()
        differing = {key: "orphaned" for key, logged in self.runs.items() if logged and key not in {*digests, *unasked}}
        differing |= {key: "stale" for key in unasked if self.runs[key] and not self._is_marked(key, "no")}
        for key, digest in digests.items():
            if digest and not (
                self._holds(key, digest) and self._is_marked(key, "yes")
            ):  # a cell without all its seeds is written when they have run
                differing[key] = "stale" if self.runs[key] else "missing"
        return differing

    def delete(self, key: str, keep: int = 0) -> None:
        """Deletes the runs of an entry, except the oldest `keep`."""
        for run in self.runs[key][keep:]:
            self.client.delete_run(run.info.run_id)
        self.runs[key] = self.runs[key][:keep]

    def name_of(self, key: str) -> str:
        """The label of a cell, or the name of a run without a cell."""
        labels = {STUDY_KEY: self.store.name, **{cell.id: cell.label for cell in self.store.cells()}}
        return labels.get(key) or str(self.runs[key][0].info.run_name)

    def _describe(self, tracked: tracking.Tracked, note: str) -> None:
        """Writes the experiment's note, which begins with the links, and the state of the page that they open."""
        cells = {key: self.runs[key][0].data for key in tracked.runs}
        fields = [*self._columns().fields.values()]
        axes = [name for name in fields if len({cells[key].params.get(name) for key in tracked.best}) > 1]
        statuses = any(data.tags.get("fpl.status") != "done" for data in cells.values())
        state = page_state(tracked, fields, axes, self._columns().compared, statuses=statuses)
        self.client.set_experiment_tag(self.experiment, f"{VIEW}{tracked.parent}", state)
        links = " · ".join(f"[{name}]({path})" for name, path in tracking.paths(tracked, _LINKED).items())
        title, _, rest = note.partition("\n")  # MLflow shows one line until the user expands the note
        note = f"**{title.removeprefix('## ')}**: {links}\n{rest}"
        self.client.set_experiment_tag(self.experiment, _NOTE, note[: runs.TAG_LENGTH])

    def _columns(self) -> Columns:
        return Columns.of(self.store.study(), self.store.cells())

    def _write_cell(self, row: Row, columns: Columns) -> None:
        self._alive()
        digest = runs.cell_digest(row, columns)
        if digest and not self._holds(row.cell.id, digest):
            self._write(runs.cell_entry(row, self.store.folder, columns))
        elif digest:
            self._mark(row.cell.id, "yes")

    def _mark(self, key: str, asked: str) -> None:
        """Marks the runs of a cell by whether the study asks for it."""
        if not self._is_marked(key, asked):
            for run in self.runs[key]:
                self.client.set_tag(run.info.run_id, runs.ASKED, asked)
            self.runs[key] = [self.client.get_run(run.info.run_id) for run in self.runs[key]]

    def _is_marked(self, key: str, asked: str) -> bool:
        """True if all runs of a cell are marked so; the study's own run has no mark."""
        return key == STUDY_KEY or all(run.data.tags.get(runs.ASKED) == asked for run in self.runs[key])

    def _holds(self, key: str, digest: str) -> bool:
        """True if there is exactly one run of this entry, complete, closed and with the right parent."""
        states = [(run.info.status, run.data.tags.get(_DIGEST), run.data.tags.get(_PARENT)) for run in self.runs[key]]
        return len(states) == 1 and states[0][0] != "RUNNING" and states[0][1:] == (digest, self._parent_id(key))

    def _parent_id(self, key: str) -> str | None:
        parents = self.runs[STUDY_KEY]
        return parents[0].info.run_id if parents and key != STUDY_KEY else None

    def _experiment(self, database: bool, reads: bool) -> str | None:
        """Finds the experiment, restores it if it was deleted, or creates it. Returns its id; None if `reads` and
        there is none.

        With a database, artifacts are stored in the output folder, so another folder's study of the same name has
        another experiment. MLflow cannot move one: if this folder was moved, all runs are logged again.
        """
        location = (self.store.root / "mlartifacts" / self.store.name).resolve().as_uri() if database else None
        name = self.store.spec().tracking.experiment.replace("{study}", self.store.name)
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None and not reads:
            experiment = self._renamed(name)
        if experiment is not None and database and experiment.artifact_location != location:
            if not self._is_ours(experiment.experiment_id):
                name = f"{name} ({self.identity[:8]})"
                experiment = self.client.get_experiment_by_name(name)
            if experiment is not None and experiment.artifact_location != location:
                if not reads:
                    moved = f"{name}, until moved ({experiment.experiment_id})"
                    self.client.rename_experiment(experiment.experiment_id, moved)
                    self.client.delete_experiment(experiment.experiment_id)
                experiment = None
        if experiment is None:
            return None if reads else self.client.create_experiment(name, artifact_location=location, tags=KIND)
        if experiment.lifecycle_stage == "deleted":
            if reads:
                return None
            self.client.restore_experiment(experiment.experiment_id)
        return experiment.experiment_id

    def _renamed(self, name: str) -> Any:
        """The experiment that the study had under another `tracking.experiment`, renamed; None if there is none."""
        from mlflow.exceptions import MlflowException

        tracked = tracking.read(self.store.folder)
        if tracked is None or tracked.server != self.server:
            return None
        with suppress(MlflowException):  # it is not on this server
            if self._is_ours(tracked.experiment):
                self.client.rename_experiment(tracked.experiment, name)
                return self.client.get_experiment(tracked.experiment)
        return None

    def _is_ours(self, experiment: str) -> bool:
        """True if all runs of an experiment are of this folder; in its own database also those of the one that it was
        copied from, with the database."""
        from mlflow.entities import ViewType

        own = server.sqlite_file(server.address(self.store.root)) == self.store.root.resolve() / "mlflow.db"
        runs = self.client.search_runs([experiment], run_view_type=ViewType.ALL, max_results=_RUNS)
        owners = {run.data.tags.get("fpl.store") for run in runs}
        return bool(owners) and owners <= set(self._ids if own else self._ids[:1])

    def _write(self, entry: LoggedRun) -> None:
        """Logs an entry's run again in place of existing ones; the study's own run, which has children, is updated."""
        from mlflow.entities import Metric, Param, RunTag

        self.delete(entry.key, keep=1 if entry.key == STUDY_KEY else 0)
        existing = self.runs[entry.key]
        run = existing[0].info.run_id if existing else self._create(entry)
        if existing and (uri := str(existing[0].info.artifact_uri)).startswith("file:"):
            for left in Path(url2pathname(urlparse(uri).path)).glob(".artifact.uploading.*"):  # by a killed process
                left.unlink()
        self.client.log_batch(
            run,
            metrics=[Metric(p.key, p.value, p.timestamp, p.step) for p in entry.metrics],
            params=[Param(k, v) for k, v in entry.params.items()],
            tags=[RunTag(k, v) for k, v in entry.tags.items()],
        )
        for folder, path in entry.files:
            self._alive()
            if path.is_file():
                self.client.log_artifact(run, str(path), folder or None)
        for name, content in entry.documents.items():
            self.client.log_dict(run, content, name)
        if entry.status == "RUNNING":
            self.client.update_run(run, status="RUNNING")
        else:
            self.client.set_terminated(run, entry.status, entry.end or None)
        self.client.set_tag(run, _DIGEST, entry.digest)
        self.runs[entry.key] = [self.client.get_run(run)]
        self._alive()

    def _create(self, entry: LoggedRun) -> str:
        """Creates an empty run; returns its id."""
        tags = {"fpl.study": self.store.name, "fpl.store": self.identity, "fpl.key": entry.key}
        if parent := self._parent_id(entry.key):
            tags[_PARENT] = parent
        start, name = entry.start or int(1000 * time.time()), entry.name[: runs.NAME_LENGTH]
        return self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=name).info.run_id


def identities(root: Path, *, write: bool = True) -> list[str]:
    """The random id of an output folder, which distinguishes its studies from others on a shared server, then those of
    the folders that it is a copy of.

    They are in mlflow.id after the folder's path. A folder that was moved keeps its id; a copy, whose original is still
    at that path, gets another one.
    """
    if not write:
        return _identities(root)
    with FileLock(root / ".mlflow.id.lock"):  # several studies may start in a new folder
        ids = _identities(root)
        text = "\n".join([str(root.resolve()), *ids])
        path = root / _ID
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            sweep(path)
            write_text(path, text)
    return ids


def _identities(root: Path) -> list[str]:
    path = root / _ID
    if not path.is_file():
        return [uuid.uuid4().hex]
    root_before, *ids = path.read_text(encoding="utf-8").splitlines()
    first = Path(root_before, _ID)
    copied = (
        first.is_file() and not first.samefile(path) and first.read_text(encoding="utf-8").split("\n")[1:2] == ids[:1]
    )
    return [uuid.uuid4().hex, *ids] if copied or not ids else ids


def search(client: Any, experiments: Sequence[str], identity: str) -> list[Run]:
    """The runs of an output folder that are not deleted, oldest first."""
    live, token = [], None
    while token != "":
        page = client.search_runs(
            list(experiments),
            filter_string=f"tags.`fpl.store` = '{identity}'",
            max_results=_RUNS,
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
            page_token=token,
        )
        live += page
        token = page.token or ""
    return live


def inspect(store: Store, *, fix: bool = False) -> list[tuple[str, str]]:
    """Finds the runs of a study in MLflow that differ from its store; none while a process runs the study.

    Args:
        store: the study's store.
        fix: True to delete runs without a cell, and to log all others that differ again.

    Returns:
        The name of each run, and `missing`, `stale` (it differs, is incomplete, or exists twice) or `orphaned` (it has
        no cell).

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    if owner(store.folder) is not None:
        return []
    with server.explained(server.address(store.root)):
        writer = Writer(store, reads=not fix)
        differing = writer.differences()
        named = [(writer.name_of(key), kind) for key, kind in differing.items()]
        if fix:
            writer.write_all()
        return named


def inspect_deleted(root: Path, *, fix: bool = False) -> dict[str, int]:
    """Counts the runs of studies that no longer have a folder in the output folder, by study; `fix` deletes them.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    uri = server.address(root)
    if not (root / _ID).is_file() or not server.exists(uri):  # nothing was ever recorded
        return {}
    orphaned: dict[str, int] = defaultdict(int)
    with server.explained(uri):
        client: Any = server.connect(uri)
        experiments = [each.experiment_id for each in client.search_experiments(max_results=_EXPERIMENTS)]
        for run in search(client, experiments, identities(root, write=fix)[0]):
            study = str(run.data.tags.get("fpl.study"))
            if not (root / study).is_dir():
                orphaned[study] += 1
                if fix:
                    client.delete_run(run.info.run_id)
    return dict(orphaned)


def page_state(
    tracked: tracking.Tracked,
    fields: Sequence[str],
    axes: Sequence[str],
    metrics: Sequence[str],
    *,
    statuses: bool = False,
) -> str:
    """The state of MLflow's page that the links open, as the value of its tag; see `_page_state`."""
    texts = (
        json.dumps(_page_state(tracked, fields[:most], axes[:most], metrics, statuses=statuses), separators=(",", ":"))
        for most in _FIELDS
    )
    return next(text for text in texts if len(text) <= _TAG_LENGTH)


def _page_state(
    tracked: tracking.Tracked, fields: Sequence[str], axes: Sequence[str], metrics: Sequence[str], *, statuses: bool
) -> dict[str, Any]:
    """The state of MLflow's page that the links open: the cells without the study's own run, and the charts.

    Args:
        tracked: the study's place in MLflow.
        fields: parameters to show as columns.
        axes: parameters to show as axes of the parallel coordinates.
        metrics: metrics to show as axes after them.
        statuses: True to show a column with the cells' statuses.
    """
    figures = dict.fromkeys([tracked.order, *metrics, "test_acc", "test_acc_std", "val_acc", "n_seeds"])
    columns = [f"metrics.`{name}`" for name in figures] + [f"params.`{name}`" for name in fields]
    parallel = {
        "type": "PARALLEL",
        "uuid": "fpl-parallel",
        "metricSectionId": f"fpl-{_SECTIONS[0]}",
        "selectedParams": [*axes],
        "selectedMetrics": [*metrics],
        "showAllRuns": True,
        "deleted": False,
        "isGenerated": False,
    }
    return {
        "searchFilter": f"tags.`mlflow.parentRunId` = '{tracked.parent}' AND tags.`{runs.ASKED}` = 'yes'",
        "orderByKey": f"metrics.`{tracked.order}`",
        "orderByAsc": tracked.ascending,
        "selectedColumns": [*columns, *(["tags.`fpl.status`"] if statuses else [])],
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": [parallel] if axes else [],
        "compareRunSections": [
            {"uuid": f"fpl-{name}", "name": name, "display": True, "isReordered": True, "deleted": False}
            for name in _SECTIONS
        ],
        "isAccordionReordered": True,
    }
