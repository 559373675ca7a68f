"""Signed distances to the outlines of the embedded world's 20 shapes: negative inside, in units of the radius.

All functions take coordinates x (right) and y (up) as arrays of the same shape. Unions and differences of shapes give
bounds of the distance that are exact on the outline; drawing needs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Field = Callable[[Floats, Floats], Floats]


def _disc(x: Floats, y: Floats, radius: float, cx: float = 0.0, cy: float = 0.0) -> Floats:
    return np.hypot(x - np.float32(cx), y - np.float32(cy)) - np.float32(radius)


def _box(x: Floats, y: Floats, half_width: float, half_height: float, cx: float = 0.0, cy: float = 0.0) -> Floats:
    return np.maximum(np.abs(x - np.float32(cx)) - half_width, np.abs(y - np.float32(cy)) - half_height)


def _polygon(x: Floats, y: Floats, corners: Sequence[tuple[float, float]]) -> Floats:
    """Exact distance to a simple polygon. A ray to the right crosses an odd number of edges from inside."""
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


OUTLINES: dict[str, Field] = {
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
    "arrow": _outline((0.92, 0), (0.25, 0.6), (0.25, 0.24), (-0.85, 0.24), (-0.85, -0.24), (0.25, -0.24), (0.25, -0.6)),
    "drop": _drop,
    "flower": lambda x, y: _petals(x, y, 5, 0.62, 0.22, 0.5),
    "gear": lambda x, y: np.maximum(_petals(x, y, 8, 0.7, 0.14, 3.0), -_disc(x, y, 0.27)),
    "house": _outline(
        (-0.62, -0.75), (0.62, -0.75), (0.62, 0.15), (0.85, 0.15), (0, 0.88), (-0.85, 0.15), (-0.62, 0.15)
    ),
    "fish": _fish,
    "tree": _tree,
    "cloud": _cloud,
    "key": _key,
    "bolt": _outline(
        (0.15, 0.95), (-0.55, -0.12), (-0.06, -0.12), (-0.2, -0.95), (0.55, 0.2), (0.06, 0.2), (0.42, 0.95)
    ),
}
