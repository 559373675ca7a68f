"""The tracking server: its address, and a connection that answers or fails within seconds."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fpl_tune import config
from fpl_tune.track.problems import explained

if TYPE_CHECKING:
    from mlflow import MlflowClient


def quiet() -> None:
    """Sets MLflow to print nothing, to send no telemetry and to give up on a dead server within seconds.

    Variables that the user set stay. MLFLOW_RUN_ID belongs to another run and is removed from the environment.
    """
    os.environ.pop("MLFLOW_RUN_ID", None)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "1",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "urllib3", "git"):
        logging.getLogger(name).setLevel(logging.ERROR)


def local(root: Path) -> str:
    """The database of an output folder."""
    return f"sqlite:///{root.resolve()}/mlflow.db"


def resolve(uri: str | None, root: Path) -> str:
    """The tracking URI: the given one, else MLFLOW_TRACKING_URI, else SQLite in the output folder."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or local(root)


def connect(uri: str) -> MlflowClient:
    """Connects to a tracking server and checks that it answers; creates a SQLite file that does not exist.

    Raises:
        EnvironmentProblem: it cannot be reached, refuses, or is a folder.
    """
    quiet()
    with explained(uri):
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
