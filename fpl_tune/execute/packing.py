"""Packing of trials on GPUs, by the peak memory of the first trial of each kind.

The policy knows GPUs by their size only, so that it is the same for real and for simulated ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fpl_tune.core.files import digest, write_text
from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import cost_key

CONTEXT_BYTES = 600 << 20
"""GPU memory of a process besides its tensors: the CUDA context and its libraries."""
SLACK = 1.15
"""Share of a GPU per measured peak."""
SMALLEST = 0.05
PATIENCE = 8
"""Number of jobs that may be placed before the one that has waited longest."""


def kind_of(job: Job) -> str:
    """Key of jobs that take the same memory: method, sizes, data, and the number of seeds trained together."""
    return digest(f"{cost_key(job.cell.run)} x {len(job.seeds)}", 10)


class Slice(NamedTuple):
    """A GPU that trials may use."""

    node: str
    """Id of its node; empty on this machine."""
    total: int
    """Bytes."""
    free: int
    """Bytes that no other program holds."""


class Placement(NamedTuple):
    """A job, the share of a GPU that it gets, and the GPU's node."""

    job: Job
    share: float
    node: str


@dataclass
class _Node:
    """The GPUs of a node. Ray chooses the GPU within a node, so they count as its smallest."""

    size: int
    """Bytes of a GPU."""
    capacity: float
    """Share of a GPU that no other program holds."""
    free: list[float]
    """Share that is free, by GPU."""


class Packing:
    """Places jobs on GPUs. A share is of a GPU's total memory.

    Args:
        slices: the GPUs.
        cache: folder of the measured peaks, which are kept for the next study.
    """

    def __init__(self, slices: Sequence[Slice], cache: Path) -> None:
        self._path = cache / "gpu-memory.json"
        self.peaks: dict[str, int] = {}
        """Largest measured bytes by kind of job."""
        with suppress(OSError, ValueError, AttributeError):
            self.peaks = {str(kind): int(peak) for kind, peak in json.loads(self._path.read_text()).items()}
        self._nodes: dict[str, _Node] = {}
        self._placed: dict[int, tuple[str, int, float, str]] = {}
        self._passed: dict[int, int] = {}
        self.add(slices)

    def add(self, slices: Sequence[Slice]) -> None:
        """Adds the GPUs of nodes that have joined."""
        for node in {gpu.node for gpu in slices}:
            own = [gpu for gpu in slices if gpu.node == node]
            capacity = math.floor(100 * min(gpu.free / gpu.total for gpu in own)) / 100
            self._nodes[node] = _Node(min(gpu.total for gpu in own), capacity, [capacity] * len(own))

    def keep(self, nodes: Collection[str]) -> None:
        """Removes the GPUs of all other nodes, which are lost."""
        self._nodes = {node: gpus for node, gpus in self._nodes.items() if node in nodes}

    @property
    def nodes(self) -> set[str]:
        return set(self._nodes)

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return sum(len(gpus.free) for gpus in self._nodes.values())

    def share(self, job: Job, node: str) -> float:
        """Share of a GPU of a node: by the measured peak of the job's kind, or all that is free.

        A job gets all that is free to be measured, or to run alone after an out-of-memory error.
        """
        peak, gpus = self.peaks.get(kind_of(job)), self._nodes[node]
        if job.alone or peak is None:
            return gpus.capacity
        part = (SLACK * peak + CONTEXT_BYTES) / gpus.size
        return min(gpus.capacity, max(SMALLEST, math.ceil(100 * part) / 100))

    def place(self, waiting: Sequence[Job]) -> Placement | None:
        """The job that goes next, its share and its node; None if none fits now.

        The largest that fits goes first, to the fullest GPU that takes it, so that small jobs fill what large ones
        leave. While a kind is being measured its other jobs wait.
        """
        if not self._nodes:
            return None
        measuring = {kind for *_, kind in self._placed.values() if kind not in self.peaks}
        candidates = [job for job in waiting if job.alone or kind_of(job) not in measuring]
        if candidates and self._passed.get(id(candidates[0]), 0) >= PATIENCE:
            candidates = candidates[:1]
        for job in sorted(candidates, key=lambda job: max(self.share(job, node) for node in self._nodes), reverse=True):
            fitting = [
                (free, node, i, share)
                for node, gpus in self._nodes.items()
                for share in [self.share(job, node)]
                for i, free in enumerate(gpus.free)
                if free >= share - 1e-9 and free > 0
            ]
            if fitting:
                _, node, i, share = min(fitting)
                self._nodes[node].free[i] -= share
                self._placed[id(job)] = (node, i, share, kind_of(job))
                self._passed.pop(id(job), None)
                if job is not candidates[0]:
                    self._passed[id(candidates[0])] = self._passed.get(id(candidates[0]), 0) + 1
                return Placement(job, share, node)
        return None

    def measured(self, job: Job, peak: int) -> None:
        """Bytes of a running job so far; from its second round on other jobs of its kind can be placed by them."""
        kind = kind_of(job)
        if peak > self.peaks.get(kind, 0):
            self.peaks[kind] = peak
            with suppress(OSError):  # else it is measured again
                write_text(self._path, json.dumps(self.peaks, indent=0))

    def ended(self, job: Job) -> None:
        """A placed job has ended."""
        node, i, share, _ = self._placed.pop(id(job))
        if node in self._nodes:
            self._nodes[node].free[i] += share
