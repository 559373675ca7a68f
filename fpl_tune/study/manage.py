"""Looking after studies: what is stale and why, how far they are, stopping, trying failures again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fpl_tune import config
from fpl_tune.amounts import counted, listed
from fpl_tune.config import StudySpec
from fpl_tune.errors import ConfigError
from fpl_tune.study.cells import Cell, expand, shown
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.job import STOP_FILE, stop_asked
from fpl_tune.study.lock import locked, owner
from fpl_tune.study.remaining import seconds_left
from fpl_tune.study.search import Search
from fpl_tune.study.store import Store

STATES = ("done", "partly", "pending", "pruned", "raced", "diverged", "failed")
"""Of cells, from good to bad."""


def diff(spec: StudySpec, node: dict[str, Any], store: Store) -> list[dict[str, Any]]:
    """What running the study would do to each cell, and why: new, stale, partly, done; `gone` are no longer in it, and
    `left` lie on disk with results of settings before those of its last run.

    A new cell says which fields tell it from the one of its name that is gone. Trials that a search has yet to come up
    with are one row.
    """
    rows = []
    cells = expand(spec, node) if spec.search.sampler is None else store.cells()
    for cell in cells:
        have = store.seeds(cell)
        reasons = why_stale(store.fingerprints(cell), fingerprints(cell.run)) if have else []
        missing = store.missing(cell, spec)
        state = "stale" if reasons else "new" if not have else "partly" if missing else "done"
        without = f"without {listed('seed', missing)}" if state == "partly" else ""
        why = ", ".join(reasons) or without
        rows.append({"cell": cell.id, "label": cell.label, "state": state, "why": why})
    now = {cell.id for cell in cells}
    gone = [cell for cell in store.cells() if cell.id not in now]
    before, here = {cell.label: cell for cell in gone}, {cell.id: cell for cell in cells}
    for row in rows:
        if row["state"] == "new" and row["label"] in before:
            row["why"] = ", ".join(_changed(before[row["label"]], here[row["cell"]]))
    if (search := Search.plan(spec, node)) is not None:
        left = sum(part.total for part in search.parts) - sum(cell.role == "trial" for cell in cells)
        rows += [{"cell": "", "label": counted(left, "more trial"), "state": "new", "why": ""}] if left > 0 else []
    rows += [{"cell": c.id, "label": c.label, "state": "gone", "why": "not in the study"} for c in gone]
    left = [cell for cell in store.left() if cell.id not in now and store.seeds(cell)]
    return [*rows, *({"cell": c.id, "label": c.label, "state": "left", "why": "of earlier settings"} for c in left)]


def _changed(old: Cell, new: Cell) -> list[str]:
    """Fields in which two cells' runs differ: `method.n_ctx 16 -> 8`."""
    a, b = (_leaves(config.as_dict(cell.run)) for cell in (old, new))
    return [f"{name} {shown(a.get(name))} -> {shown(b.get(name))}" for name in {**a, **b} if a.get(name) != b.get(name)]


def _leaves(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in node.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def status(store: Store) -> dict[str, Any]:
    """Cells by state, the seeds that are done, who runs the study, and how long that will take."""
    summary = store.summary()
    states = Counter(summary["status"])
    running = owner(store.folder)
    left = None if running is None else seconds_left(store.folder)
    return {
        "study": store.name,
        "cells": len(summary),
        **{name: states.get(name, 0) for name in STATES},
        "seeds": int(sum(len(store.seeds(cell)) for cell in store.cells())),
        "seeds_wanted": len(summary) * len(store.spec().seed_list()),
        "run_by": running and f"process {running.get('pid')} on {running.get('host')} since {running.get('since')}",
        "seconds_left": None if left is None else round(left, 1),
        "ending": running is not None and stop_asked(store.folder),
    }


def stop(store: Store) -> None:
    """Asks whoever runs the study to end after the round, with a checkpoint.

    Raises:
        ConfigError: nobody runs it.
    """
    if owner(store.folder) is None:
        raise ConfigError(f"Only a running study is stopped, but nobody runs {store.name}.")
    (store.folder / STOP_FILE).touch()


def stale(store: Store) -> dict[str, list[str]]:
    """Ids of cells with results that no longer answer to what would run now, which the next run runs again, and why."""
    kept = (cell for cell in store.cells() if store.seeds(cell))
    found = {cell.id: why_stale(store.fingerprints(cell), fingerprints(cell.run)) for cell in kept}
    return {key: reasons for key, reasons in found.items() if reasons}


def retry_failed(store: Store, states: Sequence[str] = ("failed", "diverged")) -> list[tuple[Cell, str]]:
    """Takes away the results of seeds in these states, so that the next run tries them again; names their cells, and
    each with why.

    Raises:
        ConfigError: somebody runs the study.
    """
    named = []
    with locked(store.folder):
        for cell in store.cells():
            for seed in store.seeds(cell):
                result = store.result(cell, seed) or {}
                if result.get("status") in states:
                    store.forget(cell, seed)
                    named.append((cell, f"{cell.label}, seed {seed}: {result['error']}"))
    return named
