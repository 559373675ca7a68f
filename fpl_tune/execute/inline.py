"""Executor `inline`: one job after another in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.driver import Driver
from fpl_tune.execute.job import ExecutionContext, JobRun, Report
from fpl_tune.simulation.simulation import Simulation


def execute(driver: Driver, context: ExecutionContext, *, simulate: Callable[..., Simulation] | None = None) -> None:
    """Runs the legs of a study; `simulate` makes their simulations, see `JobRun`."""

    def encoding(done: int, total: int, pool: str) -> None:
        driver.notify(Callback.on_setup, f"encoding {pool}: {done:,} of {total:,} images")

    simulate = simulate or partial(Simulation, progress=encoding)
    while (job := driver.next_leg()) is not None:
        run, goes_on = JobRun(job, context, simulate=simulate), True
        while goes_on:
            report = run.step(0.0, lambda: driver.stopping)
            goes_on = driver.receive(job, report)
            if report.failure is not None and report.failure.kind == "died":
                raise EnvironmentProblem(
                    f"the CUDA context is lost ({report.failure.error}); every later trial of this process would fail. "
                    "Run the same command to continue."
                )
            if goes_on and driver.stopping:  # since the round's events
                run.checkpoint()
                driver.receive(job, Report([], warnings=run.warnings(), last=False))
                return
