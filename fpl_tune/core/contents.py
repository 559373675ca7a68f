"""Contents of files as digests. A file is read once; its digest is kept in the cache folder until the file changes."""

from __future__ import annotations

import hashlib
import os
import stat
import time
import warnings
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fpl_tune.core.errors import Notice
from fpl_tune.core.files import atomic_write, digest
from fpl_tune.core.formatting import counted, size
from fpl_tune.core.paths import cache_root

WIDTH = 16
"""Bytes of a digest (BLAKE2b)."""
_FRESH = 2 * 10**9  # ns; a file may change again within one tick of its clock, and keep size and times
_MUCH = 4 << 30  # bytes whose first reading is announced
_AT_ONCE = 1 << 20  # bytes

Digests = NDArray[np.uint8]


def digests(root: str | Path, names: Sequence[str]) -> Digests:
    """Digests [n, `WIDTH`] of the contents of files; zeros for a file that is missing or cannot be read.

    A digest is kept by path, size, times of change and inode: the contents of files that did not change are not read
    again, by any process that has the same cache folder.

    Args:
        root: the folder that the names begin in.
        names: paths of n files below it.
    """
    root = os.path.abspath(root)
    path = cache_root() / "contents" / f"{digest(root)}.npz"
    kept_names, kept_stats, kept = _kept(path)
    row_of = {name: row for row, name in enumerate(kept_names)}
    rows = np.fromiter((row_of.get(name, -1) for name in names), np.int64, len(names))
    stats = np.array([_stat(f"{root}/{name}") for name in names], np.int64).reshape(-1, 4)
    found = np.zeros((len(names), WIDTH), np.uint8)
    known = rows >= 0
    known[known] = (kept_stats[rows[known]] == stats[known]).all(1)
    found[known] = kept[rows[known]]
    new = np.flatnonzero(~known & (stats[:, 0] >= 0))
    if not len(new):
        return found
    if (total := int(stats[new, 0].sum())) > _MUCH:
        warnings.warn(f"Reading {counted(len(new), 'file')} below {root} ({size(total)}) once, to know their contents.",
                      Notice, stacklevel=2)  # fmt: skip
    began = time.time_ns()
    with ThreadPool(min(16, os.cpu_count() or 1)) as threads:
        read = threads.map(_digest, [f"{root}/{names[i]}" for i in new.tolist()], chunksize=64)
    found[new] = np.frombuffer(b"".join(read), np.uint8).reshape(-1, WIDTH)
    settled = new[(stats[new, 1:3].max(1) < began - _FRESH) & found[new].any(1)]
    with suppress(OSError):  # without room or rights to keep them, contents are read again
        _keep(path, [str(names[i]) for i in settled.tolist()], stats[settled], found[settled])
    return found


def digest_of(path: str | Path) -> str:
    """The digest of one file in hex digits; "" if it cannot be read."""
    path = Path(path)
    (found,) = digests(path.parent, [path.name])
    return found.tobytes().hex() if found.any() else ""


def _stat(path: str) -> tuple[int, int, int, int]:
    """Size, times in ns of the last change of content and of metadata, and inode; -1, 0, 0, 0 for others than files."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return -1, 0, 0, 0
    if not stat.S_ISREG(found.st_mode):  # a device or a pipe may never end
        return -1, 0, 0, 0
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & (2**63 - 1)


def _digest(path: str) -> bytes:
    total = hashlib.blake2b(digest_size=WIDTH)
    try:
        with open(path, "rb", buffering=0) as file:
            while part := file.read(_AT_ONCE):
                total.update(part)
    except OSError:
        return bytes(WIDTH)
    return total.digest()


def _kept(path: Path) -> tuple[list[str], NDArray[np.int64], Digests]:
    """Names, stats [n, 4] and digests that were kept; none if the file is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file) as held:
            names = os.fsdecode(held["names"].tobytes()).split("\0")
            stats, found = held["stats"].reshape(-1, 4), held["digests"].reshape(-1, WIDTH)
        if len(names) == len(stats) == len(found):
            return names, stats, found
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    return [], np.empty((0, 4), np.int64), np.empty((0, WIDTH), np.uint8)


def _keep(path: Path, names: Sequence[str], stats: NDArray[np.int64], found: Digests) -> None:
    """Adds digests to those that are kept, or replaces them."""
    if not names:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        before, stats_before, found_before = _kept(path)
        changed = set(names)
        stay = np.array([name not in changed for name in before], bool)
        held = [name for name, stays in zip(before, stay, strict=True) if stays]
        with atomic_write(path) as unfinished, unfinished.open("wb") as file:
            np.savez(
                file,
                names=np.frombuffer(os.fsencode("\0".join([*held, *names])), np.uint8),
                stats=np.concatenate([stats_before[stay], stats]),
                digests=np.concatenate([found_before[stay], found]),
            )
