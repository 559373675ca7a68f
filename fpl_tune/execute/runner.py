"""Running a study, new or continued, with an executor."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fpl_tune.config import Study
from fpl_tune.core.device import fixed_settings
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.files import no_room, refused
from fpl_tune.core.formatting import counted
from fpl_tune.core.metrics import check_reported
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import ExecutionContext, Interrupted, JobStatus
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.profile import cost_key, earlier_paces
from fpl_tune.execute.resources import setup_of
from fpl_tune.execute.scheduler import Scheduler
from fpl_tune.search import pruning as prune
from fpl_tune.search.ablation import ablation_cells
from fpl_tune.search.search import Search
from fpl_tune.study.cells import expand
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

_PLAN_SECONDS = 10.0  # large towers take longer: their jobs run in the study's order
Executor = Callable[[Scheduler, ExecutionContext], None]
"""Runs the scheduler's jobs until it has no more: `inline.execute` or `ray.execute`."""


def run_study(spec: Study, *, root: Path, executor: Executor, callbacks: Iterable[Callback] = ()) -> Outcome:
    """Runs the missing cells and seeds of a study.

    Args:
        spec: the study.
        root: the output folder; results are written to `root / spec.name`.
        executor: runs the jobs.
        callbacks: receive the study's events.

    Raises:
        ConfigError: the study is wrong, infeasible, or run by another process; nothing was started.
        EnvironmentProblem: the machine lacks something; finished results are stored.
    """
    began = time.monotonic()
    check_reported(spec.report.metric)
    search = Search.plan(spec, preflight.check_of_sizes())
    cells = search.references if search else expand(spec)
    prune.check(spec, search.runs if search else [cell.run for cell in cells if cell.candidate])
    ablated = ablation_cells(spec, root)
    setup = setup_of(spec, root / spec.name)
    with _disk_errors(root / spec.name), locked(root / spec.name):
        store = Store(root, spec.name)
        tried = search.open(store.folder) if search else []
        if search and search.unfinished and spec.ablate:
            raise ConfigError(
                f"ablate=best needs a finished search, but {counted(search.unfinished, 'trial')} of {spec.name} "
                f"{'is' if search.unfinished == 1 else 'are'} left. Run fpl-tune study {spec.name} without it first."
            )
        scheduler = Scheduler(store, spec, search, callbacks, began)
        scheduler.start([*cells, *tried, *ablated])
        if not scheduler.exhausted:
            with _callbacks_ended(scheduler), fixed_settings(setup.threads):
                _check_and_pace(scheduler, setup, root)
            with _signals(scheduler), _callbacks_ended(scheduler):
                executor(scheduler, setup)
        return scheduler.finish()


def _check_and_pace(scheduler: Scheduler, setup: ExecutionContext, root: Path) -> None:
    """Checks that the queued jobs can run. Where they cost differently, the ETA gets their planned paces.

    Side by side, those that take longest start first, unless their order decides what is searched or pruned.

    Raises:
        ConfigError: a job cannot run.
    """
    spec, jobs = scheduler.spec, scheduler.jobs_with(JobStatus.QUEUED)
    loaded = preflight.check(
        [job.cell.run for job in jobs],
        len(spec.seed_list()),
        setup,
        [job.cell.label for job in jobs],
        validated=preflight.reads_validation(spec),
    )
    kinds = {cost_key(job.cell.run) for job in jobs if job.cell.run.learns}
    if len(kinds) == 1 or scheduler.search is not None or scheduler.prune.rule is not None:
        return
    paces, until = earlier_paces(root, spec.name, kinds), time.monotonic() + _PLAN_SECONDS
    for job in jobs:
        if time.monotonic() > until:
            return
        with suppress(Exception):  # a method's own error: the run reports it with its place
            job.pace = paces.get(cost_key(job.cell.run)) or loaded.typical_pace(job.cell.run, setup.device)
    if setup.parallel > 1 or setup.address is not None:
        for job in sorted(jobs, key=lambda job: -(job.pace or 0.0) * job.cell.run.rounds * len(job.seeds)):
            if job.cell.run.learns:
                scheduler.jobs.move_to_end(job.key)


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Reports a full or read-only disk as `EnvironmentProblem`, whichever write met it."""
    try:
        yield
    except OSError as problem:
        if refused(problem):
            raise no_room(f"{problem.strerror}: {problem.filename or folder}") from None
        raise


@contextmanager
def _callbacks_ended(scheduler: Scheduler) -> Iterator[None]:
    """Ends the callbacks if the block raises, so that no record stays open; the block's error comes first."""
    try:
        yield
    except Exception:
        with suppress(Exception):
            scheduler.notify(Callback.on_study_end, scheduler.store, scheduler.outcome())
        raise
    except BaseException:
        scheduler.notify(Callback.on_abort)
        raise


@contextmanager
def _signals(scheduler: Scheduler) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops trials after their round with a checkpoint, the second exits at once.

    The exit code is 128 plus the number of the signal.
    """

    def on_signal(number: int, frame: Any) -> None:
        if scheduler.signal is not None:
            raise Interrupted(128 + number)
        scheduler.signal = number
        scheduler.request_stop()

    mine = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM) if mine}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Callback", "Executor", "Outcome", "run_study"]
