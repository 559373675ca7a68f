"""Maintenance of studies: status, stop, retries. Imports no PyTorch."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.study.lock import STOP_FILE, locked, owner
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
            until = json.loads((store.folder / ETA_FILE).read_text())["until"]
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


def retry_failed(store: Store) -> list[str]:
    """Removes the results of seeds that failed or diverged, so that the next run retries them.

    Returns:
        Label, seed and error of each.

    Raises:
        ConfigError: another process runs the study.
    """
    named = []
    with locked(store.folder):
        for cell in store.cells():
            for seed, result in store.seed_results(cell).items():
                if result["status"] in FAILURES:
                    store.forget(cell, seed)
                    named.append(f"{cell.label}, seed {seed}: {result['error']}")
    return named
