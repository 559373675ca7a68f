"""A data set: class names, domains, and two pools of labelled images that are read one by one."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fpl_tune.core import contents
from fpl_tune.core.errors import EnvironmentProblem

Ints = NDArray[np.int64]
T = TypeVar("T")


def digest_of_parts(parts: Iterable[str | bytes]) -> str:
    """Hex digest (SHA-256) of a sequence of strings and bytes, including their boundaries."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


@dataclass(frozen=True, eq=False)
class Pool(ABC):
    """n labelled images of one split. Creating a pool reads no pixels."""

    key: str
    """Name of the pool in caches and messages, such as "pacs-train"."""
    names: tuple[str, ...]
    """One name per image: its path below the root, or a unique name. The same on every machine."""
    label: Ints
    """[n] class ids."""
    domain: Ints
    """[n] positions in `Dataset.domains`."""
    transform: str
    """Name of the transform in `fpl_tune.data.transform`."""

    def __len__(self) -> int:
        return len(self.label)

    @abstractmethod
    def read(self, i: int) -> Image.Image | NDArray[np.uint8]:
        """One image in RGB: a PIL image or uint8 [h, w, 3]. Raises `EnvironmentProblem` if it cannot be read."""

    @abstractmethod
    def stamp(self) -> str:
        """Hex digest that changes with the images: of files by content, of drawn images by the code that draws them."""

    @cached_property
    def content(self) -> str:
        """The value of `stamp` at its first call."""
        return self.stamp()

    def take(self, rows: Ints) -> Self:
        """The pool of the images `rows`, in this order."""
        names = tuple(self.names[i] for i in rows.tolist())
        return replace(self, names=names, label=self.label[rows], domain=self.domain[rows])


@dataclass(frozen=True, eq=False)
class FilePool(Pool):
    """Images in files."""

    root: str = ""

    def read(self, i: int) -> Image.Image:
        return read_image(Path(self.root, self.names[i]))

    def stamp(self) -> str:
        return digest_of_parts(["\n".join(self.names), contents.digests(self.root, self.names).tobytes()])


@dataclass(frozen=True, eq=False)
class ArrayPool(Pool):
    """Images in one array (drawn images, CIFAR), which is created when the first image is read."""

    fetch: Callable[[], NDArray[np.uint8]] = field(default=lambda: np.empty((0, 1, 1, 3), np.uint8))
    """Returns all images, uint8 [m, h, w, 3]. It must be a module-level function, so that the pool can be pickled."""
    version: str = ""
    """Changes when the return value of `fetch` changes, and is the same on every machine."""
    rows: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """[n] row of each image in the array."""

    def read(self, i: int) -> NDArray[np.uint8]:
        return self.fetch()[self.rows[i]]

    def stamp(self) -> str:
        return digest_of_parts([self.version, self.rows.tobytes()])

    def take(self, rows: Ints) -> Self:
        return replace(super().take(rows), rows=self.rows[rows])


@dataclass(frozen=True, eq=False)
class JoinedPool(Pool):
    """The concatenation of several pools."""

    parts: tuple[Pool, ...] = ()
    origin: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """[n, 2] each image's part, and its row in this part."""

    def read(self, i: int) -> Image.Image | NDArray[np.uint8]:
        number, row = self.origin[i].tolist()
        return self.parts[number].read(row)

    def stamp(self) -> str:
        return digest_of_parts([*(part.stamp() for part in self.parts), self.origin.tobytes()])

    def take(self, rows: Ints) -> Self:
        return replace(super().take(rows), origin=self.origin[rows])


def join(first: Pool, second: Pool) -> JoinedPool:
    """Joins two pools of one data set, with the key and transform of the first."""
    parts = (first, second)
    origin = [np.stack([np.full(len(part), k), np.arange(len(part))], 1) for k, part in enumerate(parts)]
    return JoinedPool(
        key=first.key,
        names=first.names + second.names,
        label=np.concatenate([part.label for part in parts]),
        domain=np.concatenate([part.domain for part in parts]),
        transform=first.transform,
        parts=parts,
        origin=np.concatenate(origin).astype(np.int64),
    )


@dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded data set. `train` and `test` share no image."""

    name: str
    classes: tuple[str, ...]
    """K names in the order of the labels, cleaned for prompts."""
    domains: tuple[str, ...]
    template: str
    """The data set's own hand-written prompt, with {} for the class name."""
    train: Pool
    test: Pool
    own_names: tuple[str, ...] = ()
    """K class names as in folders or lists, by which `data.names` refers to classes; if empty, `classes` are used."""
    coarse: Ints | None = None
    """[K] super-class of each class, if the data set has super-classes (CIFAR-100)."""
    notes: tuple[str, ...] = ()
    """Notes on how the data set was read, such as a missing official split, one sentence each."""
    repeats: Ints = field(default_factory=lambda: np.zeros((2, 1), np.int64))
    """[2, domains] how many training and test images the list repeats, with the same label; the pools hold one each."""

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of class names, template, domains, and the contents, names, labels and domains of all images."""
        parts: list[str | bytes] = [self.name, self.template, "\n".join(self.classes), "\n".join(self.domains)]
        for pool in (self.train, self.test):
            parts += [pool.content, "\n".join(pool.names), pool.label.tobytes(), pool.domain.tobytes()]
        return digest_of_parts([*parts, b"" if self.coarse is None else self.coarse.tobytes()])[:16]


def read_image(path: Path) -> Image.Image:
    """The image as `as_rgb` makes it. Raises `EnvironmentProblem` naming the file if it cannot be read."""
    try:
        with Image.open(path) as image:
            return as_rgb(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise EnvironmentProblem(
            f"Cannot read image {path}: {error}. `fpl-tune data check` lists all such files; "
            "download them again, or delete them and set data.drop_missing=true."
        ) from None


def as_rgb(image: Image.Image) -> Image.Image:
    """The image in 8-bit RGB by Pillow's conversion, rotated by its EXIF orientation.

    Raises:
        ValueError: its pixels are 16- or 32-bit numbers, whose range is unknown.
    """
    image.load()
    if image.mode[0] in "IF":
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}); store it with 8")
    with suppress(Exception):  # damaged metadata; the pixels are intact
        image = ImageOps.exif_transpose(image)
    return image.convert("RGB")


def read_in_threads(work: Callable[[int], T], n: int, batch: int) -> Iterator[list[T]]:
    """Calls `work` with the rows below `n` in several threads, and yields the results of `batch` rows at a time."""
    with ThreadPool(min(16, os.cpu_count() or 1)) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata; only unreadable pixels matter
        for start in range(0, n, batch):
            yield threads.map(work, range(start, min(start + batch, n)))
