"""Packing of trials on GPUs, by the peak memory of the first trial of each kind.

The policy knows GPUs by their size only, so that it is the same for real and for simulated ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import cost_key
from fpl_tune.files import digest, write_text

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


@dataclass
class Memory:
    """Measured peaks by kind, kept in the cache folder for the next study."""

    path: Path
    peaks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Memory:
        memory = cls(folder / "gpu-memory.json")
        with suppress(OSError, ValueError, AttributeError):
            read = json.loads(memory.path.read_text())
            memory.peaks = {str(k): int(v) for k, v in read.items()}
        return memory

    def note(self, kind: str, peak: int) -> None:
        if peak > self.peaks.get(kind, 0):
            self.peaks[kind] = peak
            with suppress(OSError):  # else it is measured again
                write_text(self.path, json.dumps(self.peaks, indent=0))


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


class Packing:
    """Places jobs on GPUs.

    A share is of a GPU's total memory. Ray chooses the GPU within a node, so the GPUs of a node count as its smallest;
    nodes differ.

    Args:
        slices: the GPUs.
        memory: peaks measured before.
    """

    def __init__(self, slices: Sequence[Slice], memory: Memory) -> None:
        self.memory = memory
        self._size: dict[str, int] = {}
        self._capacity: dict[str, float] = {}
        self._free: dict[str, list[float]] = {}
        self._placed: dict[int, tuple[str, int, float, str]] = {}
        self._passed: dict[int, int] = {}
        self.add(slices)

    def add(self, slices: Sequence[Slice]) -> None:
        """Adds the GPUs of nodes that have joined."""
        for node in {gpu.node for gpu in slices}:
            own = [gpu for gpu in slices if gpu.node == node]
            self._size[node] = min(gpu.total for gpu in own)
            self._capacity[node] = math.floor(100 * min(gpu.free / gpu.total for gpu in own)) / 100
            self._free[node] = [self._capacity[node]] * len(own)

    def keep(self, nodes: Collection[str]) -> None:
        """Removes the GPUs of all other nodes, which are lost."""
        for node in self._free.keys() - set(nodes):
            del self._free[node], self._size[node], self._capacity[node]

    @property
    def nodes(self) -> set[str]:
        return set(self._free)

    @property
    def count(self) -> int:
        """Number of GPUs."""
        return sum(map(len, self._free.values()))

    def share(self, job: Job, node: str) -> float:
        """Share of a GPU of a node: by the measured peak of the job's kind, or all that is free.

        A job gets all that is free to be measured, or to run alone after an out-of-memory error.
        """
        peak = self.memory.peaks.get(kind_of(job))
        if job.alone or peak is None:
            return self._capacity[node]
        part = (SLACK * peak + CONTEXT_BYTES) / self._size[node]
        return min(self._capacity[node], max(SMALLEST, math.ceil(100 * part) / 100))

    def place(self, waiting: Sequence[Job]) -> Placement | None:
        """The job that goes next, its share and its node; None if none fits now.

        The largest that fits goes first, to the fullest GPU that takes it, so that small jobs fill what large ones
        leave. While a kind is being measured its other jobs wait.
        """
        if not self._free:
            return None
        measuring = {kind for *_, kind in self._placed.values() if kind not in self.memory.peaks}
        candidates = [job for job in waiting if job.alone or kind_of(job) not in measuring]
        if candidates and self._passed.get(id(candidates[0]), 0) >= PATIENCE:
            candidates = candidates[:1]
        for job in sorted(candidates, key=lambda job: max(self.share(job, node) for node in self._free), reverse=True):
            fitting = [
                (free, node, i, self.share(job, node))
                for node, gpus in self._free.items()
                for i, free in enumerate(gpus)
                if free >= self.share(job, node) - 1e-9 and free > 0
            ]
            if fitting:
                _, node, i, share = min(fitting)
                self._free[node][i] -= share
                self._placed[id(job)] = (node, i, share, kind_of(job))
                self._passed.pop(id(job), None)
                if job is not candidates[0]:
                    self._passed[id(candidates[0])] = self._passed.get(id(candidates[0]), 0) + 1
                return Placement(job, share, node)
        return None

    def measured(self, job: Job, peak: int) -> None:
        """The peak of a running job; from its second round on other jobs of its kind can be placed by it."""
        if peak:
            self.memory.note(kind_of(job), peak)

    def ended(self, job: Job, peak: int = 0) -> None:
        """A placed job has ended; `peak` bytes if it was measured."""
        node, i, share, _ = self._placed.pop(id(job))
        if node in self._free:
            self._free[node][i] += share
        self.measured(job, peak)
