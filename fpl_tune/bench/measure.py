"""Measures time, the rate of matrix products, peak memory and text encoding for benchmarks."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fpl_tune.clip import Towers, image
from fpl_tune.clip.allocator import trim
from fpl_tune.clip.blocks import linear
from fpl_tune.clip.text import cost
from fpl_tune.core.adapter import Adapter

OnProgress = Callable[[float, float, str], object]
"""Called with the completed work, the total work, and a description of the current step."""
BenchRow = dict[str, Any]
"""Result of one benchmark: its name (`bench`), and measurements by name. Times are in seconds."""

_SQUARE_CPU, _SQUARE_GPU = 2048, 8192  # sides of the matrices


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product, the best of five calls, as an upper limit of the machine.

    The faster one of PyTorch's default product and the towers' own is taken.
    """
    n = _SQUARE_GPU if device.type == "cuda" else _SQUARE_CPU
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / min(best(product, device, repeats=5) for product in (lambda: a @ b, lambda: linear(a, b)))


def best(action: Callable[[], Any], device: torch.device, repeats: int = 3) -> float:
    """Seconds of the fastest of several calls, after one warm-up call."""
    action()
    return min(once(action, device) for _ in range(repeats))


def once(action: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call."""
    wait(device)
    began = time.perf_counter()
    action()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Waits until a GPU has finished its kernels; returns immediately on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Peak:
    """Peak memory since the object was created: that of the GPU if there is one, else resident memory of this process.

    Earlier peaks can be reset on Linux only; elsewhere it is the peak since the process started.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        gc.collect()
        trim()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def bytes(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        with suppress(OSError):
            status = Path("/proc/self/status").read_text()
            return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes


class Steps:
    """Reports the progress of a benchmark, with steps weighted by their expected time."""

    def __init__(self, total: float, report: OnProgress | None) -> None:
        self._done, self._total, self._report = 0.0, total, report

    def __call__(self, what: str, weight: float = 1.0) -> None:
        """Begins a step with a share `weight` of the total work."""
        if self._report is not None:
            self._report(self._done, self._total, what)
        self._done += weight


def images_progress(report: OnProgress | None) -> Callable[[int, int, str], object] | None:
    """A callback that reports the progress of the feature cache as that of a benchmark."""
    return None if report is None else lambda done, total, pool: report(done, total, f"encoding the images of {pool}")


def _learns(*given: Tensor | Adapter | None) -> bool:
    """True if gradients are needed for any of the arguments."""
    leaves = [leaf for each in given for leaf in (each.leaf.values() if isinstance(each, Adapter) else (each,))]
    return torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves)


class TowerMeter:
    """Measures the code within `on`: seconds, peak memory, and tokens and operations in the towers."""

    def __init__(self, towers: Towers) -> None:
        self._towers = towers
        self.seconds, self.peak_bytes, self.tokens, self.operations = 0.0, 0, 0, 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Counts every call of the towers' encoders of prompts and of images with prompts or adapters."""
        towers, original, original_images = (
            self._towers,
            self._towers.encode_prompts,
            self._towers.encode_prompted_images,
        )

        def counted(context: Tensor, sentences: Any, *, per_class: bool = False, **more: Any) -> Tensor:
            own = 3 if per_class else 2
            adapter, prompts, below = more.get("adapter"), context.shape[:-own].numel(), 0
            if adapter is not None:
                prompts = len(next(iter(adapter.leaf.values())))
                below = 0 if sentences.n_ctx else adapter.first + (adapter.place == "block")
            estimate = cost(
                towers.text, sentences, prompts, per_class=per_class, plain=more.get("plain", False), below=below
            )
            learning = _learns(context, more.get("deep"), more.get("adapter"))
            self.tokens += estimate.tokens
            self.operations += estimate.forward + (estimate.backward if learning else 0)
            return original(context, sentences, per_class=per_class, **more)

        def counted_images(given: Tensor, tokens: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
            adapter, images = more.get("adapter"), given.shape[:2].numel()
            below = 0
            if adapter is not None and not _learns(tokens, more.get("deep")):  # blocks below need no gradient
                below = adapter.first + (adapter.place == "block")
            estimate = image.cost(towers.model.visual, images, tokens.shape[1], below, more.get("passed", 0))
            self.tokens += estimate.tokens
            learning = _learns(tokens, more.get("deep"), adapter)
            self.operations += estimate.forward + (estimate.backward if learning else 0)
            return original_images(given, tokens, **more)

        towers.encode_prompts = counted  # type: ignore[method-assign]
        towers.encode_prompted_images = counted_images  # type: ignore[method-assign]
        peak, began = Peak(towers.device), time.perf_counter()
        try:
            yield
        finally:
            del towers.encode_prompts, towers.encode_prompted_images
        wait(towers.device)
        self.seconds, self.peak_bytes = time.perf_counter() - began, peak.bytes()

    def row(self, name: str, plain_seconds: float, note: str) -> BenchRow:
        """The result of the benchmark.

        Args:
            name: name of the benchmark.
            plain_seconds: seconds of the plain path for the same work.
            note: description of the measurement.
        """
        rate = matrix_rate(self._towers.device, self._towers.dtype)
        return {
            "bench": name,
            "seconds": self.seconds,
            "plain_seconds": plain_seconds,
            "ratio": plain_seconds / self.seconds,
            "tokens": self.tokens,
            "operations": self.operations,
            "matrix_rate_share": self.operations / self.seconds / rate,
            "peak_memory_bytes": self.peak_bytes,
            "note": note,
        }
