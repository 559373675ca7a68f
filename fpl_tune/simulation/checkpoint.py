"""Checkpoints of a trial: one safetensors file per checkpointed round, with a digest that reading verifies.

The last two are kept, so that a damaged one does not cost all rounds. Reading a file runs no code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fpl_tune.core.files import atomic_write, save_tensors

KEPT = 2
_META = "meta"  # leaves have slashes in their names


class Snapshot(NamedTuple):
    """The state from which a trial resumes."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    """Plain data; `round` is the last round done."""


class Damaged(ValueError):
    """A checkpoint that cannot be read, or is not what was written."""


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Writes a checkpoint. Then removes all but the last two, and those of later rounds, which are obsolete.

    Raises:
        OSError: it could not be written; earlier checkpoints are unchanged.
    """
    number = int(snapshot.meta["round"])
    text = torch.frombuffer(bytearray(json.dumps(snapshot.meta).encode()), dtype=torch.uint8)
    tensors = {**{name: leaf.detach().cpu().contiguous() for name, leaf in snapshot.tensors.items()}, _META: text}
    path = folder / f"round-{number:06d}.safetensors"
    with atomic_write(path, durable=True) as temporary:
        save_tensors(tensors, temporary, {"digest": _digest(tensors)})
    stored = list_newest(folder)
    for old in [*(p for p in stored if p.name > path.name), *[p for p in stored if p.name <= path.name][KEPT:]]:
        with suppress(OSError):
            old.unlink(missing_ok=True)
    return path


def list_newest(folder: Path) -> list[Path]:
    """Checkpoints of a folder, the newest first."""
    return sorted(folder.glob("round-*.safetensors"), reverse=True)


def usable(folder: Path) -> Iterator[Snapshot | Damaged]:
    """Yields the checkpoints of a folder, the newest first; for one that cannot be read, the error."""
    for path in list_newest(folder):
        try:
            yield read(path)
        except Damaged as problem:
            yield problem


def read(path: Path) -> Snapshot:
    """A checkpoint from its file.

    Raises:
        Damaged: it cannot be read, is cut short, or a bit of it has changed.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            digest = (opened.metadata() or {}).get("digest")
        if digest != _digest(tensors):
            raise Damaged(f"The checkpoint {path} is corrupt: its content is not what was written.")
        return Snapshot(tensors, json.loads(tensors.pop(_META).numpy().tobytes()))
    except (OSError, SafetensorError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise Damaged(f"The checkpoint {path} is truncated or corrupt: {problem}.") from None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Over names, types, shapes and numbers."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        leaf = tensors[name]
        total.update(f"{name} {leaf.dtype} {tuple(leaf.shape)};".encode())
        total.update(leaf.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
