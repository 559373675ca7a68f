"""The status of a seed's result. The state of a cell, to which seeds belong, is in `study.standing`."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How far a seed came. A member equals its string."""

    DONE = "done"
    """It ran all rounds."""
    PARTIAL = "partial"
    """It ran up to a rung, where its trial is paused or was pruned."""
    DIVERGED = "diverged"
    FAILED = "failed"


FAILURES = frozenset({Status.DIVERGED, Status.FAILED})
