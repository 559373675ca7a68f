"""The tracking server: reached quietly, spoken to in batches, runs found by their tags."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.errors import EnvironmentProblem
from fpl_tune.redact import redact
from fpl_tune.track.ledger import Entry, Point

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_BATCH_METRICS, _BATCH_PARAMS = 1000, 100
_PAGE = 1000
_NAME = 250
"""Characters of a run's name; SQLite would take more, servers' databases refuse."""
_PARENT = "mlflow.parentRunId"
_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Without it MLflow 3 opens the experiment in the view for traces."""


def quiet() -> None:
    """Settings under which MLflow prints nothing, sends no telemetry and gives up on a dead server within seconds.

    What the user set stays. MLFLOW_RUN_ID belongs to another run and is taken out of the environment.
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
    """A client of a tracking server that answers; a SQLite file is created where there is none.

    Raises:
        EnvironmentProblem: it cannot be reached, refuses, or is of a kind that MLflow no longer writes.
    """
    quiet()
    if not re.match(r"(sqlite|https?|postgresql|mysql|mssql|databricks)[+:]?", uri):
        raise EnvironmentProblem(
            f"A tracking URI is a database or a server, but is {redact(uri)!r}: MLflow no longer writes to folders. "
            "Write sqlite:////absolute/path/mlflow.db or http://host:5000."
        )
    from mlflow import MlflowClient

    quiet()  # importing it set its loggers again
    _hurry()
    try:
        if uri.startswith("sqlite:///"):
            _create(uri)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client
    except Exception as problem:
        raise EnvironmentProblem(why(problem, uri)) from problem


def _hurry() -> None:
    """A database that does not answer is given up after seconds; MLflow itself would try for two minutes."""
    from mlflow.store.db import utils

    utils.MAX_RETRY_COUNT = 3


def experiments(uri: str) -> dict[str, str]:
    """Names and ids of the experiments of a store, the default one left out."""
    found = connect(uri).search_experiments(max_results=1000)
    return {e.name: e.experiment_id for e in found if e.name != "Default"}


def why(problem: Exception, uri: str) -> str:
    """What is wrong with a tracking server, and the remedy, in one line."""
    text = " ".join(str(problem).split())
    if "Invalid Host header" in text:
        remedy = "Start the server with `mlflow server --allowed-hosts <name or address it is reached by>`."
    elif re.search(r"database schema|Can't locate revision", text):
        remedy = f"It is of another version of MLflow: run `mlflow db upgrade {redact(uri)}`, or install that version."
    elif re.search(r"disk is full|No space left", text):
        remedy = "Free space on its disk."
    elif missing := re.search(r"No module named '(\w+)'", text):
        named = "'fpl-tune[postgres]'" if missing[1].startswith("psycopg") else missing[1]
        remedy = f"Install the driver of the database: pip install {named}"
    elif "Invalid value" in text:
        remedy = "Change the name or value that it refuses."
    elif re.search(r"\b40[13]\b|credential|denied|Unauthorized", text):
        remedy = "Check MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN."
    else:
        remedy = "Start it, or correct tracking.uri or MLFLOW_TRACKING_URI."
    return f"MLflow at {redact(uri)} must answer, but: {redact(text)[:300]} {remedy}"


def _create(uri: str) -> None:
    """Makes the tables of a SQLite file that is not there yet, in a file beside it that is renamed once it is whole.

    Two processes that make them at a time, or one that is killed meanwhile, would leave a file that nobody can use.
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
    """

    def __init__(self, client: Any, name: str, owner: str, artifacts: Path | None) -> None:
        self.client, self.name, self.owner = client, name, owner
        self.experiment = self._experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", name), artifacts)
        self.runs: dict[str, list[Run]] = {}
        for run in self._search():
            self.runs.setdefault(str(run.data.tags.get("fpl.key")), []).append(run)

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

    def holds(self, key: str, digest: str, parent: str | None) -> bool:
        """Whether exactly this entry is there, whole, below its parent, and closed."""
        runs = self.runs.get(key, [])
        if len(runs) != 1 or runs[0].info.status == "RUNNING":
            return False
        tags = runs[0].data.tags
        return tags.get("fpl.complete") == digest and tags.get(_PARENT) == self.parent_id(parent)

    def parent_id(self, parent: str | None) -> str | None:
        """Run id of an entry's parent; None where there is none."""
        runs = self.runs.get(parent, []) if parent is not None else []
        return runs[0].info.run_id if runs else None

    # -- writing ---------------------------------------------------------------------------------------------

    def open(self, entry: Entry) -> Run:
        """The entry's one run: the oldest that has its content, others deleted; created where there is none.

        A parent run has no fixed content and is always taken up again.
        """
        runs = self.runs.get(entry.key, [])
        same = [r for r in runs if entry.kind == "study" or r.data.tags.get("fpl.digest") == entry.digest]
        for run in runs:
            if run not in same[:1]:
                self.client.delete_run(run.info.run_id)
        kept = same[0] if same else self._create(entry)
        self.runs[entry.key] = [kept]
        return kept

    def _create(self, entry: Entry) -> Run:
        tags = {
            **entry.tags,
            "fpl.study": self.name,
            "fpl.store": self.owner,
            "fpl.kind": entry.kind,
            "fpl.key": entry.key,
            "fpl.digest": entry.digest,
        }
        if parent := self.parent_id(entry.parent):
            tags[_PARENT] = parent
        start = entry.start or int(1000 * time.time())
        return self.client.create_run(self.experiment, start_time=start, tags=tags, run_name=entry.name[:_NAME])

    def write(self, entry: Entry, files: dict[str, bytes | Path]) -> None:
        """Makes the entry's run what the entry says. Whatever is there already is not sent again.

        The tag `fpl.complete` is set last, so that a run without it was cut short and is looked at value by value.
        """
        from mlflow.entities import RunTag

        run = self.open(entry)
        key = run.info.run_id
        params, points = self._missing(run, entry)
        self._send(key, params, points)
        if entry.datasets:
            self.client.log_inputs(key, datasets=[_dataset(*named) for named in entry.datasets])
        self._attach(key, files)
        parent = self.parent_id(entry.parent)
        tags = entry.tags if parent is None else {_PARENT: parent}
        self.client.log_batch(key, tags=[RunTag(k, v) for k, v in tags.items()])
        if entry.status == "RUNNING":
            self.client.update_run(key, status="RUNNING")
        else:
            self.client.set_terminated(key, entry.status, entry.end or None)
            self.client.set_tag(key, "fpl.complete", entry.digest)
        self.runs[entry.key] = [self.client.get_run(key)]

    def _missing(self, run: Run, entry: Entry) -> tuple[dict[str, str], list[Point]]:
        """What of an entry a run does not hold yet."""
        params = {k: v for k, v in entry.params.items() if k not in run.data.params}
        held = {
            (name, metric.step)
            for name in run.data.metrics
            for metric in self.client.get_metric_history(run.info.run_id, name)
        }
        return params, [point for point in entry.metrics if (point.key, point.step) not in held]

    def _send(self, key: str, params: dict[str, str], points: Sequence[Point]) -> None:
        from mlflow.entities import Metric, Param

        named = [Param(k, v) for k, v in params.items()]
        for i in range(0, len(named), _BATCH_PARAMS):
            self.client.log_batch(key, params=named[i : i + _BATCH_PARAMS])
        metrics = [Metric(p.key, p.value, p.timestamp, p.step) for p in points]
        for i in range(0, len(metrics), _BATCH_METRICS):
            self.client.log_batch(key, metrics=metrics[i : i + _BATCH_METRICS])

    def _attach(self, key: str, files: dict[str, bytes | Path]) -> None:
        """Artifacts in one go; writing one again replaces it."""
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
