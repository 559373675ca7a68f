"""Maintenance of studies: status, stop, failures. Imports no PyTorch."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import regular
from fpl_tune.study.lock import STOP_FILE, owner
from fpl_tune.study.status import FAILURES

if TYPE_CHECKING:
    from fpl_tune.study.store import Store

ETA_FILE = "study.eta"
"""In the study's folder while it runs: when it is expected to be done."""


def stop_requested(folder: Path) -> bool:
    """Whether the study is requested to stop."""
    return os.path.exists(folder / STOP_FILE)


def status(store: Store) -> dict[str, Any]:
    """Counts the cells by state and the seeds with a result; with the process that runs the study, its ETA."""
    found = {"study": store.name, **store.status(), "run_by": None, "seconds_left": None, "ending": False}
    if running := owner(store.folder):
        found["run_by"] = f"process {running['pid']} on {running['host']} since {running['since']}"
        with suppress(OSError, ValueError):  # there is none before the first round
            until = json.loads(regular(store.folder / ETA_FILE).read_text())["until"]
            found["seconds_left"] = max(0, round(until - time.time()))
        found["ending"] = stop_requested(store.folder)
    return found


def stop(store: Store) -> None:
    """Asks the process that runs the study to end after the round, with a checkpoint.

    A process that is named as its owner has removed older requests, so that this one is heard.

    Raises:
        ConfigError: no process runs it.
    """
    if owner(store.folder) is None:
        raise ConfigError(f"Only a running study can be stopped, but {store.name} is not running.")
    (store.folder / STOP_FILE).touch()


def failed_seeds(store: Store) -> list[str]:
    """Label, seed and error of each seed that failed or diverged."""
    return [
        f"{cell.label}, seed {seed}: {result['error']}"
        for cell in (store.cells() if store.exists else ())
        for seed, result in store.seed_results(cell).items()
        if result["status"] in FAILURES
    ]
