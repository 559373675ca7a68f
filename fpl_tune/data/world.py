"""The embedded data set: *Shapes* as pools of drawn images."""

from __future__ import annotations

import functools
import os
from functools import partial
from multiprocessing.pool import ThreadPool
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data import shapes
from fpl_tune.data.files import Layout
from fpl_tune.data.listing import kept_domains
from fpl_tune.data.pool import ArrayPool, Dataset, digest
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import unknown


def load_shapes(spec: DataSpec, layout: Layout) -> Dataset:
    """*Shapes* with its six styles as domains, and shapes or coloured shapes as classes.

    Raises:
        ConfigError: unknown `spec.classes` or `spec.domains`.
    """
    if spec.classes not in ("", "shape", "object"):
        raise unknown("data.classes of shapes", spec.classes, ("shape", "object"))
    kind: shapes.Classes = spec.classes or "shape"
    styles = kept_domains("shapes", shapes.STYLES, spec.domains)
    train, test = (
        _pool(split, styles, per_class, kind)
        for split, per_class in (("train", spec.train_per_class), ("test", spec.test_per_class))
    )
    return Dataset("shapes", tuple(shapes.class_names(kind)), styles, layout.template, train, test)


def _pool(split: str, styles: tuple[str, ...], per_class: int, kind: shapes.Classes) -> ArrayPool:
    """Images by style, then by class."""
    n_classes = len(shapes.class_names(kind))
    per_style = per_class * n_classes
    label = np.tile(np.repeat(np.arange(n_classes, dtype=np.int64), per_class), len(styles))
    return ArrayPool(
        key=f"shapes-{kind}-{split}",
        names=tuple(f"{style}/{split}/{kind}/{i}" for style in styles for i in range(per_style)),
        label=label,
        domain=np.repeat(np.arange(len(styles), dtype=np.int64), per_style),
        transform="clip",
        fetch=partial(_drawn, split, styles, per_class, kind),
        version=f"{_world()} {split} {styles} {per_class} {kind}",
        rows=np.arange(len(label)),
    )


_drawing = Lock()


def _drawn(split: str, styles: tuple[str, ...], per_class: int, kind: shapes.Classes) -> NDArray[np.uint8]:
    with _drawing:  # several threads read the first images at once
        return _images(split, styles, per_class, kind)


@functools.lru_cache(maxsize=4)
def _images(split: str, styles: tuple[str, ...], per_class: int, kind: shapes.Classes) -> NDArray[np.uint8]:
    with ThreadPool(min(len(styles), os.cpu_count() or 1)) as threads:  # NumPy draws outside the interpreter's lock
        return np.concatenate(
            threads.map(lambda s: shapes.pool(s, split, per_class=per_class, classes=kind)[0], styles)
        )


@functools.cache
def _world() -> str:
    """A digest of one image of each shape in each style: it changes when the drawing code does."""
    every = np.arange(len(shapes.SHAPES))
    drawn = (shapes.draw(len(every), style=style, seed=0, shape=every)[0] for style in shapes.STYLES)
    return digest(images.tobytes() for images in drawn)[:16]
