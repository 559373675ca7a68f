"""*Shapes*: a procedurally drawn world of 32×32 RGB images in six styles that mirror DomainNet's.

An image shows one of 20 shapes in one of 10 colours and 4 textures. Class names are words, so that it serves category,
fine-grained, domain-shift and base-to-novel protocols. Images are a function of the seed; no file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data.rendering import COLOURS, SHAPES, SIDE, STYLES, TEXTURES, Attributes, Ints, render
from fpl_tune.errors import unknown

__all__ = ["COLOURS", "SHAPES", "SPLITS", "STYLES", "TEXTURES", "Attributes", "class_names", "draw", "pool"]

SPLITS = ("train", "test", "pretraining")
Classes = Literal["shape", "object"]

_BLOCK = 1024  # images with one generator, so that the first images do not depend on n


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, n)) for start in range(0, n, _BLOCK))


def _known(kind: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise unknown(kind, name, names)
    return names.index(name)


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

    `seed` may be a sequence (a stream within a seed). Raises `ConfigError` for an unknown style.
    """
    code = _known("style", style, STYLES)
    stream = [seed] if isinstance(seed, int) else list(seed)
    images = np.empty((n, SIDE, SIDE, 3), dtype=np.uint8)
    rng = np.random.default_rng([*stream, code])
    given = (shape, colour, texture)
    what = Attributes(
        *(
            rng.integers(len(names), size=n) if values is None else np.asarray(values, dtype=np.int64)
            for values, names in zip(given, (SHAPES, COLOURS, TEXTURES), strict=True)
        )
    )
    for number, block in enumerate(_blocks(n)):
        rng = np.random.default_rng([*stream, code, number])
        part = Attributes(*(values[block] for values in what))
        images[block] = render(style, part, rng)
    return images, what


def class_names(classes: Classes = "shape") -> tuple[str, ...]:
    """The 20 shapes, or the 200 colour-and-shape pairs ("red star"; the colour changes slowest)."""
    _known("kind of classes", classes, ("shape", "object"))
    return SHAPES if classes == "shape" else tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)


def pool(
    style: str, split: str, *, per_class: int, classes: Classes = "shape", seed: int = 0
) -> tuple[NDArray[np.uint8], Ints]:
    """`per_class` images of every class in order: uint8 [n, 32, 32, 3] and labels int64 [n].

    Splits use different random streams; the compact CLIP was trained on "pretraining".
    Raises `ConfigError` for an unknown style, split or kind of classes.
    """
    labels = np.repeat(np.arange(len(class_names(classes)), dtype=np.int64), per_class)
    shape, colour = labels % len(SHAPES), labels // len(SHAPES) if classes == "object" else None
    stream = (seed, _known("split", split, SPLITS))
    images, _ = draw(len(labels), style=style, seed=stream, shape=shape, colour=colour)
    return images, labels
