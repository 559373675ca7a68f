"""The node check: a worker on each node reports what the node has, before any trial runs."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.paths import cache_root
from fpl_tune.execute.gpus import SECONDS, gpus_here
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.study.versions import versions

if TYPE_CHECKING:  # a worker that only checks its node must not wait for torch
    from fpl_tune.execute.job import ExecutionContext

ANSWER_SECONDS = float(os.environ.get("FPL_TUNE_NODE_SECONDS", "12"))
"""Time limit of the check of a node."""


@dataclass(frozen=True)
class Facts:
    """The report of a worker about its node."""

    versions: dict[str, str]
    storage: str
    """Empty, or why it cannot be used."""
    cache: str
    cache_free: int
    """Bytes; -1: it cannot be written."""
    missing: tuple[str, ...]
    """Data roots that are not there."""
    gpus: tuple[tuple[int, int], ...] = ()
    """Total and free bytes of each; none where PyTorch does not answer."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    id: str
    name: str
    cpus: float
    gpus: float
    facts: Facts | None
    """None: no worker answered from it."""
    problem: str = ""
    """Why none did."""

    def carries(self, cpus: float, gpus: float) -> bool:
        return self.cpus >= cpus and self.gpus >= gpus


def look(storage: str, token: str, cache_dir: Path, data_roots: Sequence[str], gpus: bool) -> Facts:
    """Runs on a node.

    Args:
        storage: folder or fsspec URL that all nodes share.
        token: name of a folder that the driver made there.
        cache_dir: the driver's feature cache.
        data_roots: folders of data sets.
        gpus: whether the node has GPUs.
    """
    cache, missing = node_cache(cache_dir), _missing(data_roots)
    problem = _storage_problem(storage, token)
    return Facts(versions(), problem, str(cache), _free(cache), missing, gpus_here() if gpus else ())


def _missing(data_roots: Sequence[str]) -> tuple[str, ...]:
    return tuple(root for root in data_roots if not os.path.isdir(os.path.expanduser(root)))


def node_cache(drivers: Path) -> Path:
    """The feature cache of a node: what its own FPL_TUNE_CACHE names, else the driver's path."""
    return cache_root() if os.environ.get("FPL_TUNE_CACHE") else drivers


def unfit(setup: ExecutionContext, drivers: Mapping[str, str]) -> str:
    """Why this node must not run trials, by checks that take no time; empty if none fails.

    Ray may place a trial on a node that has just joined, before the driver has checked the node.
    """
    if setup.address is None:
        return ""
    if different := _differing(versions(), drivers):
        return f"has {different}"
    if setup.execution.checkpoints is None and not os.access(setup.folder, os.W_OK):
        return f"cannot write {setup.folder}"
    return next((f"has no data.root={root}" for root in _missing(setup.data_roots)), "")


def _differing(found: Mapping[str, str], drivers: Mapping[str, str]) -> str:
    return ", ".join(f"{k} {found.get(k, 'none')} (driver: {v})" for k, v in drivers.items() if found.get(k) != v)


def _storage_problem(storage: str, token: str) -> str:
    """Empty where the node sees what the driver wrote, and can write beside it."""
    try:
        place = RemoteStorage(storage)
        if not place.holds(f"{token}/driver"):
            return "does not hold what the driver wrote there: it is not shared with the driver"
        place.write(f"{token}/{uuid.uuid4().hex[:8]}", "")
    except Exception as problem:
        return f"cannot be written ({' '.join(str(problem).split())[:160]})"
    return ""


def _free(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


@contextmanager
def _token(storage: str) -> Iterator[str]:
    """A folder in the storage while nodes look for the driver's file in it.

    Raises:
        EnvironmentProblem: the driver itself cannot write there.
    """
    place, token = RemoteStorage(storage), f".nodes-{uuid.uuid4().hex[:12]}"
    try:
        place.write(f"{token}/driver", token)
    except Exception as problem:
        raise EnvironmentProblem(
            f"Checkpoints and results need storage that can be written, but {storage} cannot from this machine "
            f"({' '.join(str(problem).split())[:160]}). Name another one in execution.checkpoints or FPL_TUNE_OUTPUT."
        ) from None
    try:
        yield token
    finally:
        with suppress(Exception):
            place.drop(token)


def check_nodes(storage: str, cache_dir: Path, data_roots: Sequence[str] = ()) -> list[Node]:
    """Runs the check on every living node, in parallel.

    It takes at most `ANSWER_SECONDS`, on nodes with GPUs `gpus.SECONDS` longer. Nodes that die meanwhile are left out.

    Raises:
        EnvironmentProblem: the driver itself cannot write the storage.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    has_gpus = [bool(info["Resources"].get("GPU")) for info in alive]
    limit = ANSWER_SECONDS + (SECONDS if any(has_gpus) else 0.0)
    with _token(storage) as token:
        task = ray.remote(num_cpus=0, max_retries=0)(look)
        refs = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(info["NodeID"], soft=False)).remote(
                storage, token, cache_dir, tuple(data_roots), gpus
            )
            for info, gpus in zip(alive, has_gpus, strict=True)
        ]
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=limit) if refs else ([], [])
        nodes = [_node(info, ref if ref in ready else None, limit) for info, ref in zip(alive, refs, strict=True)]
    left = {info["NodeID"] for info in ray.nodes() if info["Alive"]}
    return [node for node in nodes if node.id in left or node.facts is not None]


def _node(info: dict[str, Any], ref: Any, limit: float) -> Node:
    name = f"{info['NodeManagerHostname']} ({info['NodeManagerAddress']}, {info['NodeID'][:6]})"
    resources = info["Resources"]
    facts: Any = None
    problem = f"no worker answered within {limit:.0f} s"
    if ref is not None:
        try:
            facts, problem = ray.get(ref), ""
        except Exception as failure:
            problem = " ".join(str(failure).split())[-300:]
    return Node(info["NodeID"], name, resources.get("CPU", 0.0), resources.get("GPU", 0.0), facts, problem)


def slots(context: ExecutionContext, refused: Collection[str] = ()) -> int:
    """Trials that the living nodes can run at once, without the refused nodes."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in refused]
    count = sum(_fitting(node["Resources"], context) for node in nodes)
    return min(count, context.execution.parallel or count)


def _fitting(resources: Mapping[str, float], context: ExecutionContext) -> int:
    by_cpu = int(resources.get("CPU", 0) // context.threads)
    if context.gpus is None:
        return by_cpu if resources.get("GPU") else 0
    return min(by_cpu, int(resources.get("GPU", 0) / context.gpus + 1e-6)) if context.gpus else by_cpu


def findings(nodes: Sequence[Node], storage: str) -> list[tuple[Node, str, str]]:
    """Problems of nodes: node, finding, remedy; the most severe of each node first."""
    here = versions()
    found: list[tuple[Node, str, str]] = []
    for node in nodes:
        facts = node.facts
        if facts is None:
            found.append((node, f"cannot run a worker: {node.problem}", _NO_WORKER))
            continue
        if different := _differing(facts.versions, here):
            found.append((node, f"has {different}", "Install the same versions on all nodes."))
        if facts.storage:
            found.append((node, f"{storage} {facts.storage}", _NOT_SHARED))
        found += [(node, f"data.root={root} is not there", _NO_DATA) for root in facts.missing]
    return found


_NO_WORKER = (
    "Install fpl-tune's requirements there, or take the node out; its logs are in session_latest of Ray's "
    "temporary folder. Where nodes are slow to start: FPL_TUNE_NODE_SECONDS."
)
_NO_DATA = "Mount the data at the same path."
_NOT_SHARED = "Mount the driver's output folder there, or name a URL that all nodes reach: execution.checkpoints=."


def refuse_unfit(nodes: Sequence[Node], storage: str, cpus: float, gpus: float) -> None:
    """Refuses a cluster that cannot do the study's work.

    Raises:
        ConfigError: a trial asks for more than any node has.
        EnvironmentProblem: a node cannot do its part; each is named with what was found.
    """
    if not any(node.carries(cpus, gpus) for node in nodes):
        offers = "; ".join(f"{node.name}: {node.cpus:g} CPU, {node.gpus:g} GPU" for node in nodes)
        raise ConfigError(
            f"Each trial asks for {cpus:g} CPU and {gpus:g} GPU, but no node has them. {offers}. Lower "
            "execution.threads or execution.gpus, or add a node."
        )
    problems = findings([node for node in nodes if node.carries(cpus, gpus)], storage)
    if problems:
        lines = [f"{node.name} {finding}" for node, finding, _ in problems]
        raise EnvironmentProblem(f"Every node must be able to run trials, but {'; '.join(lines)}. {problems[0][2]}")
