"""CIFAR-10 and CIFAR-100 in their Python version, whose pickles contain the images."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fpl_tune.core.contents import digests
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data.files import FolderLayout, cleaned, locate
from fpl_tune.data.pool import ArrayPool, Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.unpickle import unpickle

_FILES = {
    "cifar10": {"meta": ["batches.meta"], "train": [f"data_batch_{k}" for k in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"meta": ["meta"], "train": ["train"], "test": ["test"]},
}


def load_cifar(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists CIFAR-10 or CIFAR-100 (with its twenty super-classes), by `spec.name`."""
    files, fine = _FILES[spec.name], "fine_" if spec.name == "cifar100" else ""
    root = locate(spec, layout, files["meta"])
    (names,) = _fields(root / files["meta"][0], f"{fine}label_names")
    wanted = ("fine_labels", "coarse_labels") if fine else ("labels",)
    coarse = np.zeros(len(names), dtype=np.int64)
    pools: list[ArrayPool] = []
    for split in ("train", "test"):
        paths = [root / file for file in files[split]]
        columns = zip(*(_fields(path, *wanted) for path in paths), strict=True)
        label, *above = (np.concatenate(parts).astype(np.int64) for parts in columns)
        if fine:
            coarse[label] = above[0]
        version = digests(root, files[split]).tobytes().hex()
        pools.append(
            ArrayPool(
                key=f"{spec.name}-{split}",
                names=tuple(f"{split}/{i}" for i in range(len(label))),
                label=label,
                domain=np.zeros_like(label),
                transform=spec.name,
                fetch=partial(_images, tuple(paths), version),
                version=version,
                rows=np.arange(len(label)),
            )
        )
    return Dataset(
        spec.name, cleaned(names), ("images",), layout.template, pools[0], pools[1], coarse=coarse if fine else None
    )


@functools.lru_cache(maxsize=2)
def _images(paths: tuple[Path, ...], version: str) -> NDArray[np.uint8]:
    """uint8 [n, 32, 32, 3]. For another `version`, the files are read again."""
    parts = [np.asarray(_fields(path, "data")[0], dtype=np.uint8) for path in paths]
    return np.concatenate(parts).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _fields(path: Path, *names: str) -> list[Any]:
    """The entries `names` of a pickled dictionary."""
    batch = unpickle(path)
    for name in names:
        if not isinstance(batch, dict) or name not in batch:
            raise EnvironmentProblem(f"{path} lacks {name!r}: it is not a file of this data set. Download it again.")
    return [batch[name] for name in names]
