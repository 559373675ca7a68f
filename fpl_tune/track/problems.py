"""Errors of MLflow and its databases as one line with a remedy."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from fpl_tune.core.errors import EnvironmentProblem, FplTuneError
from fpl_tune.core.redact import redact

_REASONS = {
    r"[Cc]onnection refused": "connection refused",
    r"timed? ?out": "no answer in time",
    r"Name or service not known|name resolution|getaddrinfo|could not translate host": "unknown host",
    r"disk is full|No space left": "its disk is full",
    r"database schema|Can't locate revision": "its database is of another version of MLflow",
}
_REMEDIES = {
    r"Invalid Host header": "Start the server with `mlflow server --allowed-hosts <its name or address>`.",
    r"database schema|Can't locate revision": "Run `mlflow db upgrade {uri}`, or install that version of MLflow.",
    r"disk is full|No space left": "Free space on that disk.",
    r"No module named 'psycopg\w*'": "Install the driver of the database: pip install 'fpl-tune[postgres]'",
    r"No module named '(\w+)'": "Install the driver of the database: pip install {0}",
    r"Invalid value": "Change the name or value that it refuses.",
    r"\b40[13]\b|credential|denied|Unauthorized": "Check MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or "
    "MLFLOW_TRACKING_TOKEN.",
    "": "Start it, or correct tracking.uri or MLFLOW_TRACKING_URI.",
}


def why(problem: Exception, uri: str) -> str:
    """What failed at a tracking server, and the remedy, in one line."""
    if isinstance(problem, FplTuneError):
        return str(problem)
    text = " ".join(str(problem).split())
    shortened = textwrap.shorten(redact(text), 200, placeholder=" ...").rstrip(".")
    reason = next((short for pattern, short in _REASONS.items() if re.search(pattern, text)), shortened)
    pattern = next(pattern for pattern in _REMEDIES if re.search(pattern, text))
    remedy = _REMEDIES[pattern].format(re.findall(pattern, text)[0], uri=redact(uri))
    return f"MLflow at {redact(uri)} failed: {reason}. {remedy}"


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Raises any error of its block as an `EnvironmentProblem` of one line."""
    try:
        yield
    except Exception as problem:
        raise EnvironmentProblem(why(problem, uri)) from problem
