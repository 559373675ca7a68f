"""Settings of glibc's memory allocator: keep the memory of freed tensors.

By default glibc maps every block above a threshold and unmaps it when it is freed, so that the next tensor of that size
costs a page fault per 4 kB: 40 % of the CPU time of an RN50 image tower.
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's parameters
_LARGEST = 32 << 20  # bytes, the highest threshold of glibc; larger blocks are unmapped as before
_IDLE = 512 << 20  # bytes kept at the end of the heap
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Makes the allocator of this process reuse freed blocks of up to 32 MB, and keep up to 512 MB of free memory.

    New threads share the first one's heap: what they free in heaps of their own would not return to the system.

    Returns:
        Whether it was set: not without glibc, nor if the environment configures its allocator
        (MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES, ...).
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _IDLE, _ARENA_MAX: 1}
    return all([mallopt(name, value) for name, value in wanted.items()])


def trim() -> None:
    """Returns freed memory to the system, so that the next peak is measured from the memory in use."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if platform.libc_ver()[0] == "glibc" else None
    if malloc_trim is not None:
        malloc_trim(0)
