"""Looking after studies: what is stale and why, how far they are, stopping, trying failures again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.study.cells import expand
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.job import STOP_FILE
from fpl_tune.study.lock import locked, owner
from fpl_tune.study.store import Store


def diff(spec: StudySpec, node: dict[str, Any], store: Store) -> list[dict[str, Any]]:
    """What running the study would do to each cell, and why: new, stale, partly, done; `gone` are no longer in it."""
    rows = []
    cells = expand(spec, node) if spec.search.sampler is None else store.cells()
    for cell in cells:
        have = store.seeds(cell)
        reasons = why_stale(store.fingerprints(cell), fingerprints(cell.run)) if have else []
        missing = [s for s in spec.seed_list() if not store.finished(cell, s)]
        state = "stale" if reasons else "new" if not have else "partly" if missing else "done"
        why = ", ".join(reasons) if reasons else f"seeds {', '.join(map(str, missing))}" if state == "partly" else ""
        rows.append({"cell": cell.id, "label": cell.label, "state": state, "why": why})
    now = {cell.id for cell in cells}
    gone = [cell for cell in store.cells() if cell.id not in now] if (store.folder / "cells.json").is_file() else []
    return [*rows, *({"cell": c.id, "label": c.label, "state": "gone", "why": "not in the study"} for c in gone)]


def status(store: Store) -> dict[str, Any]:
    """Cells by state, the seeds that are done, and who runs the study."""
    summary = store.summary()
    states = Counter(summary["status"])
    running = owner(store.folder)
    return {
        "study": store.name,
        "cells": len(summary),
        **{name: states.get(name, 0) for name in ("done", "running", "pending", "pruned", "diverged", "failed")},
        "seeds": int(sum(len(store.seeds(cell)) for cell in store.cells())),
        "seeds_wanted": len(summary) * len(store.spec().seed_list()),
        "run_by": running and f"process {running.get('pid')} on {running.get('host')} since {running.get('since')}",
    }


def stop(store: Store) -> None:
    """Asks whoever runs the study to end after the round, with a checkpoint.

    Raises:
        ConfigError: nobody runs it.
    """
    if owner(store.folder) is None:
        raise ConfigError(f"Only a running study is stopped, but nobody runs {store.name}.")
    (store.folder / STOP_FILE).touch()


def retry_failed(store: Store) -> list[str]:
    """Takes away the results of failed and diverged seeds, so that the next run tries them again; names them.

    Raises:
        ConfigError: somebody runs the study.
    """
    named = []
    with locked(store.folder):
        for cell in store.cells():
            for seed in store.seeds(cell):
                if (store.result(cell, seed) or {}).get("status") in ("failed", "diverged"):
                    store.forget(cell, seed)
                    named.append(f"{cell.label}, seed {seed}")
    return named
