"""What happens on the simulated accelerator: counts of launches and waits, and the work of recorded kernels."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_HERE = tuple(__file__.replace("counts.py", name) for name in ("counts.py", "sim.py", "device_module.py"))


class CaptureError(RuntimeError):
    """An operation that waits or copies while a graph is recorded."""


class Work(NamedTuple):
    """What a kernel does."""

    name: str
    operations: int
    """A multiplication and an addition are two; of matrix products and attention alone."""
    moved: int
    """Bytes read and written."""


@dataclass
class Counts:
    """What happened on the device: `syncs` and `copies` by operation and line, `launches` by operation."""

    launches: Counter[str] = field(default_factory=Counter)
    syncs: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)

    @property
    def waits(self) -> int:
        """How often the program waited for the device: synchronisations and copies."""
        return self.syncs.total() + self.copies.total()


OPEN: list[Counts] = []
GRAPHS: list[Any] = []  # the one that records now
IDLE: list[bool] = []
WORKS: list[list[Work]] = []


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what happens on the device, in all threads, until the block ends. May be nested."""
    OPEN.append(seen := Counts())
    try:
        yield seen
    finally:
        OPEN[:] = [other for other in OPEN if other is not seen]


def note(what: str, name: str, times: int = 1, *, line: bool = False) -> None:
    """Counts an operation in all open blocks, with its line where it waits.

    Raises:
        CaptureError: it waits while a graph is recorded.
    """
    if line and GRAPHS:
        raise CaptureError(f"operation not permitted when stream is capturing: {name} at {line_of()}")
    if OPEN:
        key = f"{name} at {line_of()}" if line else name
        for seen in OPEN:
            getattr(seen, what)[key] += times


def line_of() -> str:
    """The innermost line that belongs neither to this folder nor to PyTorch."""
    for frame, number in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and "/torch/" not in file and not file.endswith("traceback.py"):
            return f"{'/'.join(file.split('/')[-2:])}:{number}"
    return "autograd"


@contextmanager
def recorded_work() -> Iterator[list[Work]]:
    """The kernels that graphs record in this block."""
    WORKS.append(found := [])
    try:
        yield found
    finally:
        WORKS.remove(found)


@contextmanager
def idle() -> Iterator[None]:
    """Matrix products and attention are counted and give zeros until the block ends: true sizes in little time."""
    IDLE.append(True)
    try:
        yield
    finally:
        IDLE.pop()


@contextmanager
def recording(graph: Any) -> Iterator[None]:
    """Kernels that run in this block are recorded."""
    GRAPHS.append(graph)
    try:
        yield
    finally:
        GRAPHS.remove(graph)
