"""A step of a job, as every executor runs it: some rounds, the job's output, or its failure."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from fpl_tune import plugins
from fpl_tune.device import is_out_of_memory, is_poisoned
from fpl_tune.divergence import Diverged
from fpl_tune.errors import FplTuneError
from fpl_tune.execute.job import JobOutput, JobRun
from fpl_tune.files import refused
from fpl_tune.trial import Record

T = TypeVar("T")
Kind = Literal["error", "diverged", "memory", "died", "disk"]


@dataclass(frozen=True)
class Failure:
    """Why a job ended early."""

    error: str
    kind: Kind = "error"
    """error: an exception; diverged: NaN or inf; memory: out of memory; died: the process ended; disk: a full or
    read-only disk."""
    trace: str = ""
    """The traceback."""


@dataclass(frozen=True)
class Report:
    """The report of a step."""

    rounds: list[list[Record]]
    """Records by round, one per seed in each; none was reported before."""
    output: JobOutput | None = None
    failure: Failure | None = None
    warnings: list[str] = field(default_factory=list)
    last: bool = True
    """No step follows."""
    peak_device_bytes: int = 0
    """Largest GPU memory so far; 0 where it is not known."""
    declined: tuple[str, str] | None = None
    """Id of the node and why it cannot run trials; nothing was done."""


def step(run: JobRun, seconds: float, stopping: Callable[[], bool]) -> Report:
    """Runs rounds of a job until `seconds` have passed, at least one. Failures are reported, not raised.

    Args:
        run: the job.
        seconds: time after which no further round starts.
        stopping: whether to stop after this round with a checkpoint.
    """
    stopped = False

    def ask() -> bool:
        nonlocal stopped
        stopped = stopping()
        return stopped

    rounds = attempt(lambda: run.advance(seconds, ask))
    if isinstance(rounds, Failure):
        return Report(run.unreported(), failure=rounds, warnings=run.warnings())
    if not run.done:
        return Report(rounds, warnings=run.warnings(), last=stopped)
    output = attempt(run.output)
    if isinstance(output, Failure):
        return Report(rounds, failure=output, warnings=run.warnings())
    return Report(rounds, output=output, warnings=run.warnings())


def attempt(work: Callable[[], T]) -> T | Failure:
    """Returns what `work` returns, or the `Failure` of what it raises: one line, with the place of a plug-in."""
    try:
        return work()
    except Exception as problem:
        named = " ".join(str(problem).split()) if isinstance(problem, FplTuneError) else plugins.told(problem)
        return Failure(named, _kind(problem), "".join(traceback.format_exception(problem)))


def _kind(problem: Exception) -> Kind:
    if isinstance(problem, Diverged):
        return "diverged"
    if is_poisoned(problem):
        return "died"
    if is_out_of_memory(problem):
        return "memory"
    return "disk" if refused(problem) else "error"
