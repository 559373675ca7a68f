"""Frozen image features, which are computed once per images, towers, kind and transform, and cached in files."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, unknown
from fpl_tune.core.files import atomic_write, sweep
from fpl_tune.data.pool import Pool, digest_of_parts, read_in_threads
from fpl_tune.data.transform import PATCH, Transform, View, look, patched, transform

Needs = Literal["pooled", "patches", "pixels"]
Progress = Callable[[int, int, str], object]
"""Called after every batch with the number of encoded images, the number of all images and the pool's key."""

_VERSION = "3"  # of the file format and of how images are read; raising it invalidates all cached files
_BATCH = 128  # images decoded and held in memory at a time
_SMALL = 64  # largest image size in pixels with which several batches are encoded in parallel


def features(
    pool: Pool,
    towers: Any,
    needs: str = "pooled",
    *,
    blocks: int = 0,
    cache_dir: str | Path,
    view: View | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The features of a pool's images, or of a view of each, from the cache if possible.

    One process computes them while others wait. A damaged file is computed again.

    Args:
        pool: n images.
        towers: `fpl_tune.clip.Towers`, which encode the images on their device and in their dtype.
        needs: `pooled`, `patches` or `pixels`.
        blocks: with `pixels`, number of the first blocks of a ViT without learned parameters. Above 0, the result has
            the tokens after these blocks in place of pixels.
        cache_dir: folder of the cache.
        view: the view to encode; None encodes the images themselves.
        progress: called after every batch.

    Returns:
        A memory-mapped tensor; writing to it changes the copy of this process only. `pooled`: float32 [n, D] raw
        features; `patches`: float16 [n, M, D]; `pixels`: uint8 [n, 3, S, S], not normalised, or float32 tokens
        [n, 1 + M, w].

    Raises:
        ConfigError: unknown `needs`, or towers without patches.
        EnvironmentProblem: an image cannot be read or changes in the meantime, or the features cannot be written.
    """
    if needs not in get_args(Needs):
        raise unknown("kind of image features", needs, get_args(Needs))
    job = _Job(pool, towers, f"block{blocks}" if blocks else needs, blocks, view, progress)
    path = Path(cache_dir) / f"{features_name(pool, towers, needs, blocks=blocks, view=view)}-{_key(job)}.npy"
    if (cached := _read(path, job)) is not None:
        return cached
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            if (cached := _read(path, job)) is not None:
                return cached
            sweep(path)
            with atomic_write(path, durable=True) as unfinished:
                array = np.lib.format.open_memmap(unfinished, "w+", job.dtype, job.shape)
                _reserve(unfinished)
                job.run(array)
                array.flush()
                if pool.stamp() != pool.content:
                    raise EnvironmentProblem(f"Images of {pool.key} changed while they were read. Start again.")
        return torch.from_numpy(np.load(path, mmap_mode="c"))
    except OSError as error:
        raise EnvironmentProblem(
            f"Cannot cache {pool.key} in {path.parent} ({error.strerror or error}). Free some space, or name another "
            "folder in FPL_TUNE_CACHE."
        ) from None


def features_name(pool: Pool, towers: Any, needs: str, *, blocks: int = 0, view: View | None = None) -> str:
    """The name of a file of `features`, without the digest of its content."""
    kind = f"block{blocks}" if blocks else needs
    return re.sub(r"[^\w.-]+", "_", "-".join([pool.key, towers.name, kind, *map(str, view or ())]))[:80]


def rows_cached(cache_dir: Path, name: str, n: int) -> bool:
    """True if the cache has a file of this name with the features of n images, whatever its content."""
    for path in cache_dir.glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}.npy"):
        with suppress(OSError, ValueError, EOFError):
            if len(np.load(path, mmap_mode="r")) == n:
                return True
    return False


def _key(job: _Job) -> str:
    """A digest of everything that the features depend on, 16 hex digits."""
    pool, towers = job.pool, job.towers
    parts = [_VERSION, pool.content, towers.fingerprint, str(towers.dtype), job.kind, pool.transform, str(job.view)]
    return digest_of_parts(parts)[:16]


@dataclass
class _Job:
    """The computation of the features of one pool or view."""

    pool: Pool
    towers: Any
    kind: str
    blocks: int
    view: View | None
    progress: Progress | None

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({"patches": np.float16, "pixels": np.uint8}.get(self.kind, np.float32))

    @property
    def shape(self) -> tuple[int, ...]:
        towers = self.towers
        if self.blocks:
            return len(self.pool), 1 + towers.n_patches, towers.vision_width
        if self.kind == "patches" and towers.n_patches is None:
            raise ConfigError(f"Towers {towers.name} have no patch features. Choose a ResNet or ViT CLIP such as RN50.")
        side, width = towers.image_size, towers.embed_dim
        one = {"pooled": (width,), "patches": (towers.n_patches or 0, width), "pixels": (3, side, side)}
        return len(self.pool), *one[self.kind]

    def run(self, into: NDArray[Any]) -> None:
        """Fills `into` batch by batch. Several threads read the files of a batch."""
        n, how, done = len(self.pool), transform(self.pool.transform, self.towers.preprocessing), 0
        batches = read_in_threads(self._shrunk, n, _BATCH)
        with ThreadPool(self._abreast()) as threads:
            while group := list(islice(batches, self._abreast())):
                for encoded in threads.map(lambda rows: self._encode(torch.from_numpy(np.stack(rows)), how), group):
                    into[done : done + len(encoded)] = encoded
                    done += len(encoded)
                    if self.progress is not None:
                        self.progress(done, n, self.pool.key)

    def _abreast(self) -> int:
        """Number of batches encoded in parallel: small images do not use all threads of a matrix product."""
        small = self.towers.device.type == "cpu" and self.towers.image_size <= _SMALL
        return max(1, (os.cpu_count() or 1) // torch.get_num_threads()) if small else 1

    def _shrunk(self, row: int) -> NDArray[np.uint8]:
        picture, size = self.pool.read(row), self.towers.image_size
        if self.view is not None and self.view.kind != PATCH:
            picture = look(self.view, picture, size, self.pool.names[row])
        return transform(self.pool.transform, self.towers.preprocessing).shrink(picture, size)

    @torch.no_grad()
    def _encode(self, shrunk: Tensor, how: Transform) -> NDArray[Any]:
        towers = self.towers
        pixels = how.pixels(shrunk.to(towers.device), towers.image_size)
        if self.view is not None and self.view.kind == PATCH:
            pixels = patched(pixels, self.view.number)
        if self.kind == "pixels":
            return pixels.round().to(torch.uint8).cpu().numpy()
        if self.blocks:  # from rounded pixels, as if pixels were cached
            encoded = towers.encode_images(towers.normalise(pixels.round().to(torch.uint8)), blocks=self.blocks)
        else:
            pixels = how.normalise(pixels).to(towers.dtype)
            encoded = towers.encode_images(pixels, patches=self.kind == "patches")
        return encoded.float().cpu().numpy().astype(self.dtype)


def _read(path: Path, job: _Job) -> Tensor | None:
    """The features in a file; None if it is missing or damaged."""
    if not path.exists():
        return None
    try:
        array = np.load(path, mmap_mode="c")
        if (array.shape, array.dtype) == (job.shape, job.dtype):
            return torch.from_numpy(array)
    except (OSError, ValueError, EOFError):
        pass
    warnings.warn(f"Cached features {path} are damaged or cut short; computing them again.", stacklevel=3)
    return None


def _reserve(path: Path) -> None:
    """Allocates the disk space, since writing to a memory map on a full disk would crash the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
