"""The status of a seed's result. The state of its cell is in `study.standing`."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The status of a seed's result. A member equals its string."""

    DONE = "done"
    """All rounds were run."""
    PARTIAL = "partial"
    """Rounds up to a rung were run, where the trial is paused or was pruned."""
    DIVERGED = "diverged"
    FAILED = "failed"


FAILURES = frozenset({Status.DIVERGED, Status.FAILED})
