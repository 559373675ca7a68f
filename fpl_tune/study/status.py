"""The status of a seed and of a cell."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum


class Status(StrEnum):
    """Status of a seed or a cell, from best to worst. A member equals its string."""

    DONE = "done"
    PARTIAL = "partial"
    """Some seeds of a cell have no result."""
    PENDING = "pending"
    """No seed has a result."""
    PRUNED = "pruned"
    """Stopped after some rounds by the pruner; the rounds that ran count."""
    DIVERGED = "diverged"
    FAILED = "failed"


COUNTED = frozenset({Status.DONE, Status.PRUNED})
"""Statuses of the seeds whose figures enter means."""

FAILURES = frozenset({Status.FAILED, Status.DIVERGED})


def cell_status(seeds: Collection[str], wanted: int) -> Status:
    """Derives a cell's status from its seeds'.

    Args:
        seeds: the status of every seed that has a result.
        wanted: number of seeds of the study.

    Returns:
        The worst status of a seed if one is not done; else done, partial or pending.
    """
    for status in (Status.FAILED, Status.DIVERGED, Status.PRUNED):
        if status in seeds:
            return status
    return Status.DONE if len(seeds) >= wanted else Status.PARTIAL if seeds else Status.PENDING
