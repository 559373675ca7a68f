"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fpl_tune.config import RunSpec
from fpl_tune.errors import EnvironmentProblem
from fpl_tune.execute.job import Job, JobRun, Setup
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.execute.step import Failure, attempt, step


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
        report = step(running, 0.0, lambda: scheduler.stopping)
        for text in report.warnings:
            scheduler.warn(job, text)
        if not scheduler.report(job, report.rounds):
            return
        if report.failure is not None:
            _fail(scheduler, job, report.failure)
            return
        if report.output is not None:
            scheduler.complete(job, report.output)
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
