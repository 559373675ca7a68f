"""Which trial goes beside which on a GPU: memory is measured on the first trial of a kind, not guessed.

The policy knows devices by their size only, so that it is the same for real and for simulated ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fpl_tune.execute.job import Job
from fpl_tune.execute.profile import cost_key
from fpl_tune.files import atomic_write

CONTEXT_BYTES = 600 << 20
"""What a process takes of a GPU besides its tensors: the CUDA context and its libraries."""
SLACK = 1.15
"""Room left above the measured peak."""
SMALLEST = 0.05
PATIENCE = 8
"""So often others may go before the job that has waited longest; then it is next, however large."""


class Meter(Protocol):
    """The memory of the device that a trial runs on."""

    def begin(self, share: float) -> None:
        """A trial begins that may take this share of the device; what it takes above is an out-of-memory error."""
        ...

    def peak(self) -> int:
        """Largest number of bytes taken since `begin`; 0 where there is nothing to measure."""
        ...


class NoMeter:
    """Of trials on the CPU."""

    def begin(self, share: float) -> None:
        pass

    def peak(self) -> int:
        return 0


class CudaMeter:
    """Of trials on a GPU: the allocator's own counts."""

    def begin(self, share: float) -> None:
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))

    def peak(self) -> int:
        import torch

        return torch.cuda.max_memory_reserved()


def kind_of(job: Job) -> str:
    """Jobs of one kind take the same memory: method, sizes, data and the number of seeds trained together."""
    text = f"{cost_key(job.cell.run)} x {len(job.seeds)}"
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


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
            with (
                suppress(OSError),
                atomic_write(self.path) as temporary,
            ):  # else measured again
                temporary.write_text(json.dumps(self.peaks, indent=0))


class Packing:
    """Places jobs on GPUs.

    Args:
        devices: bytes of each; shares are of the smallest, since Ray decides which one a trial gets.
        memory: what was measured before.
    """

    def __init__(self, devices: Sequence[int], memory: Memory) -> None:
        self.size = min(devices)
        self.memory = memory
        self._free = [1.0] * len(devices)
        self._placed: dict[int, tuple[int, float, str]] = {}
        self._passed: dict[int, int] = {}

    @property
    def count(self) -> int:
        """GPUs."""
        return len(self._free)

    def share(self, job: Job) -> float:
        """Of a GPU: what its kind was measured to take, or all of it to measure, or because it is to be alone."""
        peak = self.memory.peaks.get(kind_of(job))
        if job.alone or peak is None:
            return 1.0
        part = (SLACK * peak + CONTEXT_BYTES) / self.size
        return min(1.0, max(SMALLEST, math.ceil(100 * part) / 100))

    def place(self, waiting: Sequence[Job]) -> tuple[Job, float] | None:
        """The job that goes next and its share; None: none fits now.

        The largest that fits goes first, to the fullest GPU that takes it, so that small ones fill what large ones
        leave. A kind that is being measured waits for its figure.
        """
        measuring = {kind for _, _, kind in self._placed.values() if kind not in self.memory.peaks}
        candidates = [job for job in waiting if job.alone or kind_of(job) not in measuring]
        if candidates and self._passed.get(id(candidates[0]), 0) >= PATIENCE:
            candidates = candidates[:1]
        for job in sorted(candidates, key=self.share, reverse=True):
            share = self.share(job)
            fitting = [i for i, free in enumerate(self._free) if free >= share - 1e-9]
            if fitting:
                device = min(fitting, key=lambda i: self._free[i])
                self._free[device] -= share
                self._placed[id(job)] = (device, share, kind_of(job))
                self._passed.pop(id(job), None)
                if job is not candidates[0]:
                    self._passed[id(candidates[0])] = self._passed.get(id(candidates[0]), 0) + 1
                return job, share
        return None

    def ended(self, job: Job, peak: int = 0) -> None:
        """A placed job is over; `peak` bytes where it was measured."""
        device, share, kind = self._placed.pop(id(job))
        self._free[device] += share
        if peak:
            self.memory.note(kind, peak)
