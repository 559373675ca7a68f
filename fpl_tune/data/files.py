"""Data sets in files: find the folder, list its images, check that listed ones exist, split without a list."""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fpl_tune.data.pool import Dataset, FilePool, Ints, irregular
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass
class Rows:
    """A list of images being built: path below the root, class id, domain id."""

    names: list[str] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    domain: list[int] = field(default_factory=list)

    def add(self, names: Iterable[str], label: int, domain: int = 0) -> None:
        before = len(self.names)
        self.names.extend(names)
        self.label.extend([label] * (len(self.names) - before))
        self.domain.extend([domain] * (len(self.names) - before))

    def pool(self, key: str, root: Path) -> FilePool:
        return FilePool(
            key=key,
            names=tuple(self.names),
            label=np.array(self.label, dtype=np.int64),
            domain=np.array(self.domain, dtype=np.int64),
            transform="clip",
            root=str(root),
        )


def assemble(
    name: str,
    root: Path,
    classes: Sequence[str],
    domains: Sequence[str],
    template: str,
    rows: tuple[Rows, Rows],
    notes: tuple[str, ...] = (),
) -> Dataset:
    """The data set of the listed training and test images below `root`; class names are cleaned for prompts."""
    train, test = (part.pool(f"{name}-{split}", root) for part, split in zip(rows, ("train", "test"), strict=True))
    return Dataset(name, cleaned(classes), tuple(domains), template, train, test, notes=notes)


def cleaned(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names for prompts: blanks for underscores."""
    return tuple(name.replace("_", " ") for name in classes)


def locate(spec: DataSpec, folders: Sequence[str], markers: Sequence[str], origin: str) -> Path:
    """The folder of a data set: `data.root` itself or one of `folders` below it, whichever holds one of `markers`.

    Raises:
        EnvironmentProblem: none of them does; says what was expected where, and its origin.
    """
    if not spec.root:
        raise EnvironmentProblem(f"data={spec.name} needs files: set data.root to what holds {folders[0]}/. {origin}")
    root = Path(os.path.expanduser(spec.root))  # leaves a ~name that is not a user
    if not root.is_dir():
        raise EnvironmentProblem(f"data.root={spec.root} is not a folder. It should hold {folders[0]}/. {origin}")
    for folder in (*(root / name for name in folders), root):
        if any((folder / marker).exists() for marker in markers):
            return folder
    wanted = " or ".join(f"{folders[0]}/{marker}" for marker in markers)
    raise EnvironmentProblem(f"There is no {wanted} below {root}. {origin}")


def plain(name: str) -> str:
    """A folder name without case, blanks and punctuation: "Real World" equals "real_world"."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def subfolders(folder: Path) -> dict[str, Path]:
    """The visible folders in a folder by their name, in alphabetical order.

    Raises:
        EnvironmentProblem: a name is not UTF-8.
    """
    found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    for path in found:
        try:
            path.name.encode()
        except UnicodeEncodeError:
            raise EnvironmentProblem(f"A class or domain is named in UTF-8, but {str(path)!a} is not.") from None
    return {path.name: path for path in found}


def images_in(folder: Path, root: Path) -> list[str]:
    """The image files (by their suffix) below a folder, sorted, as paths below `root`.

    A folder that links lead to more than once is read once, so that loops of links end.

    Raises:
        EnvironmentProblem: an image is a pipe, a device or a broken link.
    """
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    left = [str(folder)]
    while left:
        at = left.pop()
        stat = os.stat(at)
        if (stat.st_dev, stat.st_ino) in seen:
            continue
        seen.add((stat.st_dev, stat.st_ino))
        relative = os.path.relpath(at, root).replace(os.sep, "/")
        inside: list[str] = []
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.is_dir():
                    inside.append(entry.path)
                elif is_image(entry.name):
                    if not entry.is_file():
                        raise irregular(Path(entry.path))
                    found.append(f"{relative}/{entry.name}")
        left += sorted(inside, reverse=True)
    return sorted(found)


def is_image(file: str) -> bool:
    """Whether a file name has an image's suffix and is not hidden."""
    return not file.startswith(".") and os.path.splitext(file)[1].lower() in SUFFIXES


def present(rows: Rows, root: Path, spec: DataSpec, listed_in: str) -> Rows:
    """The listed images that exist; warns of missing ones if `data.drop_missing` is set.

    Raises:
        EnvironmentProblem: images are missing and `data.drop_missing` is not set, or all are missing.
    """
    held: dict[str, set[str]] = {}
    exists = []
    for name in rows.names:
        folder, file = os.path.split(name)
        if folder not in held:
            held[folder] = _listdir(root / folder)
        exists.append(file in held[folder])
    if all(exists):
        return rows
    first = next(name for name, there in zip(rows.names, exists, strict=True) if not there)
    lacking = f"{exists.count(False)} of {len(exists)} images in {listed_in} are not below {root}, first {first}"
    if not spec.drop_missing or not any(exists):
        raise EnvironmentProblem(
            f"{lacking}. Complete the download, or set data.drop_missing=true to continue without them."
        )
    warnings.warn(f"{lacking}. Continuing without them.", stacklevel=2)
    kept = [i for i, there in enumerate(exists) if there]
    return Rows([rows.names[i] for i in kept], [rows.label[i] for i in kept], [rows.domain[i] for i in kept])


def _listdir(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def cut(names: Sequence[str], shares: Sequence[float], seed: int, group: str) -> list[list[str]]:
    """Shuffles the images of one class (of one domain) and cuts them by `shares`; the last part is the rest.

    Seeded by the group's name, so that the split of a class does not depend on other classes. The last part has at
    least one image if there are two.
    """
    order: Ints = np.random.default_rng([seed, zlib.crc32(group.encode())]).permutation(len(names))
    most = max(len(names) - 1, min(len(names), 1))
    edges = [min(round(edge * len(names)), most) for edge in np.cumsum(shares)]
    parts = np.split(order, edges)
    return [[names[int(i)] for i in np.sort(part)] for part in parts]
