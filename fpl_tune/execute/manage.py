"""Maintenance of studies: status, stop, retries."""

from __future__ import annotations

from typing import Any

from fpl_tune.core.errors import ConfigError
from fpl_tune.study.lock import locked, owner
from fpl_tune.study.status import FAILURES
from fpl_tune.study.store import Store


def status(store: Store) -> dict[str, Any]:
    """Counts the cells by state and the seeds with a result; with the process that runs the study, its ETA."""
    found = {"study": store.name, **store.status(), "run_by": None, "seconds_left": None, "ending": False}
    if running := owner(store.folder):
        from fpl_tune.execute.eta import seconds_left  # imports PyTorch
        from fpl_tune.execute.job import stop_requested

        left = seconds_left(store, running["since"])
        found["run_by"] = f"process {running['pid']} on {running['host']} since {running['since']}"
        found["seconds_left"] = None if left is None else round(left)
        found["ending"] = stop_requested(store.folder)
    return found


def stop(store: Store) -> None:
    """Asks the process that runs the study to end after the round, with a checkpoint.

    Raises:
        ConfigError: no process runs it.
    """
    if owner(store.folder) is None:
        raise ConfigError(f"Only a running study can be stopped, but {store.name} is not running.")
    from fpl_tune.execute.job import STOP_FILE

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
