"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from fpl_tune import plugins
from fpl_tune.config import RunSpec
from fpl_tune.device import is_out_of_memory, is_poisoned
from fpl_tune.divergence import Diverged
from fpl_tune.errors import EnvironmentProblem, FplTuneError
from fpl_tune.execute.job import Failure, Job, JobRun, Kind, Setup
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.files import refused

T = TypeVar("T")


def execute(scheduler: Scheduler, setup: Setup) -> None:
    """Runs all jobs of the scheduler."""
    _run_while(lambda: True, scheduler, setup)


def run_first(scheduler: Scheduler, setup: Setup) -> None:
    """Runs the zero-shot cells at the head of the queue where that takes a second: results before Ray has started.

    The image features that they leave in the cache are those of the other cells.
    """
    if setup.address is None and setup.device == "cpu":
        queue = scheduler.queue
        _run_while(lambda: bool(queue) and _takes_a_second(queue[0].cell.run), scheduler, setup)


def _takes_a_second(run: RunSpec) -> bool:
    return run.clip.name == "compact" and not run.learns


def _run_while(going: Callable[[], bool], scheduler: Scheduler, setup: Setup) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        while not scheduler.stopping and going() and (job := scheduler.next_job()) is not None:
            _run(scheduler, job, setup)
    finally:
        torch.set_num_threads(threads)


def _run(scheduler: Scheduler, job: Job, setup: Setup) -> None:
    running = attempt(lambda: JobRun(job, setup))
    if isinstance(running, Failure):
        _fail(scheduler, job, running)
        return
    while True:
        rounds = attempt(lambda: running.advance(0.0, lambda: scheduler.stopping))
        for text in running.warnings():
            scheduler.warn(job, text)
        if isinstance(rounds, Failure):
            scheduler.report(job, running.unreported())
            _fail(scheduler, job, rounds)
            return
        if not scheduler.report(job, rounds):
            return
        if running.done:
            output = attempt(running.output)
            _fail(scheduler, job, output) if isinstance(output, Failure) else scheduler.complete(job, output)
            return
        if scheduler.stopping:
            running.checkpoint()
            for text in running.warnings():
                scheduler.warn(job, text)
            return


def _fail(scheduler: Scheduler, job: Job, failure: Failure) -> None:
    scheduler.fail(job, failure)
    if failure.kind == "died":
        raise EnvironmentProblem(
            f"the CUDA context is lost ({failure.error}); every later trial of this process would fail. Run the same "
            "command to continue."
        )


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
