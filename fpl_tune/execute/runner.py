"""Running a study, or what is left of it, in whichever executor."""

from __future__ import annotations

import importlib
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fpl_tune.config import StudySpec
from fpl_tune.execute import preflight
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.resources import seconds_of, setup_of
from fpl_tune.execute.scheduler import Driver
from fpl_tune.files import no_room, refused
from fpl_tune.search import pruning as prune
from fpl_tune.search.objective import check_reported
from fpl_tune.search.search import Search
from fpl_tune.study.cells import expand
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

EXECUTORS = {"inline": "fpl_tune.execute.inline", "ray": "fpl_tune.execute.ray"}


def run_study(spec: StudySpec, node: dict[str, Any], *, root: Path, callbacks: Iterable[Callback] = ()) -> Outcome:
    """Runs what is missing of a study, or continues it.

    Raises:
        ConfigError: nothing was started: the study is wrong, infeasible, or run by another process.
        EnvironmentProblem: the machine lacks something; what was finished by then is stored.
    """
    began = time.monotonic()
    spec.seed_list()
    seconds_of(spec.budget)
    prune.check(spec.prune)
    check_reported(spec.report.metric)
    search = Search.plan(spec, node)
    cells = search.references if search else expand(spec, node)
    setup = setup_of(spec, root / spec.name)
    with _room(root / spec.name), locked(root / spec.name) as killed:
        store = Store(root, spec.name)
        if killed:
            store.sweep()
        driver = Driver(store, spec, search, callbacks, began)
        driver.begin(node, [*cells, *(search.open(store.folder) if search else ())])
        if not driver.exhausted:
            preflight.check([job.cell.run for job in driver.queue])
            with _signals(driver), driver.closing():
                importlib.import_module(EXECUTORS[spec.execution.executor]).execute(driver, setup)
        return driver.end()


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """A disk that takes nothing more is the machine's problem, wherever it shows."""
    try:
        yield
    except OSError as problem:
        if refused(problem):
            raise no_room(f"{problem.strerror}: {problem.filename or folder}") from None
        raise


@contextmanager
def _signals(driver: Driver) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends trials after their round with a checkpoint, the second ends at once.

    Either way the exit code tells which of them it was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: Any) -> None:
        if driver.signal is not None:
            raise SystemExit(128 + number)
        driver.signal = number
        driver.halt()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["EXECUTORS", "Callback", "Outcome", "run_study"]
