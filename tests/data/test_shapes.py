import hashlib

import numpy as np
import pytest

from fpl_tune.data import shapes
from fpl_tune.data.outlines import OUTLINES


def _digests(images: np.ndarray) -> set[str]:
    return {hashlib.sha256(image.tobytes()).hexdigest() for image in images}


@pytest.mark.parametrize("style", shapes.STYLES)
def test_same_seed_same_images(style: str) -> None:
    first, what = shapes.draw(30, style=style, seed=3)
    again, what_again = shapes.draw(30, style=style, seed=3)
    other, _ = shapes.draw(30, style=style, seed=4)
    assert first.shape == (30, 32, 32, 3)
    assert first.dtype == np.uint8
    assert np.array_equal(first, again)
    assert all(np.array_equal(a, b) for a, b in zip(what, what_again, strict=True))
    assert not np.array_equal(first, other)


DRAWN = {
    "clipart": (201.20, 17.74),
    "infograph": (194.33, 16.68),
    "painting": (134.89, 16.68),
    "quickdraw": (243.13, 13.54),
    "photo": (119.46, 12.69),
    "sketch": (216.38, 20.32),
}
"""Mean of the pixels of version 1, and of the differences of neighbours in a row."""


@pytest.mark.parametrize("style", shapes.STYLES)
def test_the_drawing_is_that_of_its_version(style: str) -> None:
    """Results and cached features know the drawn images by `shapes._VERSION` alone: raise it with these figures."""
    images, _ = shapes.draw(20, style=style, seed=0, shape=np.arange(20))
    pixels = images.astype(float)
    assert (pixels.mean(), np.abs(np.diff(pixels, axis=2)).mean()) == pytest.approx(DRAWN[style], abs=0.02)


@pytest.mark.parametrize("style", shapes.STYLES)
def test_every_image_of_every_shape_shows_something(style: str) -> None:
    images, labels = shapes.pool(style, "train", per_class=5)
    assert np.array_equal(labels, np.repeat(np.arange(20), 5))
    assert images.reshape(len(images), -1).std(1).min() > 3


@pytest.mark.parametrize("classes", ["shape", "object"])
def test_splits_share_no_image(classes: shapes.Classes) -> None:
    per_split = [_digests(shapes.pool("clipart", s, per_class=4, classes=classes)[0]) for s in shapes.SPLITS]
    n = 4 * len(shapes.class_names(classes))
    assert [len(found) for found in per_split] == [n, n, n]
    assert len(set.union(*per_split)) == 3 * n


def test_object_classes_fix_colour_and_shape() -> None:
    names = shapes.class_names("object")
    assert len(set(names)) == 200
    images, labels = shapes.pool("clipart", "test", per_class=2, classes="object")
    red, blue = (np.isin(labels, [k for k, n in enumerate(names) if n.startswith(c)]) for c in ("red ", "blue "))
    redness = images[..., 0].astype(float).mean((1, 2)) - images[..., 2].astype(float).mean((1, 2))
    assert redness[red].mean() > redness[blue].mean() + 10


def test_distance_to_a_polygon_is_exact() -> None:
    x, y = (v.astype(np.float32) for v in np.random.default_rng(0).uniform(-1.5, 1.5, (2, 500)))
    diamond = OUTLINES["diamond"](x, y)
    # By symmetry only the edge from (0.92 up) to (0.6 right) counts: project on it in the first quadrant.
    px, py = np.abs(x), np.abs(y)
    ex, ey = 0.6, -0.92
    t = np.clip((px * ex + (py - 0.92) * ey) / (ex**2 + ey**2), 0, 1)
    expected = np.hypot(px - t * ex, py - 0.92 - t * ey) * np.where(px / 0.6 + py / 0.92 < 1, -1, 1)
    np.testing.assert_allclose(diamond, expected, atol=1e-5)


@pytest.mark.parametrize("shape", shapes.SHAPES)
def test_shapes_fit_the_unit_square_and_differ(shape: str) -> None:
    axis = np.linspace(-1.2, 1.2, 121, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    inside = OUTLINES[shape](x, y) < 0
    assert not inside[(np.abs(x) > 1.05) | (np.abs(y) > 1.05)].any()
    assert 0.04 < inside.mean() < 0.5
    for other in set(shapes.SHAPES) - {shape}:
        overlap = OUTLINES[other](x, y) < 0
        assert (inside & overlap).sum() < 0.93 * (inside | overlap).sum(), other
