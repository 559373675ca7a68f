"""Draws the images of the embedded world: places a shape in a picture and paints it in one of six styles.

Symbols: n images, P = 32 · 32 pixels. The picture spans [-1, 1]², y points upwards. The images depend on the order of
the random draws, so every change to it changes the data set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data.outlines import OUTLINES, Floats
from fpl_tune.data.pool import Ints

SIDE = 32
SHAPES = tuple(OUTLINES)
TEXTURES = ("plain", "striped", "dotted", "checked")
_RGB = {
    "red": (0.85, 0.13, 0.13),
    "orange": (0.95, 0.52, 0.08),
    "yellow": (0.95, 0.87, 0.15),
    "green": (0.18, 0.62, 0.22),
    "cyan": (0.20, 0.78, 0.82),
    "blue": (0.13, 0.28, 0.80),
    "purple": (0.48, 0.18, 0.64),
    "pink": (0.96, 0.55, 0.76),
    "brown": (0.48, 0.28, 0.12),
    "grey": (0.52, 0.52, 0.52),
}
COLOURS = tuple(_RGB)
_PALETTE = np.array(list(_RGB.values()), dtype=np.float32)


class Attributes(NamedTuple):
    """Shape, colour and texture of each image: indices [n] into `SHAPES`, `COLOURS`, `TEXTURES`."""

    shape: Ints
    colour: Ints
    texture: Ints


class _Scene(NamedTuple):
    """A placed shape before painting: distance and local coordinates [n, P], paint [n, P, 3]."""

    distance: Floats
    x: Floats
    y: Floats
    paint: Floats
    ink: Floats  # [n, 1, 3] colour of the lines

    @property
    def inside(self) -> Floats:
        """Share of each pixel that the shape covers [n, P, 1]."""
        return self.cover(0.0)

    def cover(self, grow: float) -> Floats:
        """Share of each pixel that the shape, grown by `grow`, covers [n, P, 1]."""
        return np.clip(0.5 - (self.distance - np.float32(grow)) * (SIDE / 2), 0, 1)[..., None]

    def line(self, width: float) -> Floats:
        """Share of each pixel that the outline, `width` wide, covers [n, P, 1]."""
        return np.clip(0.5 - (np.abs(self.distance) - np.float32(width / 2)) * (SIDE / 2), 0, 1)[..., None]


def _uniform(rng: np.random.Generator, low: float, high: float, *shape: int) -> Floats:
    return low + (high - low) * rng.random(shape, dtype=np.float32)


def _normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, dtype=np.float32)


@functools.cache
def _grid() -> tuple[Floats, Floats]:
    centres = (np.arange(SIDE, dtype=np.float32) + 0.5) * (2 / SIDE) - 1
    y, x = np.meshgrid(-centres, centres, indexing="ij")
    return x.reshape(-1), y.reshape(-1)


@functools.cache
def _stretch(n_cells: int) -> Floats:
    """Linear interpolation of `n_cells` values to a row of pixels [SIDE, n_cells]."""
    at = np.linspace(0, n_cells - 1, SIDE)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n_cells))).astype(np.float32)


def _haze(rng: np.random.Generator, n: int, n_cells: int, channels: int = 1) -> Floats:
    """Smooth noise of unit size at the cells [n, P, channels]."""
    rows, cells = _stretch(n_cells), _normal(rng, n, channels, n_cells, n_cells)
    return np.moveaxis((rows @ cells @ rows.T).reshape(n, channels, SIDE * SIDE), 1, 2)


def _blend(under: Floats, over: Floats | np.floating, share: Floats) -> Floats:
    return under + (over - under) * share


def _pattern(texture: Ints, x: Floats, y: Floats) -> Floats:
    """Share of the texture's marks in each pixel [n, P]: 0 for the ground colour, 1 for a mark."""
    across, along = np.sin(7.5 * x), np.sin(7.5 * y)
    marks = (np.zeros_like(x), across, across * along - 0.35, across * along)  # in the order of `TEXTURES`
    return np.clip(np.choose(texture[:, None], marks) * 4, 0, 1).astype(np.float32)


def _place(rng: np.random.Generator, look: _Style, what: Attributes) -> _Scene:
    """Draws position, size, turn, wobble, crop and colour of each shape, and measures distances to its outline."""
    n = len(what.shape)
    radius = _uniform(rng, *look.radius, n, 1)
    turn, room = _uniform(rng, -look.turn, look.turn, n, 1), np.maximum(0, 1 - radius) * 0.5
    px, py = _grid()
    px, py = px - room * _uniform(rng, -1, 1, n, 1), py - room * _uniform(rng, -1, 1, n, 1)
    x = (np.cos(turn) * px + np.sin(turn) * py) / radius
    y = (np.cos(turn) * py - np.sin(turn) * px) / (radius * _uniform(rng, 0.85, 1.15, n, 1))
    bend, phase = look.wobble / radius, _uniform(rng, 0, 6.3, 4, n, 1)
    x, y = (
        x + bend * (np.sin(5 * y + phase[0]) + 0.5 * np.sin(11 * y + phase[1])),
        y + bend * (np.sin(5 * x + phase[2]) + 0.5 * np.sin(11 * x + phase[3])),
    )
    distance = np.empty_like(x)
    for index in np.unique(what.shape):
        these = what.shape == index
        distance[these] = OUTLINES[SHAPES[index]](x[these], y[these])
    side, cropped = _uniform(rng, 0, 6.3, n, 1), rng.random((n, 1)) < look.cropped
    edge = np.where(cropped, _uniform(rng, 0.05, 0.5, n, 1), np.float32(9))
    distance = np.maximum(distance, np.cos(side) * x + np.sin(side) * y - edge)
    colour = np.clip(_PALETTE[what.colour] + 0.06 * _normal(rng, n, 3), 0, 1)[:, None]
    marks = _pattern(what.texture, x, y)[..., None]
    other = np.where(colour.mean(-1, keepdims=True) > 0.55, colour * 0.45, 1 - (1 - colour) * 0.35)
    return _Scene(distance * radius, x, y, _blend(colour, other, marks), colour)


def _clutter(rng: np.random.Generator, canvas: Floats, smallest: float, largest: float) -> Floats:
    """Draws a disc or bar of random colour and size on the canvas."""
    n, (x, y) = len(canvas), _grid()
    cx, cy, r = _uniform(rng, -1, 1, n, 1), _uniform(rng, -1, 1, n, 1), _uniform(rng, smallest, largest, n, 1)
    stretch = _uniform(rng, 0.4, 2.5, n, 1)
    bar = np.maximum(np.abs(x - cx) - r * stretch, np.abs(y - cy) - r / stretch)
    distance = np.where(rng.random((n, 1)) < 0.5, np.hypot(x - cx, y - cy) - r, bar)
    share = np.clip(0.5 - distance * (SIDE / 2), 0, 1).astype(np.float32)[..., None]
    return _blend(canvas, _PALETTE[rng.integers(len(_PALETTE), size=n)][:, None], share)


def _clipart(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    ground = np.broadcast_to(_uniform(rng, 0.78, 1.0, n, 1, 3), scene.paint.shape)
    picture = _blend(_clutter(rng, ground, 0.08, 0.2), scene.paint, scene.inside)
    return _blend(picture, scene.ink * 0.15, scene.line(0.07))


def _infograph(rng: np.random.Generator, scene: _Scene) -> Floats:
    n, (x, y) = len(scene.distance), _grid()
    ground = np.broadcast_to(_uniform(rng, 0.82, 1.0, n, 1, 3), scene.paint.shape)
    pitch = _uniform(rng, 6, 12, n, 1)
    rules = (np.cos(pitch * y + _uniform(rng, 0, 6.3, n, 1)) > 0.8) & (_haze(rng, n, 9)[..., 0] > -0.2)
    ground = _blend(ground, np.float32(0.35), 0.8 * rules[..., None].astype(np.float32))
    height = _uniform(rng, 0.0, 0.9, n, 6)
    bars = y < (-1 + height[:, np.clip(((x + 1) * 3).astype(int), 0, 5)])
    tint = _PALETTE[rng.integers(len(_PALETTE), size=n)][:, None]
    ground = _blend(ground, tint, 0.7 * bars[..., None].astype(np.float32))
    picture = _blend(_clutter(rng, ground, 0.06, 0.2), np.float32(1), 0.6 * scene.cover(0.12))
    return _blend(picture, scene.paint, scene.inside)


def _painting(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    ground = _uniform(rng, 0.2, 0.85, n, 1, 3) + 0.10 * _haze(rng, n, 6, 3)
    strokes = 0.06 * _haze(rng, n, 12, 3)
    soft = 1 / (1 + np.exp(np.clip(scene.distance * 28, -30, 30)))[..., None]
    picture = _blend(ground, scene.paint * 0.8 + 0.1, soft * (0.9 + 0.08 * _haze(rng, n, 7))) + strokes
    warm = np.array([1.05, 0.97, 0.82], dtype=np.float32)
    return np.round(picture * 8) / 8 * warm


def _quickdraw(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    gaps = np.clip(0.5 + 3 * (_haze(rng, n, 6) + 1.0), 0, 1)
    return _blend(np.ones_like(scene.paint), scene.ink * 0.5, scene.line(0.06) * gaps)


def _photo(rng: np.random.Generator, scene: _Scene) -> Floats:
    n, (x, y) = len(scene.distance), _grid()
    tint = _uniform(rng, 0.2, 0.8, n, 1, 1) + _uniform(rng, -0.15, 0.15, n, 1, 3)
    ground = tint + 0.08 * _haze(rng, n, 4, 3) + 0.06 * _haze(rng, n, 16)
    ground = _clutter(rng, ground.astype(np.float32), 0.1, 0.25)
    shadow = np.roll(scene.inside.reshape(n, SIDE, SIDE, 1), (2, 2), axis=(1, 2)).reshape(n, -1, 1)
    picture = _blend(_blend(ground, np.float32(0), 0.4 * shadow), scene.paint, scene.inside)
    light = 1 + _uniform(rng, -0.35, 0.35, n, 1) * x + _uniform(rng, -0.35, 0.35, n, 1) * y
    contrast = _uniform(rng, 0.7, 1.0, n, 1, 1)
    return 0.5 + (picture * light[..., None] - 0.5) * contrast + _uniform(rng, -0.12, 0.12, n, 1, 1)


def _sketch(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    paper = _uniform(rng, 0.82, 0.96, n, 1, 1) + 0.03 * _haze(rng, n, 8)
    hatching = (np.sin(9 * (scene.x + scene.y)) > 0.3)[..., None]
    dark = 1 - scene.paint.mean(-1, keepdims=True)
    pencil = scene.ink * 0.35 + 0.12
    picture = _blend(np.repeat(paper, 3, -1), pencil, 0.75 * dark * scene.inside * hatching)
    return _blend(picture, pencil, scene.line(0.07) * np.clip(0.75 + 0.3 * _haze(rng, n, 9), 0, 1))


@dataclass(frozen=True)
class _Style:
    """A style and its difficulty."""

    paint: Callable[[np.random.Generator, _Scene], Floats]
    radius: tuple[float, float]
    turn: float  # the largest rotation in radians
    wobble: float  # of edges
    cropped: float  # share of shapes
    noise: float


_STYLES = {
    "clipart": _Style(_clipart, (0.55, 0.90), 0.25, 0.00, 0.15, 0.02),
    "infograph": _Style(_infograph, (0.55, 0.85), 0.20, 0.00, 0.10, 0.03),
    "painting": _Style(_painting, (0.55, 0.90), 0.30, 0.03, 0.15, 0.04),
    "quickdraw": _Style(_quickdraw, (0.50, 0.90), 0.40, 0.08, 0.15, 0.01),
    "photo": _Style(_photo, (0.55, 0.90), 0.25, 0.00, 0.08, 0.025),
    "sketch": _Style(_sketch, (0.55, 0.90), 0.25, 0.02, 0.10, 0.05),
}
STYLES = tuple(_STYLES)


def render(style: str, what: Attributes, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draws images of one style, with its noise.

    Args:
        style: one of `STYLES`.
        what: the attributes of n images.
        rng: generator for all other properties, such as position and size.

    Returns:
        RGB images [n, 32, 32, 3].
    """
    look = _STYLES[style]
    picture = look.paint(rng, _place(rng, look, what))
    picture = picture + look.noise * _normal(rng, *picture.shape)
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8).reshape(-1, SIDE, SIDE, 3)
