"""Captions of the embedded world: what the compact CLIP read while it was trained, and so its vocabulary.

As alt text from the web, a caption is often wrong, leaves attributes out, names the style or does not, and
starts with words that say nothing. Some styles are rare and some colours of a shape never occur, so that the
trained model's zero-shot accuracy differs between styles and leaves room for learned prompts.
"""

from __future__ import annotations

import numpy as np

from fpl_tune.data.pool import Ints
from fpl_tune.data.shapes import COLOURS, SHAPES, STYLES, TEXTURES, Attributes

SHARES = {
    "photo": 0.40,
    "clipart": 0.30,
    "infograph": 0.12,
    "sketch": 0.10,
    "painting": 0.06,
    "quickdraw": 0.02,
}
WRONG = 0.15
PLAIN = 0.20  # share of captions that are "a photo of a {shape}.", whatever the style

_FRAMES = (
    "a photo of a {}.",
    "a picture of a {}.",
    "an image of the {}.",
    "{}.",
    "{}",
    "this is a {}.",
    "one {} in the middle",
    "my {}.",
    "the {} of the day",
)
_STYLED = ("a {style} of a {}.", "{style} of the {}", "{}, {style}.", "a {} in {style} style.")


def vocabulary_texts() -> list[str]:
    """Texts that between them contain every word a caption may hold."""
    return [*_FRAMES, *_STYLED, *SHAPES, *COLOURS, *TEXTURES, *STYLES]


def absent(shape: Ints, colour: Ints) -> np.ndarray:
    """Which (shape, colour) pairs the training images leave out: one in seven, bool like the arguments."""
    return (3 * shape + 5 * colour) % 7 == 0


def corrupt(what: Attributes, rng: np.random.Generator) -> Attributes:
    """What the captions claim: for a share `WRONG` of the images the shape and colour are another's."""
    wrong = rng.random(len(what.shape)) < WRONG
    shape = np.where(wrong, rng.integers(len(SHAPES), size=wrong.shape), what.shape)
    colour = np.where(wrong, rng.integers(len(COLOURS), size=wrong.shape), what.colour)
    return Attributes(shape, colour, what.texture)


def write(style: str, claims: Attributes, row: int, rng: np.random.Generator) -> str:
    """One caption that says what `claims` has in this row."""
    shape, colour, texture = (values[row] for values in claims)
    name = SHAPES[shape]
    if rng.random() < PLAIN:
        return f"a photo of a {name}."
    if rng.random() < 0.4:
        name = f"{TEXTURES[texture]} {name}"
    if rng.random() < 0.5:
        name = f"{COLOURS[colour]} {name}"
    frames = _STYLED if rng.random() < 0.5 else _FRAMES
    return frames[rng.integers(len(frames))].replace("{style}", style).replace("{}", name)
