"""Running a study, new or continued, with an executor."""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fpl_tune.core.device import fixed_settings
from fpl_tune.core.errors import FplTuneError
from fpl_tune.core.files import no_room, refused
from fpl_tune.execute.asked import Asked
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.decide import rows_of
from fpl_tune.execute.driver import Driver
from fpl_tune.execute.job import ExecutionContext, Interrupted
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.plan.profile import TRIAL_SECONDS, earlier_paces
from fpl_tune.execute.resources import setup_of
from fpl_tune.findings import looks
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.simulation.dummy import cost_key
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

_PLAN_SECONDS = 10.0  # large towers take longer: their jobs run in the study's order
_TWICE = 0.5  # seconds within which a second SIGTERM is the same one
Executor = Callable[[Driver, ExecutionContext], None]
"""Runs the legs that the driver hands out until it has no more: `inline.execute` or `ray.execute`."""


def run_study(
    study: ComposedStudy,
    *,
    root: Path,
    executor: Executor,
    callbacks: Iterable[Callback] = (),
    retry: bool = False,
) -> Outcome:
    """Runs the missing cells and seeds of a study.

    Args:
        study: the study.
        root: the output folder; results are written to `root / spec.name`.
        executor: runs the jobs.
        callbacks: receive the study's events.
        retry: True to run seeds again that diverged; those that failed always run again.

    Raises:
        ConfigError: the study is invalid, infeasible, or run by another process; nothing was started or written.
        EnvironmentProblem: the machine lacks something; finished results are stored.
    """
    began, spec = time.monotonic(), study.spec
    folder = root / spec.name
    setup = setup_of(spec, folder, study.runs)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with _disk_errors(folder), locked(folder), _removed_if_refused(made):
        store = Store(root, spec.name)
        looks.check_declared(spec, store)
        store.check()  # seeds with a damaged file have no result
        driver = Driver(store, Asked(store, study, retry=retry), callbacks, began)
        with fixed_settings(setup.threads):
            _check_and_pace(driver, setup, root)
        with _signals(driver):
            driver.start()
            if not driver.over:
                with fixed_settings(setup.threads), _callbacks_ended(driver):
                    executor(driver, setup)
        return driver.finish()


def _check_and_pace(driver: Driver, setup: ExecutionContext, root: Path) -> None:
    """Checks that queued cells can run, and plans their paces if their costs differ, for the time left.

    With concurrent trials, cells that take longest start first, except in a search, where the order matters.

    Args:
        driver, setup, root: those of the study.

    Raises:
        ConfigError: a cell, or a trial of a search that has none yet, cannot run.
    """
    spec, jobs, searches = driver.spec, driver.queued(), driver.searches
    first = {search.name: search.first for search in searches if not rows_of(driver.table, search)}
    if not jobs and not first:
        return
    runs = [*(job.cell.run for job in jobs), *first.values()]
    labels, validated = [*(job.cell.label for job in jobs), *first], preflight.reads_validation(spec)
    loaded = preflight.check(runs, driver.table.design.most_together(), setup, labels, validated=validated)
    kinds = {cost_key(job.cell.run) for job in jobs if job.cell.run.learns}
    if len(kinds) == 1 or searches:
        return
    paces, until = earlier_paces(root, spec.name, kinds), time.monotonic() + _PLAN_SECONDS
    for job in jobs:
        if time.monotonic() > until:
            return
        with suppress(Exception):  # a method's own error: the run reports it with its place
            pace = paces.get(cost_key(job.cell.run)) or loaded.typical_pace(job.cell.run, setup.device)
            driver.paces[job.cell.id] = pace + TRIAL_SECONDS / (job.cell.rounds * len(job.seeds))
            if setup.parallel > 1 or setup.address is not None:
                driver.order[job.cell.id] = -pace * job.cell.rounds * len(job.seeds)


@contextmanager
def _removed_if_refused(made: Sequence[Path]) -> Iterator[None]:
    """Removes the folders that were made for a new study if it is refused before anything is written to them.

    The study is locked meanwhile: the folder is not that of another start.
    """
    try:
        yield
    except FplTuneError:
        if made and not (made[0] / "study.yaml").exists():
            shutil.rmtree(made[0], ignore_errors=True)
            with suppress(OSError):  # another study has started there meanwhile
                for parent in made[1:]:
                    parent.rmdir()
        raise


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Reports a full or read-only disk as `EnvironmentProblem`, for any write in the block."""
    try:
        yield
    except OSError as problem:
        if refused(problem):
            raise no_room(f"{problem.strerror}: {problem.filename or folder}") from None
        raise


@contextmanager
def _callbacks_ended(driver: Driver) -> Iterator[None]:
    """Ends the callbacks if the block raises, so that no record stays open; the block's error is raised again."""
    try:
        yield
    except Exception:
        with suppress(Exception):
            driver.notify(Callback.on_study_end, driver.store, driver.outcome())
        raise
    except BaseException:
        driver.notify(Callback.on_abort)
        raise


@contextmanager
def _signals(driver: Driver) -> Iterator[None]:
    """Handles SIGINT and SIGTERM: the first stops trials after their round with a checkpoint, the second exits now.

    The exit code is 128 plus the signal's number. `timeout` sends SIGTERM twice, to the process and to its group.
    """
    first = math.inf

    def on_signal(number: int, frame: Any) -> None:
        nonlocal first
        if driver.signal is None:
            driver.signal, first = number, time.monotonic()
            driver.request_stop()
        elif not (number == driver.signal == signal.SIGTERM and time.monotonic() - first < _TWICE):
            raise Interrupted(128 + number)

    mine = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM) if mine}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Callback", "Executor", "Outcome", "run_study"]
