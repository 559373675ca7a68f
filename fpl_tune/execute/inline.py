"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from fpl_tune import plugins
from fpl_tune.errors import FplTuneError
from fpl_tune.execute.job import Failure, Job, JobRun, Kind, Setup
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.files import refused
from fpl_tune.trial import Diverged

T = TypeVar("T")


def execute(scheduler: Scheduler, setup: Setup) -> None:
    """Runs all jobs of the scheduler."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        while not scheduler.stopping and (job := scheduler.next_job()) is not None:
            _run(scheduler, job, setup)
    finally:
        torch.set_num_threads(threads)


def _run(scheduler: Scheduler, job: Job, setup: Setup) -> None:
    running = attempt(lambda: JobRun(job, setup))
    if isinstance(running, Failure):
        scheduler.fail(job, running)
        return
    while True:
        rounds = attempt(lambda: running.advance(0.0, lambda: scheduler.stopping))
        for text in running.warnings():
            scheduler.warn(job, text)
        if isinstance(rounds, Failure):
            scheduler.report(job, running.unreported())
            scheduler.fail(job, rounds)
            return
        if not scheduler.report(job, rounds):
            return
        if running.done:
            output = attempt(running.output)
            scheduler.fail(job, output) if isinstance(output, Failure) else scheduler.complete(job, output)
            return
        if scheduler.stopping:
            running.checkpoint()
            for text in running.warnings():
                scheduler.warn(job, text)
            return


def attempt(work: Callable[[], T]) -> T | Failure:
    """What `work` returns, or why it did not: in one line, its kind and its place named where it is not ours."""
    try:
        return work()
    except Exception as problem:
        named = " ".join(str(problem).split()) if isinstance(problem, FplTuneError) else plugins.told(problem)
        return Failure(named, _kind(problem), "".join(traceback.format_exception(problem)))


def _kind(problem: Exception) -> Kind:
    if isinstance(problem, Diverged):
        return "diverged"
    if isinstance(problem, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(problem):
        return "memory"  # without a GPU it is a RuntimeError that names torch's allocator
    return "disk" if refused(problem) else "error"
