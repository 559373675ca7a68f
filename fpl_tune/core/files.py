"""Atomic writes, after which a file is complete or absent also if the process is killed or the disk full; digests."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpl_tune.core.errors import EnvironmentProblem

if TYPE_CHECKING:
    from torch import Tensor

_REFUSED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""No space, quota used up, file too large, read-only."""


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`, which replaces `path` when the block ends and is removed if it fails.

    Args:
        path: the file, or a folder that does not exist yet; the folder that it lies in is created.
        durable: flush the file to the disk first, so that it also survives a power cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        raise


def sweep(path: Path) -> None:
    """Removes temporary files for `path` that a killed process left; no process may be writing it."""
    for left in path.parent.glob(f"{path.name}.*.part"):
        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8 atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def digest(text: str, size: int = 8) -> str:
    """The BLAKE2b digest of a text as `2 * size` hex digits."""
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


DEPLOYED = "deployed."
"""Prefix of the tensors in a prompts file that clients are evaluated with."""


def stamp(path: Path) -> list[Any]:
    """Path, time of change and size; both are 0 where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return [str(path), 0, 0]
    return [str(path), found.st_mtime_ns, found.st_size]


def stamps(folder: Path) -> Iterator[list[Any]]:
    """Stamps of the files in a folder and below it, without hidden and compiled ones."""
    for place, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not name.startswith((".", "__pycache__")))
        yield from (stamp(Path(place, name)) for name in sorted(names) if not name.startswith("."))


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file. Tensors may share memory, which the format does not: each is written whole."""
    from safetensors.torch import save  # imports torch, which listings and digests do not need

    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        shared = (at := tensor.untyped_storage().data_ptr()) in seen
        seen.add(at)
        apart[name] = tensor.clone() if shared else tensor
    path.write_bytes(save(apart, metadata))  # safetensors' own writer gives the file to its owner alone


def refused(problem: BaseException) -> bool:
    """Whether the disk refused a write: it is full, over quota or read-only."""
    return isinstance(problem, OSError) and problem.errno in _REFUSED


def no_room(what: str) -> EnvironmentProblem:
    """The error for a disk that refuses writes."""
    return EnvironmentProblem(
        f"The disk refuses to store results ({what}). Free some space, or name another folder in FPL_TUNE_OUTPUT or "
        "FPL_TUNE_CACHE. Finished results are kept: run the same command to continue."
    )
