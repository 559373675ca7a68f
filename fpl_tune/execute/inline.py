"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.job import Assignment, ExecutionContext, Job, JobRun, JobStatus
from fpl_tune.execute.scheduler import Scheduler


def execute(scheduler: Scheduler, context: ExecutionContext) -> None:
    """Runs the jobs of the scheduler."""
    while (job := scheduler.next_job()) is not None:
        _run(scheduler, job, context)


def run_first(scheduler: Scheduler, context: ExecutionContext) -> None:
    """Runs the zero-shot cells at the head of the queue where that takes a second: results before Ray has started.

    The image features that they leave in the cache are those of the other cells.
    """
    while context.address is None and context.device == "cpu" and (queued := scheduler.jobs_with(JobStatus.QUEUED)):
        run = queued[0].cell.run
        if run.learns or run.clip.name != "compact" or (job := scheduler.next_job()) is None:
            return
        _run(scheduler, job, context)


def _run(scheduler: Scheduler, job: Job, context: ExecutionContext) -> None:
    run = JobRun(Assignment.of(job, context))
    while True:
        report = run.step(0.0, lambda: scheduler.stopping)
        goes_on = scheduler.receive(job, report)
        if report.failure is not None and report.failure.kind == "died":
            raise EnvironmentProblem(
                f"the CUDA context is lost ({report.failure.error}); every later trial of this process would fail. "
                "Run the same command to continue."
            )
        if goes_on and scheduler.stopping:  # since the round's events
            run.checkpoint()
            for text in run.warnings():
                scheduler.warn(job, text)
            return
        if not goes_on:
            return
