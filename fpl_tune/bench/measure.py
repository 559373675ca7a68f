"""Clocks, the measured matrix rate, peak memory, a meter of text encoding, and the row of a benchmark."""

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
"""Called with the work done, the total work, and the current step."""
BenchRow = dict[str, Any]
"""One benchmark: its name (`bench`), then figures by name. Times in seconds."""

_SQUARE_CPU, _SQUARE_GPU = 2048, 8192  # sides of the matrices


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a square matrix product, the best of five calls: the machine's measured ceiling.

    PyTorch's default product and the towers' own are measured; the faster one counts.
    """
    n = _SQUARE_GPU if device.type == "cuda" else _SQUARE_CPU
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / min(best(product, device, repeats=5) for product in (lambda: a @ b, lambda: linear(a, b)))


def best(action: Callable[[], Any], device: torch.device, repeats: int = 3) -> float:
    """Seconds of the fastest of several calls, after one to warm up."""
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
    """Waits until a GPU has finished its kernels; returns at once on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Peak:
    """Peak memory from now on: of the GPU where there is one, else resident memory of this process.

    Linux can forget an earlier peak; elsewhere the peak is the process's so far.
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
    """Reports the progress of a benchmark; steps are weighted by their expected time."""

    def __init__(self, total: float, report: OnProgress | None) -> None:
        self._done, self._total, self._report = 0.0, total, report

    def __call__(self, what: str, weight: float = 1.0) -> None:
        """Begins a step, `weight` of the total work."""
        if self._report is not None:
            self._report(self._done, self._total, what)
        self._done += weight


def images_progress(report: OnProgress | None) -> Callable[[int, int, str], object] | None:
    """The callback that reports the progress of the feature cache as a benchmark's."""
    return None if report is None else lambda done, total, pool: report(done, total, f"encoding the images of {pool}")


def _learns(*given: Tensor | Adapter | None) -> bool:
    """True if gradients are needed for any of these."""
    leaves = [leaf for each in given for leaf in (each.leaf.values() if isinstance(each, Adapter) else (each,))]
    return torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves)


class TowerMeter:
    """Measures what runs within `on`: seconds, peak memory, and tokens and operations in the towers."""

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
            found = cost(
                towers.text, sentences, prompts, per_class=per_class, plain=more.get("plain", False), below=below
            )
            learning = _learns(context, more.get("deep"), more.get("adapter"))
            self.tokens += found.tokens
            self.operations += found.forward + (found.backward if learning else 0)
            return original(context, sentences, per_class=per_class, **more)

        def counted_images(given: Tensor, tokens: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
            adapter, images = more.get("adapter"), given.shape[:2].numel()
            below = 0
            if adapter is not None and not _learns(tokens, more.get("deep")):  # what is added needs no block's gradient
                below = adapter.first + (adapter.place == "block")
            found = image.cost(towers.model.visual, images, tokens.shape[1], below, more.get("passed", 0))
            self.tokens += found.tokens
            self.operations += found.forward + (found.backward if _learns(tokens, more.get("deep"), adapter) else 0)
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
        """The row of what was measured.

        Args:
            name: of the benchmark.
            plain_seconds: that the plain path takes for the same work.
            note: how it was measured.
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
