"""The node check: a worker on each node reports what the node lacks, before any trial runs."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, FplTuneError
from fpl_tune.core.paths import local
from fpl_tune.execute.gpus import SECONDS, gpus_here
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.study.versions import outdated_ray, versions

if TYPE_CHECKING:  # a worker that only checks its node must not wait for torch
    from fpl_tune.execute.job import ExecutionContext

ANSWER_SECONDS = float(os.environ.get("FPL_TUNE_NODE_SECONDS", "12"))
"""Time limit of the check of a node."""
ABSENT_SECONDS = 60.0
"""Seconds without a node and a report after which a study warns; after twice as long without a report, it ends."""
_SEES_GPUS = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
"""Runtime environment of the check, which reserves no GPU, wherever Ray was started."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """A node of the cluster, as a worker on it reports."""

    name: str
    cpus: float
    gpus: float
    problem: str = ""
    """The reason why it cannot run trials, with the remedy; empty if it can."""
    gpu_bytes: tuple[int, ...] = ()
    """Memory of each GPU in bytes; empty if PyTorch does not answer."""


def probe(
    storage: str, token: str, data_roots: Sequence[str], drivers: Mapping[str, str], gpus: bool
) -> tuple[str, tuple[int, ...]]:
    """Checks the node that it runs on.

    Args:
        storage: folder or fsspec URL that all nodes share.
        token: name of a file that the driver wrote there.
        data_roots: folders of data sets.
        drivers: versions of packages in the driver's process.
        gpus: True if the node has GPUs.

    Returns:
        The reason why the node cannot run trials, empty if it can; and the memory of its GPUs in bytes.
    """
    missing = [root for root in data_roots if not local(root).is_dir()]
    problem = f"has no data.root={missing[0]}. Mount it there" if missing else ""
    try:
        shared = RemoteStorage(storage).holds(token)
    except FplTuneError as failure:
        shared, storage = False, f"{storage} ({getattr(failure, 'strerror', failure)})"
    if not shared:
        problem = f"does not share {storage} with the driver. Mount it there, or name a URL in execution.checkpoints"
    if different := differing(drivers):
        problem = f"has {different}. Install the same versions on all nodes"
    if outdated := outdated_ray(versions()["ray"]):
        problem = outdated
    return problem, tuple(total for total, _ in gpus_here()) if gpus else ()


def differing(drivers: Mapping[str, str]) -> str:
    """The packages whose versions here differ from the driver's, as text."""
    here = versions()
    return ", ".join(f"{k} {here.get(k, 'none')} (driver: {v})" for k, v in drivers.items() if here.get(k) != v)


def check_nodes(storage: str, data_roots: Sequence[str] = ()) -> list[Node]:
    """Runs the check on every alive node, in parallel.

    It takes at most `ANSWER_SECONDS`, or `gpus.SECONDS` more with GPUs, whose PyTorch may be read over a network.

    Raises:
        EnvironmentProblem: the driver itself cannot write the storage.
    """
    remote, token = RemoteStorage(storage), f".nodes-{uuid.uuid4().hex[:12]}"
    try:
        remote.write(token, "")
    except OSError as problem:
        raise EnvironmentProblem(
            f"Checkpoints and results need writable storage, but this machine cannot write to {storage} "
            f"({str(problem.strerror)[:160]}). Name another one in execution.checkpoints or FPL_TUNE_OUTPUT."
        ) from None
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        limit = ANSWER_SECONDS + (SECONDS if any(node["Resources"].get("GPU") for node in alive) else 0.0)
        refs = []
        for node in alive:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, runtime_env=_SEES_GPUS)(probe).options(
                scheduling_strategy=strategy
            )
            refs.append(task.remote(storage, token, data_roots, versions(), bool(node["Resources"].get("GPU"))))
        ray.wait(refs, num_returns=len(refs), timeout=limit)
        left = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # Ray notices late that a node is gone
        return [_node(node, ref, limit) for node, ref in zip(alive, refs, strict=True) if node["NodeID"] in left]
    finally:
        with suppress(Exception):
            remote.drop(token)


def _node(info: dict[str, Any], ref: Any, limit: float) -> Node:
    try:
        problem, gpu_bytes = ray.get(ref, timeout=0)
    except Exception as failure:
        late = isinstance(failure, GetTimeoutError)
        why = f"no worker answered within {limit:.0f} s" if late else " ".join(str(failure).split())[-300:]
        remedy = "Open its ports to this machine, install fpl-tune's requirements there, or take it out"
        problem, gpu_bytes = f"cannot run a worker: {why}. {remedy}", ()
    name, resources = f"{info['NodeManagerHostname']} ({info['NodeManagerAddress']})", info["Resources"]
    return Node(name, resources.get("CPU", 0.0), resources.get("GPU", 0.0), problem, gpu_bytes)


def slots(context: ExecutionContext) -> int:
    """Number of trials that the alive nodes can run in parallel."""
    resources = ray.cluster_resources()
    count = int(resources.get("CPU", 0) // context.threads)
    if context.gpus:
        count = min(count, int(resources.get("GPU", 0) / context.gpus + 1e-6))
    return min(count, context.execution.parallel or count)


class NodeWatch:
    """Warns if a cluster has no node that can run trials, and ends the study if none comes back.

    Args:
        address: the cluster's address.
        clock: returns seconds.
    """

    def __init__(self, address: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._remedy = f"Start nodes with `ray start --address={address}`"
        self._since: float | None = None
        self._warned = False

    def check(self, present: bool, idle: float) -> None:
        """Warns or raises if there has been no node for too long.

        Args:
            present: True if there is a node now.
            idle: seconds since a trial has reported.

        Raises:
            EnvironmentProblem: there has been none for `ABSENT_SECONDS`, and no report for twice as long.
        """
        now = self._clock()
        if present:
            self._since, self._warned = None, False
            return
        self._since = now if self._since is None else self._since
        if now - self._since >= ABSENT_SECONDS and idle >= 2 * ABSENT_SECONDS:
            raise EnvironmentProblem(
                f"No node that can run trials is alive, and no trial has reported for {idle:.0f} s. Finished results "
                f"and checkpoints are stored. {self._remedy}; the same command continues."
            )
        if idle >= ABSENT_SECONDS and not self._warned:
            self._warned = True
            _log.warning(
                "No node that can run trials is alive, and no trial has reported for %.0f s. %s: they get trials as "
                "soon as they have joined. Without any the study ends in a minute.",
                idle,
                self._remedy,
            )


def reject_unfit(nodes: Sequence[Node], cpus: float, gpus: float) -> None:
    """Checks that a cluster can run the study's trials.

    Raises:
        ConfigError: a trial asks for more than any node has.
        EnvironmentProblem: nodes cannot run trials; the message names each with its problem.
    """
    carrying = [node for node in nodes if node.cpus >= cpus and node.gpus >= gpus]
    if not carrying:
        offers = "; ".join(f"{node.name}: {node.cpus:g} CPU, {node.gpus:g} GPU" for node in nodes)
        raise ConfigError(
            f"Each trial asks for {cpus:g} CPU and {gpus:g} GPU, but no node has them. {offers}. Lower "
            "execution.threads or execution.gpus, or add a node."
        )
    if problems := [f"{node.name} {node.problem}" for node in carrying if node.problem]:
        raise EnvironmentProblem(f"Every node must be able to run trials, but {'; '.join(problems)}.")
