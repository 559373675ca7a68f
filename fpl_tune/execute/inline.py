"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.job import ExecutionContext, JobRun
from fpl_tune.execute.scheduler import Scheduler


def execute(scheduler: Scheduler, setup: ExecutionContext, going: Callable[[], bool] = lambda: True) -> None:
    """Runs the jobs of the scheduler, as long as `going`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        while not scheduler.stopping and going() and (job := scheduler.next_job()) is not None:
            _run(scheduler, JobRun(job, setup))
    finally:
        torch.set_num_threads(threads)


def run_first(scheduler: Scheduler, setup: ExecutionContext) -> None:
    """Runs the zero-shot cells at the head of the queue where that takes a second: results before Ray has started.

    The image features that they leave in the cache are those of the other cells.
    """

    def takes_a_second() -> bool:
        run = scheduler.queue[0].cell.run if scheduler.queue else None
        return run is not None and run.clip.name == "compact" and not run.learns

    if setup.address is None and setup.device == "cpu":
        execute(scheduler, setup, takes_a_second)


def _run(scheduler: Scheduler, run: JobRun) -> None:
    while True:
        report = run.step(0.0, lambda: scheduler.stopping)
        goes_on = scheduler.receive(run.job, report)
        if report.failure is not None and report.failure.kind == "died":
            raise EnvironmentProblem(
                f"the CUDA context is lost ({report.failure.error}); every later trial of this process would fail. "
                "Run the same command to continue."
            )
        if goes_on and scheduler.stopping:  # since the round's events
            run.checkpoint()
            for text in run.warnings():
                scheduler.warn(run.job, text)
            return
        if not goes_on:
            return
