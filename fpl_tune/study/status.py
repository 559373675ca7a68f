"""The status of a seed's result. That of a trial, to which seeds belong, is in `study.trial`."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How far a seed came. A member equals its string."""

    DONE = "done"
    """It ran all rounds."""
    PARTIAL = "partial"
    """It ran up to a rung, where its trial waits or ended, or up to the round at which a pruner stopped it."""
    DIVERGED = "diverged"
    FAILED = "failed"


FAILURES = frozenset({Status.DIVERGED, Status.FAILED})
