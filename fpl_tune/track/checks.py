"""What MLflow has that the store has not, and the other way round; and the repair."""

from __future__ import annotations

from typing import NamedTuple

from fpl_tune.study.lock import owner
from fpl_tune.study.store import Store
from fpl_tune.track import ledger
from fpl_tune.track.ledger import Draw
from fpl_tune.track.recorder import Writer, writer_of


class Finding(NamedTuple):
    """One difference between a study's store and MLflow."""

    kind: str
    """zombie, missing, partial, stale, duplicate or orphan"""
    key: str
    """"study", a cell's id, or "<id>/<seed>"."""
    text: str


def inspect(store: Store, uri: str | None = None) -> list[Finding]:
    """What differs. Reads only, but an experiment that was deleted is restored.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    return _compare(store, writer_of(store, uri))


def repair(store: Store, uri: str | None = None, *, draw: Draw | None = None) -> list[Finding]:
    """Mends what `inspect` finds: closes runs that nothing runs any more, deletes runs without a cell, sends the rest.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    writer = writer_of(store, uri, draw=draw)
    found = _compare(store, writer)
    for finding in found:
        if finding.kind == "orphan":
            for run in writer.book.runs.pop(finding.key):
                writer.book.client.delete_run(run.info.run_id)
    if owner(store.folder) is None:
        writer.everything()
    return found


def _compare(store: Store, writer: Writer) -> list[Finding]:
    found = _study(store, writer)
    runs = writer.book.runs
    expected, waiting = {"study"}, set[str]()
    for cell in store.cells():
        due = writer.due(cell)
        if not due:
            waiting.add(cell.id)  # to be run, or to be run again: its records are written then
        for key, seeds in due.items():
            expected.add(key)
            digest = ledger.cell_digest(store, cell, seeds, writer.rule)
            parent = "study" if key == cell.id else cell.id
            mine = runs.get(key, [])
            if not mine:
                found.append(Finding("missing", key, f"{cell.label} is not in MLflow"))
            elif len(mine) > 1:
                found.append(Finding("duplicate", key, f"{cell.label} is in MLflow {len(mine)} times"))
            elif mine[0].data.tags.get("fpl.digest") != digest:
                found.append(Finding("stale", key, f"{cell.label} holds other figures than the store"))
            elif not writer.book.holds(key, digest, parent):
                found.append(Finding("partial", key, f"{cell.label} was cut short"))
    for key in (key for key in runs.keys() - expected if key.partition("/")[0] not in waiting):
        found.append(Finding("orphan", key, f"MLflow has a run {key}, which the study has not"))
    return found


def _study(store: Store, writer: Writer) -> list[Finding]:
    mine = writer.book.runs.get("study", [])
    if not mine:
        return [Finding("missing", "study", f"the run of {store.name} is not in MLflow")]
    if len(mine) > 1:
        return [Finding("duplicate", "study", f"the run of {store.name} is in MLflow {len(mine)} times")]
    if mine[0].info.status == "RUNNING" and owner(store.folder) is None:
        return [Finding("zombie", "study", f"the run of {store.name} is open, but nothing runs the study")]
    return []
