"""The tracking server: its address, a connection that answers or fails within seconds, and its errors in one line."""

from __future__ import annotations

import logging
import os
import re
import shlex
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from filelock import FileLock

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.core.paths import check_sqlite
from fpl_tune.core.redact import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

_REMEDIES = {
    "database is locked": "Another process has locked it: wait for that process, or end it.",
    "unable to open database file": "Move away whatever is at that path, or name a file in MLFLOW_TRACKING_URI.",
    "Invalid Host header": "Start the server with `mlflow server --allowed-hosts <its name or address>`.",
    "database schema|Can't locate revision": "Run `mlflow db upgrade {uri}`, or install that version of MLflow.",
    "disk is full|No space left": "Free space on that disk.",
    r"No module named '(\w+)'": "Install the driver of the database, such as pip install 'fpl-tune[postgres]'.",
    r"\b40[13]\b|credential|denied|Unauthorized|password": "Check MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN.",
    "": "Start it, or correct MLFLOW_TRACKING_URI.",
}
"""Pattern of an error of MLflow or a database -> remedy."""


def address(root: Path) -> str:
    """The tracking URI: MLFLOW_TRACKING_URI, else SQLite in the output folder.

    Raises:
        ConfigError: MLflow cannot write to that address, such as a folder.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(root.resolve() / "mlflow.db")
    if not re.match(r"(sqlite|https?|postgresql|mysql|mssql|databricks)[+:]?", uri):
        raise ConfigError(
            f"MLFLOW_TRACKING_URI must be a database or a server, but is {redact(uri)!r}: MLflow no longer writes to "
            "folders. Use sqlite:////absolute/path/mlflow.db or http://host:5000."
        )
    check_sqlite(uri, "MLFLOW_TRACKING_URI")
    return uri


def public(uri: str) -> str:
    """The address of a tracking server without user, password or token; empty for databases and for Databricks."""
    if not uri.startswith(("http://", "https://")):
        return ""
    url = urlsplit(uri)
    return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path.rstrip("/"), "", ""))


def connect(uri: str) -> MlflowClient:
    """Connects to a tracking server and checks that it answers; creates a SQLite file that does not exist.

    Raises:
        EnvironmentProblem: it cannot be reached, or denies access.
    """
    quiet()
    with explained(uri):
        from mlflow import MlflowClient

        quiet()  # importing it sets its loggers again
        if path := sqlite_file(uri):
            _create(path)
        if not uri.startswith(("http", "databricks")):
            _probe(uri)
        client = MlflowClient(uri)
        client.search_experiments(max_results=1)
        return client


def experiments(root: Path) -> dict[str, str]:
    """Names and ids of the experiments of an output folder, without the default one."""
    listed = connect(address(root)).search_experiments(max_results=1000)
    return {e.name: e.experiment_id for e in listed if e.name != "Default"}


def why(problem: Exception, uri: str) -> str:
    """Describes an error of a tracking server in one line, with the remedy."""
    if isinstance(problem, FplTuneError):
        return str(problem)
    text = re.sub(r" \(Background on this error at: \S+\)", "", " ".join(str(problem).split()))
    reason = "connection refused" if "onnection refused" in text else textwrap.shorten(redact(text), 200)
    remedy = next(remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, text))
    return f"MLflow at {redact(uri)} failed: {reason.rstrip('.')}. {remedy.format(uri=shlex.quote(redact(uri)))}"


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Raises any error in its block as an `EnvironmentProblem` of one line."""
    try:
        yield
    except Exception as problem:
        raise EnvironmentProblem(why(problem, uri)) from problem


def quiet() -> None:
    """Configures MLflow to print nothing, to send no telemetry, and to give up on a dead server within seconds.

    Variables that the user has set take precedence. MLFLOW_RUN_ID belongs to another run, and is removed.
    """
    os.environ.pop("MLFLOW_RUN_ID", None)
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "GIT_PYTHON_REFRESH": "quiet",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # which may hold a password
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
        "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "1",
    }.items():
        os.environ.setdefault(name, value)
    for name in ("alembic", "mlflow", "mlflow.store.db.utils", "urllib3", "git"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _probe(uri: str) -> None:
    """Raises immediately if a database does not answer; MLflow would retry for two minutes."""
    from sqlalchemy import create_engine

    engine = create_engine(uri)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def sqlite_uri(path: Path) -> str:
    """The tracking URI of a SQLite file.

    Raises:
        ConfigError: SQLAlchemy has no address for that path.
    """
    if not {"?", "%"} & {*str(path)}:
        return f"sqlite:///{path}"
    from sqlalchemy import URL

    # With the driver's name: at sqlite:/// MLflow would also create the folder that the escaped path names.
    uri = URL.create("sqlite+pysqlite", database=str(path)).render_as_string()
    if sqlite_file(uri) != path:
        raise ConfigError(
            f"SQLAlchemy before 2.1 opens no database whose path has a ?, but it is {path}. Install sqlalchemy>=2.1, "
            "or name another folder in FPL_TUNE_OUTPUT."
        )
    return uri


def sqlite_file(uri: str) -> Path | None:
    """The file of a tracking URI; None for a server or another database."""
    driver, _, path = uri.partition(":///")
    if not driver.startswith("sqlite"):
        return None
    if {"?", "%"} & {*path}:
        from sqlalchemy import make_url  # takes 0.3 s

        path = make_url(uri).database
    return Path(path) if path else None


def exists(uri: str) -> bool:
    """True unless a tracking URI names a SQLite file that is not there, which a connection would create."""
    path = sqlite_file(uri)
    return path is None or path.exists()


def is_being_created(uri: str) -> bool:
    """True while MLflow's tables are made in a SQLite file that a connection creates."""
    path = sqlite_file(uri)
    return path is not None and not path.exists() and _unfinished(path).exists()


def _unfinished(path: Path) -> Path:
    """The temporary name of a SQLite file until it is complete."""
    return path.with_name(f".{path.name}.new")


def _create(path: Path) -> None:
    """Creates a SQLite file with MLflow's tables, under a temporary name until it is complete.

    Two concurrent migrations of one file, or one that is killed, would leave a corrupt file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            from mlflow import MlflowClient

            made = _unfinished(path)
            made.unlink(missing_ok=True)
            _probe(uri := sqlite_uri(made))
            MlflowClient(uri).search_experiments(max_results=1)
            made.replace(path)
