"""Executor `ray`: jobs as Ray Tune trials on actors that are reused. The only package that imports Ray.

Tune asks a searcher for jobs and passes results to a Tune scheduler; both call the driver. Checkpoints and prompts are
in the study's folder, or at a URL, which all nodes of a cluster share. Ray is imported inside functions: commands that
do not need it must not wait for it, and a worker that checks its node must not wait for torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpl_tune.execute.driver import Driver
    from fpl_tune.execute.job import ExecutionContext
    from fpl_tune.execute.ray.nodes import Node


def execute(driver: Driver, setup: ExecutionContext) -> None:
    """Runs all legs of the study.

    Raises:
        EnvironmentProblem: Ray cannot be started or reached, or a node cannot run trials.
        ConfigError: a trial asks for more than any node has.
    """
    if setup.address is None:  # makes Ray, which reads it when it is imported, listen at 127.0.0.1 only
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from fpl_tune.execute.callback import Callback

    starting = "starting Ray" if setup.address is None else f"joining the Ray cluster at {setup.address}"
    driver.notify(Callback.on_setup, starting)
    from fpl_tune.execute.ray.executor import run

    if not driver.stopping:  # Ctrl-C during the import, which takes a second
        run(driver, setup)


def alive(address: str) -> int:
    """Number of alive nodes of a cluster.

    Raises:
        EnvironmentProblem: it does not answer.
    """
    import ray

    from fpl_tune.execute.ray.connect import connected

    with connected(address, ship=False):
        return sum(node["Alive"] for node in ray.nodes())


def inspect(address: str, storage: str, data_roots: Sequence[str]) -> list[Node]:
    """The alive nodes of a cluster, each with the reason why it cannot run trials, if there is one.

    Raises:
        EnvironmentProblem: it does not answer, or this machine cannot write the storage.
    """
    from fpl_tune.execute.ray.connect import connected
    from fpl_tune.execute.ray.nodes import check_nodes

    with connected(address):
        return check_nodes(storage, data_roots)
