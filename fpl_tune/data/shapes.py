"""*Shapes*: a procedurally drawn world of 32×32 RGB images in six styles that mirror DomainNet's.

An image shows one of 20 shapes in one of 10 colours and 4 textures. Class names are words, so that it serves category,
fine-grained, domain-shift and base-to-novel protocols. Images are a function of the seed; no file is read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from threading import Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fpl_tune.core.errors import unknown
from fpl_tune.data.files import FolderLayout
from fpl_tune.data.pool import ArrayPool, Dataset
from fpl_tune.data.rendering import COLOURS, SHAPES, SIDE, STYLES, TEXTURES, Attributes, Ints, render
from fpl_tune.data.spec import DataSpec, kept_domains

SPLITS = ("train", "test", "pretraining")
Classes = Literal["shape", "object"]

_VERSION = 1  # of the images: raise it where drawing them changes, so that stored results and features are out of date
_BLOCK = 1024  # images with one generator, so that the first images do not depend on n


def draw(
    n: int,
    *,
    style: str,
    seed: int | Sequence[int],
    shape: Ints | None = None,
    colour: Ints | None = None,
    texture: Ints | None = None,
) -> tuple[NDArray[np.uint8], Attributes]:
    """Draw `n` images of one style: uint8 [n, 32, 32, 3] and what they show; attributes not given are random.

    `seed` may be a sequence (a stream within a seed).
    """
    code = STYLES.index(style)
    stream = [seed] if isinstance(seed, int) else list(seed)
    images = np.empty((n, SIDE, SIDE, 3), dtype=np.uint8)
    rng = np.random.default_rng([*stream, code])
    given = (shape, colour, texture)
    attributes = Attributes(
        *(
            rng.integers(len(names), size=n) if values is None else np.asarray(values, dtype=np.int64)
            for values, names in zip(given, (SHAPES, COLOURS, TEXTURES), strict=True)
        )
    )
    for number, start in enumerate(range(0, n, _BLOCK)):
        block = slice(start, start + _BLOCK)
        rng = np.random.default_rng([*stream, code, number])
        in_block = Attributes(*(values[block] for values in attributes))
        images[block] = render(style, in_block, rng)
    return images, attributes


def class_names(classes: Classes = "shape") -> tuple[str, ...]:
    """The 20 shapes, or the 200 colour-and-shape pairs ("red star"; the colour changes slowest)."""
    return SHAPES if classes == "shape" else tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)


def pool(
    style: str, split: str, *, per_class: int, classes: Classes = "shape", seed: int = 0
) -> tuple[NDArray[np.uint8], Ints]:
    """`per_class` images of every class in order: uint8 [n, 32, 32, 3] and labels int64 [n].

    Splits use different random streams; the compact CLIP was trained on "pretraining".
    """
    labels = np.repeat(np.arange(len(class_names(classes)), dtype=np.int64), per_class)
    shape, colour = labels % len(SHAPES), labels // len(SHAPES) if classes == "object" else None
    stream = (seed, SPLITS.index(split))
    images, _ = draw(len(labels), style=style, seed=stream, shape=shape, colour=colour)
    return images, labels


def load_shapes(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """*Shapes* with its six styles as domains, and shapes or coloured shapes as classes.

    Raises:
        ConfigError: unknown `spec.classes` or `spec.domains`.
    """
    if spec.classes not in ("", "shape", "object"):
        raise unknown("data.classes of shapes", spec.classes, ("shape", "object"))
    kind: Classes = spec.classes or "shape"
    styles = kept_domains("shapes", STYLES, spec.domains)
    train, test = (
        _pool(split, styles, per_class, kind)
        for split, per_class in (("train", spec.train_per_class), ("test", spec.test_per_class))
    )
    return Dataset("shapes", tuple(class_names(kind)), styles, layout.template, train, test)


def _pool(split: str, styles: tuple[str, ...], per_class: int, kind: Classes) -> ArrayPool:
    """Images by style, then by class."""
    n_classes = len(class_names(kind))
    per_style = per_class * n_classes
    label = np.tile(np.repeat(np.arange(n_classes, dtype=np.int64), per_class), len(styles))
    return ArrayPool(
        key=f"shapes-{kind}-{split}",
        names=tuple(f"{style}/{split}/{kind}/{i}" for style in styles for i in range(per_style)),
        label=label,
        domain=np.repeat(np.arange(len(styles), dtype=np.int64), per_style),
        transform="clip",
        fetch=partial(_drawn, split, styles, per_class, kind),
        version=f"{_VERSION} {split} {styles} {per_class} {kind}",
        rows=np.arange(len(label)),
    )


_drawing = Lock()


def _drawn(split: str, styles: tuple[str, ...], per_class: int, kind: Classes) -> NDArray[np.uint8]:
    with _drawing:  # several threads read the first images at once
        return _images(split, styles, per_class, kind)


@functools.lru_cache(maxsize=4)
def _images(split: str, styles: tuple[str, ...], per_class: int, kind: Classes) -> NDArray[np.uint8]:
    with ThreadPool(min(len(styles), os.cpu_count() or 1)) as threads:  # NumPy draws outside the interpreter's lock
        return np.concatenate(threads.map(lambda s: pool(s, split, per_class=per_class, classes=kind)[0], styles))
