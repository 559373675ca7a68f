"""The machine's devices: the choice of one, its memory, and the meaning of its errors.

Everything comes from PyTorch, so `CUDA_VISIBLE_DEVICES`, MIG slices and the memory used by other programs are taken
into account as they will be in training.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.backends import mkldnn

from fpl_tune.core.errors import ConfigError, EnvironmentProblem

WANTED = ("auto", "cpu", "cuda")
_ASSUMED = 16 << 30
"""Bytes of memory that are assumed for an accelerator that PyTorch cannot query."""

_NO_MEMORY = re.compile(
    r"CUDA (error: )?out of memory|cudaErrorMemoryAllocation|STATUS_ALLOC_FAILED|"
    r"CUDNN_STATUS_INTERNAL_ERROR_(HOST|DEVICE)_ALLOCATION_FAILED|DefaultCPUAllocator"
)
_POISONED = re.compile(
    "illegal memory access|device-side assert|unspecified launch failure|misaligned address|illegal instruction|"
    "invalid program counter|hardware stack error|uncorrectable ECC error|launch timed out|CUDA error: unknown error|"
    "context is destroyed|cudaErrorContained|device is lost"
)


class OutOfMemory(EnvironmentProblem):
    """One client does not fit into the device's memory."""


class Gpu(NamedTuple):
    """A GPU as this process sees it, or a MIG slice of one."""

    number: int
    """Index among the visible GPUs, as in `cuda:<index>`."""
    name: str
    total: int
    """Bytes."""
    free: int
    """Bytes that no program uses."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def fixed_settings(threads: int) -> Iterator[list[str]]:
    """Runs a block with PyTorch's initial settings and a number of CPU threads, and restores the settings afterwards.

    Yields:
        A list, which is filled with the names of the settings that the block changed when the block ends.
    """
    settings: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Any]] = {
        "default_dtype": (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        "default_device": (torch.get_default_device, torch.set_default_device, torch.device("cpu")),
        "num_threads": (torch.get_num_threads, torch.set_num_threads, threads),
        "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
        "grad_enabled": (torch.is_grad_enabled, torch.set_grad_enabled, True),
        "backends.mkldnn.enabled": (lambda: mkldnn.enabled, lambda wanted: setattr(mkldnn, "enabled", wanted), True),
    }

    def read() -> dict[str, Any]:
        return {name: get() for name, (get, _, _) in settings.items()}

    def write(wanted: dict[str, Any]) -> list[str]:
        """Writes the settings that differ, and returns their names."""
        differing = [name for name, value in read().items() if value != wanted[name]]
        for name in differing:
            settings[name][1](wanted[name])
        return differing

    before, changed = read(), list[str]()
    initial = {name: value for name, (_, _, value) in settings.items()}
    write(initial)
    try:
        yield changed
    finally:
        changed += write(initial)
        write(before)


def resolve(wanted: str) -> str:
    """The device of a run: `auto` is cuda where PyTorch can use a GPU, else cpu.

    Raises:
        ConfigError: there is no such device.
        EnvironmentProblem: cuda is requested, but PyTorch cannot use a GPU.
    """
    if wanted not in WANTED:
        raise ConfigError(f"execution.device must be auto, cpu or cuda, but is {wanted!r}.")
    if wanted == "cpu":
        return "cpu"
    reason = why_no_cuda()
    if wanted == "cuda" and reason:
        raise EnvironmentProblem(
            f"execution.device=cuda asks for a GPU, but PyTorch sees none ({reason}). Use execution.device=cpu."
        )
    return "cpu" if reason else "cuda"


def why_no_cuda() -> str:
    """The reason why PyTorch cannot use a GPU, in a few words; "" if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the driver is too old is a warning here, and an error below
        if torch.cuda.is_available():
            return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as problem:
        return _first_sentence(problem)
    return "CUDA_VISIBLE_DEVICES hides all of them, or there is none"


def gpus() -> list[Gpu]:
    """The GPUs that this process may use, with their memory; an empty list without CUDA.

    The query opens a CUDA context on each GPU, which takes some hundred megabytes until the process ends. A process
    that does not train should call this in a child process.

    Raises:
        EnvironmentProblem: a visible GPU does not answer.
    """
    if why_no_cuda():
        return []
    devices = []
    for index in range(torch.cuda.device_count()):
        try:
            free, _ = torch.cuda.mem_get_info(index)
        except RuntimeError as problem:
            raise EnvironmentProblem(
                f"GPU {index} does not answer ({_first_sentence(problem)}). Check it with nvidia-smi, "
                "or leave it out of CUDA_VISIBLE_DEVICES."
            ) from problem
        total = torch.cuda.get_device_properties(index).total_memory
        devices.append(Gpu(index, torch.cuda.get_device_name(index), total, free))
    return devices


def memory() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_bytes(device: torch.device) -> int:
    """Memory of an accelerator that this process may use: the share set by
    `torch.cuda.set_per_process_memory_fraction`, all of it by default.

    It does not depend on the free memory. Sizes derived from it, and with them the last digits of results, are
    therefore the same on equal GPUs.
    """
    if device.type != "cuda":
        return _ASSUMED
    whole = torch.cuda.get_device_properties(device).total_memory
    return int(torch.cuda.get_per_process_memory_fraction(device) * whole)


def activation_bytes(device: torch.device, *, cpu: int, share: float) -> int:
    """Bytes that one batch may keep for its backward pass: `cpu` on the CPU, a share of the memory elsewhere."""
    return cpu if device.type == "cpu" else int(share * usable_bytes(device))


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error, or one of its causes, says that memory did not suffice, so that the process can continue with
    less. CUDA has many such errors besides `torch.cuda.OutOfMemoryError`."""
    no_memory = (MemoryError, OutOfMemory, torch.cuda.OutOfMemoryError)
    return any(isinstance(cause, no_memory) for cause in _chain(error)) or _mentions(_NO_MEMORY, error)


def is_poisoned(error: BaseException) -> bool:
    """True if an error leaves the CUDA context unusable: every later call fails, so the process must end."""
    return _mentions(_POISONED, error)


def _mentions(text: re.Pattern[str], error: BaseException) -> bool:
    return any(isinstance(cause, RuntimeError) and text.search(str(cause)) for cause in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _first_sentence(problem: BaseException) -> str:
    return " ".join(str(problem).split()).partition(". ")[0][:200].rstrip(".") or type(problem).__name__
