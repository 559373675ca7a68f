"""Atomic writes and digests. Even if the process is killed or the disk is full, a file is complete or absent."""

from __future__ import annotations

import errno
import hashlib
import json
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


def remove(path: Path) -> None:
    """Removes a file or a folder with its contents; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def atomic_write(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yields a temporary path in the same folder, which replaces `path` when the block ends, or is removed if it fails.

    Args:
        path: the file, or a folder that does not exist yet. Its parent folder is created.
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
            remove(temporary)
        raise


TEMPORARY = f"*.{'[0-9a-f]' * 8}.part"
"""Pattern of the names of temporary files."""


def sweep(path: Path) -> None:
    """Removes the temporary files of `path` that a killed process left behind. No process may be writing it."""
    for left in path.parent.glob(f"{path.name}.*.part"):
        left.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8 atomically, again if its temporary file was removed as that of a killed process."""
    for last in (False, True):
        try:
            with atomic_write(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            return
        except FileNotFoundError:
            if last:
                raise


def digest(content: str | bytes, size: int = 8) -> str:
    """The BLAKE2b digest of bytes, or of a string in UTF-8, as `2 * size` hex digits."""
    content = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(content, digest_size=size).hexdigest()


DEPLOYED = "deployed."
"""Prefix of those tensors in a prompts file that clients are evaluated with."""


def stamp(path: Path) -> list[Any]:
    """Path, time of change and size of a file; 0 and 0 if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return [str(path), 0, 0]
    return [str(path), status.st_mtime_ns, status.st_size]


def stamps(folder: Path) -> Iterator[list[Any]]:
    """Yields the stamps of the files below a folder, except for hidden and compiled ones."""
    for parent, inside, names in os.walk(folder):
        inside[:] = sorted(name for name in inside if not name.startswith((".", "__pycache__")))
        yield from (stamp(Path(parent, name)) for name in sorted(names) if not name.startswith("."))


_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file directly from the tensors' memory, which may be a mapped file larger than the RAM.

    `safetensors.torch.save` copies everything into one string first. The errors of its `save_file` have no number that
    tells a full disk.

    Raises:
        OSError: the file cannot be written.
    """
    import torch  # not needed for listings and digests

    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # each at a multiple of its size
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        dtype = _DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def refused(problem: BaseException) -> bool:
    """True if the disk refused a write: it is full, over quota or read-only."""
    return isinstance(problem, OSError) and problem.errno in _REFUSED


def no_room(what: str) -> EnvironmentProblem:
    """The error for a disk that cannot be written to."""
    return EnvironmentProblem(
        f"The disk refuses to store results ({what}). Free some space, or name another folder in FPL_TUNE_OUTPUT or "
        "FPL_TUNE_CACHE. Finished results are kept: run the same command to continue."
    )
