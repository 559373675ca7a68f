"""Executor `inline`: one job after the other in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from fpl_tune.errors import FplTuneError
from fpl_tune.study.job import Desk, Failure, Job, Running, Setup
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
    while not isinstance(running, Failure):
        rounds = attempt(lambda: running.advance(0.0, lambda: desk.stopping))
        if isinstance(rounds, Failure):
            desk.heard(job, running.untold())
            return desk.failed(job, rounds)
        if not desk.heard(job, rounds):
            return None
        if running.done:
            product = attempt(running.product)
            return desk.failed(job, product) if isinstance(product, Failure) else desk.finished(job, product)
        if desk.stopping:
            return running.checkpoint()
    return desk.failed(job, running)


def attempt(work: Callable[[], T]) -> T | Failure:
    """What `work` returns, or why it did not: the message in one line, its kind named where it is not ours."""
    try:
        return work()
    except Exception as problem:
        text = " ".join(str(problem).split())
        return Failure(
            text if isinstance(problem, FplTuneError) else f"{type(problem).__name__}: {text}",
            diverged=isinstance(problem, Diverged),
        )
