"""*Shapes*: a procedurally drawn world of 32×32 RGB images in six styles that mirror DomainNet's.

An image shows one of 20 shapes (signed distance functions) in one of 10 colours and 4 textures. Its class names are
words, so one world serves category, fine-grained, domain-shift and base-to-novel protocols. Everything is a function
of the seed; nothing is read from disk.

Symbols: n images, P = 32 · 32 pixels. Distances are in units of the shape's radius, the picture spans [-1, 1]².
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpl_tune.errors import unknown

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Field = Callable[[Floats, Floats], Floats]

SIDE = 32
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink", "brown", "grey")
TEXTURES = ("plain", "striped", "dotted", "checked")
STYLES = ("clipart", "infograph", "painting", "quickdraw", "photo", "sketch")
SPLITS = ("train", "test", "pretraining")

_PALETTE = np.array(
    [
        (0.85, 0.13, 0.13),
        (0.95, 0.52, 0.08),
        (0.95, 0.87, 0.15),
        (0.18, 0.62, 0.22),
        (0.20, 0.78, 0.82),
        (0.13, 0.28, 0.80),
        (0.48, 0.18, 0.64),
        (0.96, 0.55, 0.76),
        (0.48, 0.28, 0.12),
        (0.52, 0.52, 0.52),
    ],
    dtype=np.float32,
)
_BLOCK = 1024  # images drawn together; each block has its own generator, so n does not change the images before it


# ---- signed distances (negative inside) ------------------------------------------------------------------------


def _disc(x: Floats, y: Floats, radius: float, cx: float = 0.0, cy: float = 0.0) -> Floats:
    return np.hypot(x - np.float32(cx), y - np.float32(cy)) - np.float32(radius)


def _box(x: Floats, y: Floats, half_width: float, half_height: float, cx: float = 0.0, cy: float = 0.0) -> Floats:
    return np.maximum(np.abs(x - np.float32(cx)) - half_width, np.abs(y - np.float32(cy)) - half_height)


def _polygon(x: Floats, y: Floats, corners: Sequence[tuple[float, float]]) -> Floats:
    """Exact distance to a simple polygon; the sign is the parity of the edges a ray to the right crosses."""
    squared = np.full_like(x, np.inf)
    inside = np.zeros(x.shape, dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, (*corners[1:], corners[0]), strict=True):
        ex, ey, wx, wy = bx - ax, by - ay, x - np.float32(ax), y - np.float32(ay)
        along = np.clip((wx * ex + wy * ey) / (ex * ex + ey * ey), 0, 1)
        squared = np.minimum(squared, (wx - ex * along) ** 2 + (wy - ey * along) ** 2)
        straddles = (y >= ay) != (y >= by)
        inside ^= straddles & ((wx * ey < wy * ex) == (by > ay))
    return np.where(inside, -1, 1).astype(np.float32) * np.sqrt(squared)


def _regular(n_corners: int, radii: Sequence[float], turn: float = 0.0) -> list[tuple[float, float]]:
    angles = [np.pi / 2 + turn + 2 * np.pi * k / n_corners for k in range(n_corners)]
    return [(r * np.cos(a), r * np.sin(a)) for a, r in zip(angles, list(radii) * n_corners, strict=False)]


def _petals(x: Floats, y: Floats, n_petals: int, radius: float, depth: float, sharpness: float) -> Floats:
    lobes = np.tanh(sharpness * np.cos(n_petals * np.arctan2(x, y))) / np.tanh(sharpness)
    return (np.hypot(x, y) - radius - depth * lobes).astype(np.float32)


def _heart(x: Floats, y: Floats) -> Floats:
    lobes = np.minimum(_disc(x, y, 0.45, -0.38, 0.28), _disc(x, y, 0.45, 0.38, 0.28))
    return np.minimum(lobes, _polygon(x, y, [(-0.76, 0.08), (0.76, 0.08), (0.0, -0.82)]))


def _drop(x: Floats, y: Floats) -> Floats:
    return np.minimum(_disc(x, y, 0.52, 0, -0.3), _polygon(x, y, [(-0.46, -0.05), (0.46, -0.05), (0.0, 0.9)]))


def _fish(x: Floats, y: Floats) -> Floats:
    body = np.maximum(_disc(x, y, 0.8, 0.2, -0.42), _disc(x, y, 0.8, 0.2, 0.42))
    return np.minimum(body, _polygon(x, y, [(-0.3, 0.0), (-0.9, 0.45), (-0.9, -0.45)]))


def _tree(x: Floats, y: Floats) -> Floats:
    crown = _polygon(x, y, [(-0.62, -0.35), (0.62, -0.35), (0.0, 0.9)])
    return np.minimum(crown, _box(x, y, 0.13, 0.3, 0, -0.6))


def _cloud(x: Floats, y: Floats) -> Floats:
    puffs = np.minimum(_disc(x, y, 0.34, -0.5, -0.12), _disc(x, y, 0.46, 0.0, 0.14))
    return np.minimum(np.minimum(puffs, _disc(x, y, 0.34, 0.5, -0.08)), _box(x, y, 0.5, 0.18, 0, -0.28))


def _key(x: Floats, y: Floats) -> Floats:
    bow = np.abs(_disc(x, y, 0.3, -0.5, 0)) - np.float32(0.12)
    teeth = np.minimum(_box(x, y, 0.08, 0.17, 0.5, -0.2), _box(x, y, 0.08, 0.17, 0.78, -0.2))
    return np.minimum(np.minimum(bow, _box(x, y, 0.55, 0.09, 0.32, 0)), teeth)


def _outline(*corners: tuple[float, float]) -> Field:
    return lambda x, y: _polygon(x, y, corners)


_FIELDS: dict[str, Field] = {
    "circle": lambda x, y: _disc(x, y, 0.8),
    "square": lambda x, y: _box(x, y, 0.68, 0.68),
    "triangle": _outline(*_regular(3, [0.92])),
    "star": _outline(*_regular(10, [0.95, 0.42])),
    "heart": _heart,
    "cross": lambda x, y: np.minimum(_box(x, y, 0.28, 0.82), _box(x, y, 0.82, 0.28)),
    "ring": lambda x, y: np.abs(_disc(x, y, 0.64)) - np.float32(0.19),
    "moon": lambda x, y: np.maximum(_disc(x, y, 0.85), -_disc(x, y, 0.7, 0.42, 0.1)),
    "diamond": _outline((0.0, 0.92), (0.6, 0.0), (0.0, -0.92), (-0.6, 0.0)),
    "hexagon": _outline(*_regular(6, [0.84], np.pi / 6)),
    "arrow": _outline(
        (0.92, 0), (0.25, 0.6), (0.25, 0.24), (-0.85, 0.24), (-0.85, -0.24), (0.25, -0.24), (0.25, -0.6)
    ),
    "drop": _drop,
    "flower": lambda x, y: _petals(x, y, 5, 0.62, 0.22, 0.5),
    "gear": lambda x, y: np.maximum(_petals(x, y, 8, 0.7, 0.14, 3.0), -_disc(x, y, 0.27)),
    "house": _outline((-0.62, -0.75), (0.62, -0.75), (0.62, 0.15), (0.85, 0.15), (0, 0.88), (-0.85, 0.15), (-0.62, 0.15)),
    "fish": _fish,
    "tree": _tree,
    "cloud": _cloud,
    "key": _key,
    "bolt": _outline((0.15, 0.95), (-0.55, -0.12), (-0.06, -0.12), (-0.2, -0.95), (0.55, 0.2), (0.06, 0.2), (0.42, 0.95)),
}
SHAPES = tuple(_FIELDS)


# ---- one block of images -----------------------------------------------------------------------------------------


class Attributes(NamedTuple):
    """What each image shows: indices [n] into `SHAPES`, `COLOURS`, `TEXTURES`."""

    shape: Ints
    colour: Ints
    texture: Ints


@dataclass(frozen=True)
class _Look:
    """How hard a style is: radius range, largest turn (radians), edge wobble, share of cropped shapes, noise (std)."""

    radius: tuple[float, float]
    turn: float
    wobble: float
    cropped: float
    noise: float


_LOOKS = {
    "clipart": _Look((0.42, 0.85), 0.35, 0.00, 0.25, 0.02),
    "infograph": _Look((0.32, 0.60), 0.25, 0.00, 0.20, 0.03),
    "painting": _Look((0.45, 0.85), 0.40, 0.04, 0.25, 0.04),
    "quickdraw": _Look((0.50, 0.90), 0.45, 0.05, 0.15, 0.01),
    "photo": _Look((0.42, 0.85), 0.40, 0.02, 0.30, 0.05),
    "sketch": _Look((0.45, 0.85), 0.35, 0.03, 0.20, 0.05),
}


class _Scene(NamedTuple):
    """A placed shape before it is rendered: distance in picture units [n, P], local coordinates, paint [n, P, 3]."""

    distance: Floats
    x: Floats
    y: Floats
    paint: Floats
    ink: Floats  # [n, 1, 3] the colour of its lines

    @property
    def inside(self) -> Floats:
        return self.cover(0.0)

    def cover(self, grow: float) -> Floats:
        """Share of each pixel that the shape, grown by `grow`, covers [n, P, 1]."""
        return np.clip(0.5 - (self.distance - np.float32(grow)) * (SIDE / 2), 0, 1)[..., None]

    def line(self, width: float) -> Floats:
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


def _blend(under: Floats, over: Floats, share: Floats) -> Floats:
    return under + (over - under) * share


def _pattern(texture: Ints, x: Floats, y: Floats) -> Floats:
    """0 where the ground colour shows, 1 where the texture's marks are [n, P]."""
    across, along = np.sin(7.5 * x), np.sin(7.5 * y)
    marks = {"plain": np.zeros_like(x), "striped": across, "dotted": across * along - 0.35, "checked": across * along}
    code = texture[:, None]
    chosen = np.select([code == TEXTURES.index(name) for name in marks], list(marks.values()))
    return np.clip(chosen * 4, 0, 1).astype(np.float32)


def _place(rng: np.random.Generator, look: _Look, what: Attributes) -> _Scene:
    n = len(what.shape)
    radius = _uniform(rng, *look.radius, n, 1)
    turn, room = _uniform(rng, -look.turn, look.turn, n, 1), np.maximum(0, 1 - radius) * 0.9
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
        distance[these] = _FIELDS[SHAPES[index]](x[these], y[these])
    side, cropped = _uniform(rng, 0, 6.3, n, 1), rng.random((n, 1)) < look.cropped
    edge = np.where(cropped, _uniform(rng, 0.05, 0.5, n, 1), np.float32(9))
    distance = np.maximum(distance, np.cos(side) * x + np.sin(side) * y - edge)
    colour = np.clip(_PALETTE[what.colour] + 0.06 * _normal(rng, n, 3), 0, 1)[:, None]
    marks = _pattern(what.texture, x, y)[..., None]
    other = np.where(colour.mean(-1, keepdims=True) > 0.55, colour * 0.45, 1 - (1 - colour) * 0.35)
    return _Scene(distance * radius, x, y, _blend(colour, other, marks), colour)


# ---- styles: a scene -> picture [n, P, 3] ---------------------------------------------------------------------------


def _clutter(rng: np.random.Generator, canvas: Floats, n_specks: int, size: tuple[float, float]) -> Floats:
    """Discs and bars of any colour behind the shape."""
    n, (x, y) = len(canvas), _grid()
    for _ in range(n_specks):
        cx, cy, r = _uniform(rng, -1, 1, n, 1), _uniform(rng, -1, 1, n, 1), _uniform(rng, *size, n, 1)
        stretch = _uniform(rng, 0.4, 2.5, n, 1)
        bar = np.maximum(np.abs(x - cx) - r * stretch, np.abs(y - cy) - r / stretch)
        distance = np.where(rng.random((n, 1)) < 0.5, np.hypot(x - cx, y - cy) - r, bar)
        share = np.clip(0.5 - distance * (SIDE / 2), 0, 1).astype(np.float32)[..., None]
        canvas = _blend(canvas, _PALETTE[rng.integers(len(_PALETTE), size=n)][:, None], share)
    return canvas


def _clipart(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    ground = np.broadcast_to(_uniform(rng, 0.78, 1.0, n, 1, 3), scene.paint.shape)
    picture = _blend(_clutter(rng, ground, 1, (0.08, 0.2)), scene.paint, scene.inside)
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
    picture = _blend(_clutter(rng, ground, 2, (0.06, 0.2)), np.float32(1), 0.6 * scene.cover(0.12))
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
    ground = _uniform(rng, 0.1, 0.9, n, 1, 3) + 0.12 * _haze(rng, n, 4, 3) + 0.07 * _haze(rng, n, 16)
    ground = _clutter(rng, ground.astype(np.float32), 2, (0.1, 0.35))
    shadow = np.roll(scene.inside.reshape(n, SIDE, SIDE, 1), (2, 2), axis=(1, 2)).reshape(n, -1, 1)
    picture = _blend(_blend(ground, np.float32(0), 0.4 * shadow), scene.paint, scene.inside)
    light = 1 + _uniform(rng, -0.35, 0.35, n, 1) * x + _uniform(rng, -0.35, 0.35, n, 1) * y
    contrast = _uniform(rng, 0.45, 1.0, n, 1, 1)
    return 0.5 + (picture * light[..., None] - 0.5) * contrast + _uniform(rng, -0.12, 0.12, n, 1, 1)


def _sketch(rng: np.random.Generator, scene: _Scene) -> Floats:
    n = len(scene.distance)
    paper = _uniform(rng, 0.82, 0.96, n, 1, 1) + 0.03 * _haze(rng, n, 8)
    hatching = (np.sin(9 * (scene.x + scene.y)) > 0.3)[..., None]
    dark = 1 - scene.paint.mean(-1, keepdims=True)
    pencil = scene.ink * 0.35 + 0.12
    picture = _blend(np.repeat(paper, 3, -1), pencil, 0.75 * dark * scene.inside * hatching)
    return _blend(picture, pencil, scene.line(0.07) * np.clip(0.75 + 0.3 * _haze(rng, n, 9), 0, 1))


_RENDER: dict[str, Callable[[np.random.Generator, _Scene], Floats]] = {
    "clipart": _clipart,
    "infograph": _infograph,
    "painting": _painting,
    "quickdraw": _quickdraw,
    "photo": _photo,
    "sketch": _sketch,
}


# ---- the world ------------------------------------------------------------------------------------------------------


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
    """Draw `n` images of one style: uint8 [n, 32, 32, 3] and what they show; attributes not given are uniform.

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
        picture = _RENDER[style](rng, _place(rng, _LOOKS[style], part))
        picture = picture + _LOOKS[style].noise * _normal(rng, *picture.shape)
        images[block] = (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8).reshape(-1, SIDE, SIDE, 3)
    return images, what


Classes = Literal["shape", "object"]


def class_names(classes: Classes = "shape") -> tuple[str, ...]:
    """The 20 shapes, or the 200 colour-and-shape pairs ("red star"; the colour changes slowest)."""
    _known("kind of classes", classes, ("shape", "object"))
    return SHAPES if classes == "shape" else tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)


def pool(
    style: str, split: str, *, per_class: int, classes: Classes = "shape", seed: int = 0
) -> tuple[NDArray[np.uint8], Ints]:
    """`per_class` images of every class in order: uint8 [n, 32, 32, 3] and labels int64 [n].

    Splits draw from different random streams and so share no image. "pretraining" is what the compact CLIP saw.
    Raises `ConfigError` for an unknown style, split or kind of classes.
    """
    labels = np.repeat(np.arange(len(class_names(classes)), dtype=np.int64), per_class)
    shape, colour = labels % len(SHAPES), labels // len(SHAPES) if classes == "object" else None
    stream = (seed, _known("split", split, SPLITS))
    images, _ = draw(len(labels), style=style, seed=stream, shape=shape, colour=colour)
    return images, labels
