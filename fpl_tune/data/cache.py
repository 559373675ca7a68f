"""Frozen image features, computed once per (images, towers, kind, transform), then memory-mapped from the cache."""

from __future__ import annotations

import os
import re
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.files import atomic_write
from fpl_tune.data.pool import Dataset, Pool, digest
from fpl_tune.data.reading import read_in_threads
from fpl_tune.data.transform import Transform, View, look, pools_and_views, transform

Needs = Literal["pooled", "patches", "pixels"]
Progress = Callable[[int, int, str], object]
"""Called with images done, images in all and the pool's key, after every batch."""

_VERSION = "2"  # of the file format and of how images are read; raising it invalidates all cached files
_BATCH = 128  # images decoded, and held in memory, at a time
_SMALL = 64  # pixels of a side up to which several batches are encoded at once
_SUMMED = 1 << 30  # bytes; of larger files only header and length are checked, since reading them takes long
_memory: dict[str, Tensor] = {}  # features that could not be written, by key


class Encoder(Protocol):
    """The part of `fpl_tune.clip.Towers` that the cache uses."""

    name: str
    embed_dim: int
    image_size: int

    @property
    def n_patches(self) -> int | None: ...
    @property
    def mean(self) -> tuple[float, ...]: ...
    @property
    def std(self) -> tuple[float, ...]: ...
    @property
    def fingerprint(self) -> Any: ...  # a string
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def encode_images(self, pixels: Tensor, *, patches: bool = False) -> Tensor: ...


def features(
    pool: Pool,
    towers: Encoder,
    needs: str = "pooled",
    *,
    cache_dir: str | Path,
    view: View | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The encoded images of a pool, or one random view of each, from the cache if it holds them.

    One process computes while others wait for it. A damaged file is computed again. Without space or permission to
    write, features stay in memory for the rest of the process, with one warning.

    Args:
        pool: n images.
        towers: encode them on their device, in their dtype.
        needs: `pooled`, `patches` or `pixels`.
        cache_dir: folder of the cache.
        view: the random view to encode; None encodes the images themselves.
        progress: called after every batch.

    Returns:
        `pooled`: float32 [n, D] raw features; `patches`: float16 [n, M, D]; `pixels`: uint8 [n, 3, S, S], not
        normalised. Memory-mapped; writing to it changes this process's copy only.

    Raises:
        ConfigError: unknown `needs`, or towers without patches.
        EnvironmentProblem: an image cannot be read.
    """
    if needs not in get_args(Needs):
        raise unknown("kind of image features", needs, get_args(Needs))
    job = _Job(pool, towers, needs, view, progress)
    key = _key(job)
    stem = re.sub(r"[^\w.-]+", "_", "-".join([pool.key, towers.name, needs, *map(str, view or ())]))[:80]
    path = Path(cache_dir) / f"{stem}-{key}.npy"
    if key in _memory:
        return _memory[key]
    if (found := _read(path, job)) is None and (found := _build(path, job)) is None:
        found = _memory[key] = torch.from_numpy(job.run(np.empty(job.shape, job.dtype)))
    return found


def prepare(
    dataset: Dataset,
    n_crops: int,
    towers: Encoder,
    needs: str,
    second: str | None = None,
    *,
    cache_dir: str | Path,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Encodes both pools of a data set and the random views that training draws from, on the device of `towers`.

    Args:
        dataset: its training and test images.
        n_crops: random crops of each training image.
        towers: in the arithmetic of the run.
        needs: `Method.needs`, and `second` its `Method.view`.
        cache_dir: folder of the cache.
        progress: called after every batch.

    Returns:
        Size and time of each pool or view; `seconds` is near zero where the cache held it already.
    """
    rows = []
    for pool, view in pools_and_views(dataset, n_crops, second):
        began = time.perf_counter()
        held = features(pool, towers, needs, cache_dir=cache_dir, view=view, progress=progress)
        rows.append(
            {
                "pool": pool.key,
                "view": "-".join(map(str, view or ())),
                "shape": list(held.shape),
                "dtype": str(held.dtype).removeprefix("torch."),
                "megabytes": round(held.nbytes / 1e6, 2),
                "seconds": round(time.perf_counter() - began, 3),
            }
        )
    return rows


def _key(job: _Job) -> str:
    """What the features depend on, 16 hex digits."""
    pool, towers = job.pool, job.towers
    arithmetic = str(towers.dtype)
    if towers.dtype == torch.float32 and towers.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        arithmetic += " in tf32"
    parts = [_VERSION, pool.stamp(), towers.fingerprint, arithmetic, job.needs, pool.transform, str(job.view)]
    return digest(parts)[:16]


@dataclass
class _Job:
    """The features of one pool or view, to be computed."""

    pool: Pool
    towers: Encoder
    needs: str
    view: View | None
    progress: Progress | None

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({"pooled": np.float32, "patches": np.float16, "pixels": np.uint8}[self.needs])

    @property
    def shape(self) -> tuple[int, ...]:
        towers = self.towers
        if self.needs == "patches" and towers.n_patches is None:
            raise ConfigError(f"Towers {towers.name} have no patch features. Choose a ResNet or ViT CLIP such as RN50.")
        side, width = towers.image_size, towers.embed_dim
        one = {"pooled": (width,), "patches": (towers.n_patches or 0, width), "pixels": (3, side, side)}
        return len(self.pool), *one[self.needs]

    def run(self, into: NDArray[Any]) -> NDArray[Any]:
        """Fills `into` batch by batch; files are read by several threads, one batch at a time."""
        n, how, done = len(self.pool), transform(self.pool.transform), 0
        batches = read_in_threads(self._kept, self.pool.names, _BATCH)
        with ThreadPool(self._abreast()) as threads:
            while group := list(islice(batches, self._abreast())):
                for encoded in threads.map(lambda kept: self._encode(torch.from_numpy(np.stack(kept)), how), group):
                    into[done : done + len(encoded)] = encoded
                    done += len(encoded)
                    if self.progress is not None:
                        self.progress(done, n, self.pool.key)
        return into

    def _abreast(self) -> int:
        """Batches encoded at once: small images do not fill the threads of one matrix product."""
        small = self.towers.device.type == "cpu" and self.towers.image_size <= _SMALL
        return max(1, (os.cpu_count() or 1) // torch.get_num_threads()) if small else 1

    def _kept(self, row: int) -> NDArray[np.uint8]:
        picture, size = self.pool.read(row), self.towers.image_size
        if self.view is not None:
            picture = look(self.view, picture, size, self.pool.names[row])
        return transform(self.pool.transform).shrink(picture, size)

    @torch.no_grad()
    def _encode(self, kept: Tensor, how: Transform) -> NDArray[Any]:
        towers = self.towers
        pixels = how.pixels(kept.to(towers.device), towers.image_size)
        if self.needs == "pixels":
            return pixels.round().to(torch.uint8).cpu().numpy()
        pixels = how.normalise(pixels, towers.mean, towers.std).to(towers.dtype)
        encoded = towers.encode_images(pixels, patches=self.needs == "patches")
        return encoded.float().cpu().numpy().astype(self.dtype)


def _read(path: Path, job: _Job) -> Tensor | None:
    """The features in a file, or None if it is missing or damaged."""
    if not path.exists():
        return None
    try:
        array = np.load(path, mmap_mode="c")
        intact = _kept_sum(path).read_text(errors="replace") == _checksum(path)
        if intact and (array.shape, array.dtype) == (job.shape, job.dtype):
            return torch.from_numpy(array)
    except (OSError, ValueError, EOFError):
        pass
    warnings.warn(f"Cached features {path} are damaged or cut short; computing them again.", stacklevel=3)
    return None


def _build(path: Path, job: _Job) -> Tensor | None:
    """Computes the features into the cache; returns None if the cache cannot hold them.

    A killed process leaves an unfinished file, which the next one removes.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if (found := _read(path, job)) is not None:
                return found
            for left in path.parent.glob(f"{path.name}.*.part"):
                left.unlink(missing_ok=True)
            with atomic_write(path, durable=True) as unfinished:
                array = np.lib.format.open_memmap(unfinished, "w+", job.dtype, job.shape)
                _reserve(unfinished)
                job.run(array)
                array.flush()
                _kept_sum(path).write_text(_checksum(unfinished))
        return _read(path, job)
    except OSError as error:
        warnings.warn(
            f"Cannot cache {job.pool.key} in {path.parent} ({error.strerror or error}); its features are kept in "
            "memory and computed again by the next process. Free some space or set another cache folder.",
            stacklevel=3,
        )
        return None


def _kept_sum(path: Path) -> Path:
    """The file that keeps the checksum. Features without one are not trusted."""
    return path.with_name(f"{path.name}.crc")


def _checksum(path: Path) -> str:
    """CRC-32 of a file, of a large one its size. Read in parts: pages of a memory map would count as memory in use."""
    if (size := path.stat().st_size) > _SUMMED:
        return f"{size} bytes"
    found = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _reserve(path: Path) -> None:
    """Allocates the disk space now: writing to a memory map on a full disk crashes the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
