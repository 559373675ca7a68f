"""Digests of files. A file is read once, and its digest is cached until the file changes."""

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
_FRESH = 2 * 10**9  # ns; within one tick of its clock, a file may change again and keep its size and times
_MUCH = 4 << 30  # bytes from which a warning says that files are read
_AT_ONCE = 1 << 20  # bytes

Digests = NDArray[np.uint8]


def digests(root: str | Path, names: Sequence[str]) -> Digests:
    """Digests [n, `WIDTH`] of the contents of files; zeros for a file that is missing or cannot be read.

    Digests are cached by path, size, times of change and inode. Files that did not change are not read again by any
    process with the same cache folder.

    Args:
        root: the folder that the names are relative to.
        names: paths of n files below it.
    """
    root = os.path.abspath(root)
    path = cache_root() / "contents" / f"{digest(root)}.npz"
    stored_names, stored_stats, stored_hashes = _load(path)
    row_of = {name: row for row, name in enumerate(stored_names)}
    rows = np.fromiter((row_of.get(name, -1) for name in names), np.int64, len(names))
    stats = np.array([_stat(f"{root}/{name}") for name in names], np.int64).reshape(-1, 4)
    hashes = np.zeros((len(names), WIDTH), np.uint8)
    unchanged = rows >= 0
    unchanged[unchanged] = (stored_stats[rows[unchanged]] == stats[unchanged]).all(1)
    hashes[unchanged] = stored_hashes[rows[unchanged]]
    new = np.flatnonzero(~unchanged & (stats[:, 0] >= 0))
    if not len(new):
        return hashes
    if (total := int(stats[new, 0].sum())) > _MUCH:
        warnings.warn(f"Reading {counted(len(new), 'file')} below {root} ({size(total)}) once, to know their contents.",
                      Notice, stacklevel=2)  # fmt: skip
    began = time.time_ns()
    with ThreadPool(min(16, os.cpu_count() or 1)) as threads:
        read = threads.map(_digest, [f"{root}/{names[i]}" for i in new.tolist()], chunksize=64)
    hashes[new] = np.frombuffer(b"".join(read), np.uint8).reshape(-1, WIDTH)
    settled = new[(stats[new, 1:3].max(1) < began - _FRESH) & hashes[new].any(1)]
    with suppress(OSError):  # without space or rights to cache digests, files are read again
        _store(path, [str(names[i]) for i in settled.tolist()], stats[settled], hashes[settled])
    return hashes


def digest_of(path: str | Path) -> str:
    """The digest of one file as hex digits; "" if it cannot be read."""
    path = Path(path)
    (row,) = digests(path.parent, [path.name])
    return row.tobytes().hex() if row.any() else ""


def _stat(path: str) -> tuple[int, int, int, int]:
    """Size, times of the last change of content and metadata in ns, and inode; -1, 0, 0, 0 if it is not a file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return -1, 0, 0, 0
    if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
        return -1, 0, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino & (2**63 - 1)


def _digest(path: str) -> bytes:
    total = hashlib.blake2b(digest_size=WIDTH)
    try:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(_AT_ONCE):
                total.update(block)
    except OSError:
        return bytes(WIDTH)
    return total.digest()


def _load(path: Path) -> tuple[list[str], NDArray[np.int64], Digests]:
    """Names, stats [n, 4] and digests in the cache; none if its file is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file) as stored:
            names = os.fsdecode(stored["names"].tobytes()).split("\0")
            stats, hashes = stored["stats"].reshape(-1, 4), stored["digests"].reshape(-1, WIDTH)
        if len(names) == len(stats) == len(hashes):
            return names, stats, hashes
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    return [], np.empty((0, 4), np.int64), np.empty((0, WIDTH), np.uint8)


def _store(path: Path, names: Sequence[str], stats: NDArray[np.int64], hashes: Digests) -> None:
    """Adds digests to the cache, or replaces them there."""
    if not names:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        before, stats_before, hashes_before = _load(path)
        changed = set(names)
        stay = np.array([name not in changed for name in before], bool)
        unchanged = [name for name, stays in zip(before, stay, strict=True) if stays]
        with atomic_write(path) as unfinished, unfinished.open("wb") as file:
            np.savez(
                file,
                names=np.frombuffer(os.fsencode("\0".join([*unchanged, *names])), np.uint8),
                stats=np.concatenate([stats_before[stay], stats]),
                digests=np.concatenate([hashes_before[stay], hashes]),
            )
