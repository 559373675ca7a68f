"""A simulated executor: several workers in one process, whose reports come in an order that a seed gives."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from standin import ASIDE, StandIn

from fpl_tune.execute.driver import Driver
from fpl_tune.execute.job import ExecutionContext, Failure, JobRun, Report


def execute(driver: Driver, context: ExecutionContext, *, workers: int, order: int, deaths: float = 0.0) -> None:
    """Runs the legs that a driver hands out with some workers at a time.

    Args:
        driver: of the study.
        context: of its jobs.
        workers: jobs that run side by side.
        order: seeds the order in which workers start jobs and report.
        deaths: probability that a worker dies instead of reporting.
    """
    draw, running = random.Random(order), list[Any]()
    while True:
        late = bool(running) and draw.random() < 0.3  # a worker may come late
        if len(running) < workers and not late and (job := driver.next_leg()) is not None:
            running.append((job, JobRun(job, context, simulate=StandIn)))  # pyright: ignore[reportArgumentType]
            continue
        if not running:
            return
        at = draw.randrange(len(running))
        job, run = running[at]
        if draw.random() < deaths:
            with Path(os.environ[ASIDE], "deaths").open("a") as log:
                log.write(".")
            report = Report([], failure=Failure("the process of the trial died", "died"))
        else:
            report = run.step(draw.choice([0.0, 1e9]), lambda: driver.stopping)  # one round, or all up to a rung
        goes_on = driver.receive(job, report)
        if goes_on and driver.stopping:
            run.checkpoint()
            driver.receive(job, Report([], warnings=run.warnings(), last=False))
            goes_on = False
        if not goes_on:
            del running[at]
