"""What `torch.sim` is to PyTorch, as `torch.cuda` is for CUDA: graphs and streams of the simulated accelerator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fpl_tune.testing.counts import IDLE, note, recording


class Graph:
    """A recorded series of kernels, as `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        """Nothing is recorded yet."""
        self.kernels: list[tuple[Callable[..., Any], Any, dict[str, Any], Any]] = []

    def replay(self) -> None:
        """Runs the kernels again on the memory that they had, as one launch; none while the device is idle."""
        note("launches", "graph")
        for func, args, kwargs, out in self.kernels if not IDLE else ():
            _again(func(*args, **kwargs), out)


def _again(now: Any, out: Any) -> None:
    """Puts what a kernel gave now where it was when the graph was recorded."""
    if isinstance(out, list | tuple):
        for x, y in zip(now, out, strict=True):
            _again(x, y)
    elif isinstance(out, Tensor) and now is not out:
        out.copy_(now)


class _Stream:
    """Everything runs in order: there is one stream."""

    def wait_stream(self, other: _Stream) -> None:
        pass


class Module:
    """What `torch.sim` is to PyTorch, as `torch.cuda` is for CUDA."""

    CUDAGraph = Graph
    Stream = _Stream
    graph = staticmethod(recording)
    stream = staticmethod(nullcontext)
    current_stream = staticmethod(_Stream)

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """Numbers are drawn by the CPU's generator."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def _is_in_bad_fork(self) -> bool:
        return False
