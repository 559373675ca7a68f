"""Differences between a study's store and MLflow, and their repair."""

from __future__ import annotations

from typing import NamedTuple

from fpl_tune.study.lock import owner
from fpl_tune.study.store import Store
from fpl_tune.track.writer import Writer, writer_of


class Finding(NamedTuple):
    """One difference between a study's store and MLflow."""

    kind: str
    """missing, duplicate, stale, orphan or zombie"""
    key: str
    """"study", a cell's id, or "<id>/<seed>"."""
    text: str


def inspect(store: Store, uri: str | None = None) -> list[Finding]:
    """Lists the differences. Reads only, but restores an experiment that was deleted.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    return _differences(store, writer_of(store, uri))


def repair(store: Store, uri: str | None = None) -> list[Finding]:
    """Repairs what `inspect` finds: deletes runs without a cell, and writes all others that differ anew.

    Raises:
        EnvironmentProblem: MLflow cannot be reached.
    """
    writer = writer_of(store, uri)
    found = _differences(store, writer)
    for finding in found:
        if finding.kind == "orphan":
            writer.book.delete(finding.key)
    if owner(store.folder) is None:
        writer.everything()
    return found


def _differences(store: Store, writer: Writer) -> list[Finding]:
    runs, running = writer.book.runs, owner(store.folder) is not None
    study = runs.get("study", [])
    found = _count("study", f"the run of {store.name}", len(study))
    if len(study) == 1 and study[0].info.status == "RUNNING" and not running:
        found.append(Finding("zombie", "study", f"the run of {store.name} is open, but no process runs the study"))
    expected, waiting = {"study"}, set[str]()
    for cell in store.cells():
        due = writer.due(cell)
        if not due:
            waiting.add(cell.id)  # lacks results: its records are written when it has run
        for run in due:
            expected.add(run.key)
            wrong = _count(run.key, cell.label, len(runs.get(run.key, [])))
            if not wrong and not writer.book.holds(run.key, run.digest, run.parent):
                wrong = [Finding("stale", run.key, f"{cell.label} differs from the store, or is incomplete")]
            found += wrong
    for key in (key for key in runs.keys() - expected if runs[key] and key.partition("/")[0] not in waiting):
        found.append(Finding("orphan", key, f"MLflow has a run {key}, but the study has no such cell"))
    return found


def _count(key: str, what: str, number: int) -> list[Finding]:
    """A finding if there is not exactly one run."""
    if number == 0:
        return [Finding("missing", key, f"{what} is not in MLflow")]
    return [Finding("duplicate", key, f"{what} is in MLflow {number} times")] if number > 1 else []
