"""The tracking server: connecting, reading and writing the runs of one study, which are found by their tags."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fpl_tune import config
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.track.ledger import Entry, parent_of
from fpl_tune.track.problems import why

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_PAGE = 1000
_NAME = 250
"""Characters of a run's name; SQLite takes more, other databases refuse."""
_PARENT, _DIGEST = "mlflow.parentRunId", "fpl.digest"
_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Without it MLflow 3 opens the experiment in the view for traces."""


def quiet() -> None:
    """Sets MLflow to print nothing, to send no telemetry and to give up on a dead server within seconds.

    Variables that the user set stay. MLFLOW_RUN_ID belongs to another run and is removed from the environment.
    """
    os.environ.pop("MLFLOW_RUN_ID", None)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "1",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "urllib3", "git"):
        logging.getLogger(name).setLevel(logging.ERROR)


def resolve(uri: str | None, root: Path) -> str:
    """The tracking URI: the given one, else MLFLOW_TRACKING_URI, else SQLite in the output folder."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve()}/mlflow.db"


def connect(uri: str) -> MlflowClient:
    """Connects to a tracking server and checks that it answers; creates a SQLite file that does not exist.

    Raises:
        EnvironmentProblem: it cannot be reached, refuses, or is a folder.
    """
    quiet()
    try:
        config.check_tracking(uri)
        from mlflow import MlflowClient

        quiet()  # importing it set its loggers again
        if uri.startswith("sqlite:///"):
            _create(uri)
        elif not uri.startswith(("http", "databricks")):
            _probe(uri)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client
    except Exception as problem:
        raise EnvironmentProblem(why(problem, uri)) from problem


def _probe(uri: str) -> None:
    """Raises at once if a database does not answer; MLflow would try for two minutes."""
    from sqlalchemy import create_engine

    engine = create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def experiments(uri: str) -> dict[str, str]:
    """Names and ids of the experiments of a store, the default one left out."""
    found = connect(uri).search_experiments(max_results=1000)
    return {e.name: e.experiment_id for e in found if e.name != "Default"}


def _create(uri: str) -> None:
    """Creates a SQLite file with MLflow's tables, under another name that is replaced when it is complete.

    Two concurrent migrations of one file, or one that is killed, would leave a corrupt file.
    """
    path = Path(uri.removeprefix("sqlite:///").split("?")[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            from mlflow import MlflowClient

            made = path.with_name(f".{path.name}.new")
            made.unlink(missing_ok=True)
            MlflowClient(f"sqlite:///{made}").search_experiments(max_results=1)
            made.replace(path)


class Book:
    """One store's runs in its experiment.

    Args:
        client: the tracking server's.
        name: the study's, and the experiment's unless MLFLOW_EXPERIMENT_NAME is set.
        owner: tells this store from another study of that name on the same server.
        artifacts: folder for artifacts; None leaves it to the server.
        former: ids of cells in a store of schema 1 -> their ids. Runs under a former id are replaced.
    """

    def __init__(
        self,
        client: Any,
        name: str,
        owner: str,
        artifacts: Path | None,
        former: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.client, self.name, self.owner = client, name, owner
        self.experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", name), artifacts)
        self.runs: dict[str, list[Run]] = {}
        for run in self._search():
            cell, slash, seed = str(run.data.tags.get("fpl.key")).partition("/")
            self.runs.setdefault(f"{former.get(cell, cell)}{slash}{seed}", []).append(run)

    def _experiment(self, name: str, artifacts: Path | None) -> str:
        """The experiment's id: found, restored if someone deleted it, or created."""
        found = self.client.get_experiment_by_name(name)
        if found is None:
            place = None if artifacts is None else artifacts.resolve().as_uri()
            return self.client.create_experiment(name, artifact_location=place, tags=_KIND)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        if "mlflow.experimentKind" not in found.tags:
            for key, value in _KIND.items():
                self.client.set_experiment_tag(found.experiment_id, key, value)
        return found.experiment_id

    def _search(self) -> list[Run]:
        """All live runs of this store, oldest first."""
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment],
                filter_string=f"tags.`fpl.study` = '{self.name}' and tags.`fpl.store` = '{self.owner}'",
                max_results=_PAGE,
                order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
                page_token=token,
            )
            found.extend(page)
            token = page.token
            if not token:
                return found

    def describe(self, tags: dict[str, str]) -> None:
        """Tags of the experiment: its description, its views."""
        for key, value in tags.items():
            self.client.set_experiment_tag(self.experiment, key, value)

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

    def write(self, entry: Entry, files: dict[str, bytes | Path]) -> None:
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
        tags = {"fpl.study": self.name, "fpl.store": self.owner, "fpl.kind": entry.kind, "fpl.key": entry.key}
        if parent := self._parent_id(entry.key):
            tags[_PARENT] = parent
        start, name = entry.start or int(1000 * time.time()), entry.name[:_NAME]
        return self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=name).info.run_id

    def _attach(self, key: str, files: dict[str, bytes | Path]) -> None:
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


def _dataset(name: str, digest: str) -> Any:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=name, digest=digest, source_type="fpl-tune", source="{}")
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])
