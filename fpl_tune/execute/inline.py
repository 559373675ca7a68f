"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from fpl_tune import plugins
from fpl_tune.errors import FplTuneError
from fpl_tune.execute.job import Desk, Failure, Job, Kind, Running, Setup
from fpl_tune.files import refused
from fpl_tune.trial import Diverged

T = TypeVar("T")


def execute(desk: Desk, setup: Setup) -> None:
    """Runs all jobs of the desk."""
    threads = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        while not desk.stopping and (job := desk.next()) is not None:
            _run(desk, job, setup)
    finally:
        torch.set_num_threads(threads)


def _run(desk: Desk, job: Job, setup: Setup) -> None:
    running = attempt(lambda: Running(job, setup))
    if isinstance(running, Failure):
        desk.failed(job, running)
        return
    while True:
        rounds = attempt(lambda: running.advance(0.0, lambda: desk.stopping))
        for text in running.warnings():
            desk.warn(job, text)
        if isinstance(rounds, Failure):
            desk.heard(job, running.untold())
            desk.failed(job, rounds)
            return
        if not desk.heard(job, rounds):
            return
        if running.done:
            product = attempt(running.product)
            desk.failed(job, product) if isinstance(product, Failure) else desk.finished(job, product)
            return
        if desk.stopping:
            running.checkpoint()
            for text in running.warnings():
                desk.warn(job, text)
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
