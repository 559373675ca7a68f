"""What running a study would do to each of its cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fpl_tune import config
from fpl_tune.config import StudySpec
from fpl_tune.formatting import counted, listed
from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell, expand, shown
from fpl_tune.study.fingerprints import fingerprints, why_stale
from fpl_tune.study.store import Store


def diff(spec: StudySpec, node: dict[str, Any], store: Store) -> list[dict[str, Any]]:
    """What running the study would do to each cell, and why: new, stale, partial, done; `gone` are no longer in it, and
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
        state = "stale" if reasons else "new" if not have else "partial" if missing else "done"
        without = f"without {listed('seed', missing)}" if state == "partial" else ""
        why = ", ".join(reasons) or without
        rows.append({"cell": cell.id, "label": cell.label, "state": state, "why": why})
    now = {cell.id for cell in cells}
    gone = [cell for cell in store.cells() if cell.id not in now]
    before, here = {cell.label: cell for cell in gone}, {cell.id: cell for cell in cells}
    for row in rows:
        if row["state"] == "new" and row["label"] in before:
            row["why"] = ", ".join(_changed(before[row["label"]], here[row["cell"]]))
    if (search := Search.plan(spec, node, store.root)) is not None:
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
