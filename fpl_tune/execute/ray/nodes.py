"""The node check: a worker on each node reports what the node has, before any trial runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import fpl_tune
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.execute.remote import RemoteStorage
from fpl_tune.paths import cache_root
from fpl_tune.study.versions import versions

if TYPE_CHECKING:  # a worker that only checks its node must not wait for torch
    from fpl_tune.execute.job import Setup
    from fpl_tune.execute.packing import Slice

ANSWER_SECONDS = float(os.environ.get("FPL_TUNE_NODE_SECONDS", "12"))
"""Time limit of the check of a node."""
_GPU_SECONDS = 60.0  # of one with GPUs, where PyTorch is imported
_GPUS = "import json; from fpl_tune.device import gpus; print(json.dumps([(gpu.total, gpu.free) for gpu in gpus()]))"


@dataclass(frozen=True)
class Wanted:
    """What the check of a node looks for."""

    storage: str
    """Folder or fsspec URL that all nodes share."""
    token: str
    """Name of a file that the driver wrote there, and what it holds."""
    cache_dir: str
    data_roots: tuple[str, ...] = ()
    gpus: bool = False
    """The node has GPUs."""


@dataclass(frozen=True)
class Facts:
    """The report of a worker about its node."""

    versions: dict[str, str]
    storage: str
    """Empty, or why it cannot be used."""
    cache: str
    cache_free: int
    """Bytes; -1: it cannot be written."""
    gpus: tuple[tuple[int, int], ...]
    """Total and free bytes of each."""
    missing: tuple[str, ...]
    """Data roots that are not there."""


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

    def offers(self) -> str:
        return f"{self.name}: {self.cpus:g} CPU, {self.gpus:g} GPU"


def look(wanted: Wanted) -> Facts:
    """Runs on a node."""
    cache = node_cache(Path(wanted.cache_dir))
    return Facts(
        versions(),
        _storage_problem(wanted),
        str(cache),
        _free(cache),
        gpus_here() if wanted.gpus else (),
        tuple(root for root in wanted.data_roots if not os.path.isdir(os.path.expanduser(root))),
    )


def node_cache(drivers: Path) -> Path:
    """The feature cache of a node: what its own FPL_TUNE_CACHE names, else the driver's path."""
    return cache_root() if os.environ.get("FPL_TUNE_CACHE") else drivers


def unfit(setup: Setup, drivers: Mapping[str, str]) -> str:
    """Why this node must not run trials, by what a trial can see at no cost; empty where nothing is wrong.

    A node that joins may be given one before the driver has asked it.
    """
    if setup.address is None:
        return ""
    if different := _differing(versions(), drivers):
        return f"has {different}"
    if setup.checkpoints is None and not os.access(setup.folder, os.W_OK):
        return f"cannot write {setup.folder}"
    return next(
        (f"has no data.root={root}" for root in setup.data_roots if not os.path.isdir(os.path.expanduser(root))), ""
    )


def _differing(found: Mapping[str, str], drivers: Mapping[str, str]) -> str:
    return ", ".join(f"{k} {found.get(k, 'none')} (driver: {v})" for k, v in drivers.items() if found.get(k) != v)


def _storage_problem(wanted: Wanted) -> str:
    """Empty where the node sees what the driver wrote, and can write beside it."""
    try:
        place = RemoteStorage(wanted.storage)
        if place.read(f".{wanted.token}") != wanted.token:
            return "holds another file than the driver wrote"
        place.write(f".{wanted.token}-{uuid.uuid4().hex[:8]}", "")
    except FileNotFoundError:
        return "does not hold what the driver wrote there: it is not shared with the driver"
    except Exception as problem:
        return f"cannot be written ({' '.join(str(problem).split())[:160]})"
    return ""


def _free(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-{uuid.uuid4().hex[:8]}"
        probe.touch()
        probe.unlink()
        return shutil.disk_usage(folder).free
    except OSError:
        return -1


def gpus_here() -> tuple[tuple[int, int], ...]:
    """Total and free bytes of each GPU that PyTorch sees here; asked in a child, as asking opens a CUDA context."""
    package = str(Path(fpl_tune.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [sys.executable, "-c", _GPUS],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=max(_GPU_SECONDS, ANSWER_SECONDS),
            check=True,
        )
        return tuple((int(total), int(free)) for total, free in json.loads(done.stdout))
    return ()


def slices(nodes: Sequence[Node]) -> list[Slice]:
    """The GPUs of nodes."""
    from fpl_tune.execute.packing import Slice

    return [Slice(node.id, total, free) for node in nodes if node.facts for total, free in node.facts.gpus]


@contextmanager
def _token(storage: str) -> Iterator[str]:
    """A file in the storage while nodes look for it.

    Raises:
        EnvironmentProblem: the driver itself cannot write there.
    """
    place, token = RemoteStorage(storage), f"nodes-{uuid.uuid4().hex[:12]}"
    try:
        place.write(f".{token}", token)
    except Exception as problem:
        raise EnvironmentProblem(
            f"Checkpoints and results need storage that can be written, but {storage} cannot from this machine "
            f"({' '.join(str(problem).split())[:160]}). Name another one in execution.checkpoints or FPL_TUNE_OUTPUT."
        ) from None
    try:
        yield token
    finally:
        with suppress(Exception):
            for path in place.fs.glob(place.at(f".{token}*")):
                place.fs.rm(path)


def survey(
    storage: str, cache_dir: Path, data_roots: Sequence[str] = (), only: Collection[str] | None = None
) -> list[Node]:
    """Runs the check on every living node, or on those of `only`, in parallel; takes at most `ANSWER_SECONDS`.

    Nodes that die meanwhile are left out.

    Raises:
        EnvironmentProblem: the driver itself cannot write the storage.
    """
    alive = [node for node in _alive() if only is None or node["NodeID"] in only]
    with _token(storage) as token:
        wanted = Wanted(storage, token, str(cache_dir), tuple(data_roots))
        remote = ray.remote(num_cpus=0, max_retries=0)(look)
        refs = [
            remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                replace(wanted, gpus=bool(node["Resources"].get("GPU")))
            )
            for node in alive
        ]
        gpus = any(node["Resources"].get("GPU") for node in alive)
        limit = max(ANSWER_SECONDS, _GPU_SECONDS) if gpus else ANSWER_SECONDS
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=limit)
        nodes = {
            info["NodeID"]: _node(info, ref if ref in ready else None) for info, ref in zip(alive, refs, strict=True)
        }
        left = {info["NodeID"] for info in _alive()}
        return [node for name, node in nodes.items() if name in left or node.facts is not None]


def storage_of(setup: Setup) -> str:
    """The folder or URL that all nodes must share."""
    return setup.checkpoints or str(setup.folder)


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _node(info: dict[str, Any], ref: Any) -> Node:
    name = f"{info['NodeManagerHostname']} ({info['NodeManagerAddress']}, {info['NodeID'][:6]})"
    resources = info["Resources"]
    facts: Any = None
    problem = f"no worker answered within {ANSWER_SECONDS:.0f} s"
    if ref is not None:
        try:
            facts, problem = ray.get(ref), ""
        except Exception as failure:
            problem = " ".join(str(failure).split())[-300:]
    return Node(info["NodeID"], name, resources.get("CPU", 0.0), resources.get("GPU", 0.0), facts, problem)


def findings(nodes: Sequence[Node], storage: str) -> list[tuple[Node, str, str]]:
    """Problems of nodes: node, finding, remedy; the gravest first."""
    here = versions()
    found: list[tuple[Node, str, str]] = []
    for node in nodes:
        facts = node.facts
        if facts is None:
            remedy = (
                "Install fpl-tune's requirements there, or take the node out; its logs are in session_latest of Ray's "
                "temporary folder. Where nodes are slow to start: FPL_TUNE_NODE_SECONDS."
            )
            found.append((node, f"cannot run a worker: {node.problem}", remedy))
            continue
        if different := _differing(facts.versions, here):
            found.append((node, f"has {different}", "Install the same versions on all nodes."))
        if facts.storage:
            remedy = (
                "Mount the driver's output folder there, or name a URL that all nodes reach: execution.checkpoints=."
            )
            found.append((node, f"{storage} {facts.storage}", remedy))
        found += [
            (node, f"data.root={root} is not there", "Mount the data at the same path.") for root in facts.missing
        ]
    return found


def check(nodes: Sequence[Node], storage: str, cpus: float, gpus: float) -> None:
    """Refuses a cluster that cannot do the study's work.

    Raises:
        ConfigError: a trial asks for more than any node has.
        EnvironmentProblem: a node cannot do its part; each is named with what was found.
    """
    if not any(node.carries(cpus, gpus) for node in nodes):
        raise ConfigError(
            f"Each trial asks for {cpus:g} CPU and {gpus:g} GPU, but no node has them. "
            f"{'; '.join(node.offers() for node in nodes)}. Lower execution.threads or execution.gpus, or add a node."
        )
    problems = findings([node for node in nodes if node.carries(cpus, gpus)], storage)
    if problems:
        lines = [f"{node.name} {finding}" for node, finding, _ in problems]
        raise EnvironmentProblem(f"Every node must be able to run trials, but {'; '.join(lines)}. {problems[0][2]}")
