"""CIFAR-10 and CIFAR-100 in their Python version, whose pickles hold the images."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data.files import cleaned, locate
from fpl_tune.data.pool import ArrayPool, Dataset, Ints
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.unpickle import unpickle
from fpl_tune.errors import EnvironmentProblem


@dataclass(frozen=True)
class _Layout:
    folder: str
    files: dict[str, tuple[str, ...]]
    meta: str
    names: str
    label: str


_LAYOUTS = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)},
        "batches.meta",
        "label_names",
        "labels",
    ),
    "cifar100": _Layout(
        "cifar-100-python", {"train": ("train",), "test": ("test",)}, "meta", "fine_label_names", "fine_labels"
    ),
}


def load_cifar(spec: DataSpec, origin: str) -> Dataset:
    """CIFAR-10 or CIFAR-100 (with its twenty super-classes), by `spec.name`."""
    layout = _LAYOUTS[spec.name]
    root = locate(spec, (layout.folder,), (layout.meta,), origin)
    names = _field(unpickle(root / layout.meta), layout.names, root / layout.meta)
    pools: list[ArrayPool] = []
    coarse = np.zeros(len(names), dtype=np.int64)
    for split, files in layout.files.items():
        paths = [root / file for file in files]
        batches = [(path, unpickle(path)) for path in paths]
        label = np.concatenate([np.asarray(_field(b, layout.label, p), dtype=np.int64) for p, b in batches])
        if spec.name == "cifar100":
            coarse[label] = np.concatenate([_field(b, "coarse_labels", p) for p, b in batches])
        pools.append(_pool(spec.name, split, label, paths))
    return Dataset(
        name=spec.name,
        classes=cleaned(names),
        domains=("images",),
        template="a photo of a {}.",
        train=pools[0],
        test=pools[1],
        coarse=coarse if spec.name == "cifar100" else None,
    )


def _pool(name: str, split: str, label: Ints, paths: list[Path]) -> ArrayPool:
    stats = [path.stat() for path in paths]
    return ArrayPool(
        key=f"{name}-{split}",
        names=tuple(f"{split}/{i}" for i in range(len(label))),
        label=label,
        domain=np.zeros_like(label),
        transform=name,
        fetch=partial(_images, tuple(paths)),
        version=" ".join(f"{path.name} {s.st_size} {s.st_mtime_ns}" for path, s in zip(paths, stats, strict=True)),
        rows=np.arange(len(label)),
    )


@functools.lru_cache(maxsize=2)
def _images(paths: tuple[Path, ...]) -> NDArray[np.uint8]:
    """uint8 [n, 32, 32, 3]"""
    parts = [np.asarray(_field(unpickle(path), "data", path), dtype=np.uint8) for path in paths]
    return np.concatenate(parts).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _field(batch: object, name: str, path: Path) -> list[Any]:
    if not isinstance(batch, dict) or name not in batch:
        raise EnvironmentProblem(f"{path} lacks {name!r}: it is not a file of this data set. Download it again.")
    return batch[name]
