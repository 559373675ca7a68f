from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fpl_tune.data import DataSpec, features, load
from fpl_tune.data.transform import View, _blur, _region, look
from fpl_tune.errors import ConfigError
from fpl_tune.testing import toy_towers


def noise(width: int = 40, height: int = 30) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["crop", "strong"])
def test_a_view_is_a_function_of_name_and_number(kind: str) -> None:
    first, again, other_number, other_name = (
        np.asarray(look(View(kind, number), noise(), 16, name))
        for number, name in ((0, "a"), (0, "a"), (1, "a"), (0, "b"))
    )
    assert first.shape == (16, 16, 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other_number)
    assert not np.array_equal(first, other_name)


@pytest.mark.parametrize(("width", "height"), [(40, 30), (30, 40), (100, 5), (5, 100), (1, 1)])
def test_regions_lie_inside_and_have_the_areas_and_ratios_asked_for(width: int, height: int) -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        left, top, w, h = _region(width, height, rng)
        assert left >= 0
        assert top >= 0
        assert w >= 1
        assert h >= 1
        assert left + w <= width
        assert top + h <= height
        shares.append(w * h / (width * height))
        if min(width, height) >= 30:
            assert 0.7 < w / h < 1.45
    if min(width, height) >= 30:
        assert min(shares) < 0.15
        assert max(shares) > 0.8
        assert 0.4 < np.mean(shares) < 0.6


def test_half_of_the_views_are_flipped() -> None:
    ramp = Image.fromarray(np.tile(np.arange(0, 250, 5, dtype=np.uint8)[None, :, None], (50, 1, 3)))
    views = [np.asarray(look(View("crop", k), ramp, 8, "ramp")).astype(int) for k in range(200)]
    falling = np.mean([view[:, -1].mean() < view[:, 0].mean() for view in views])
    assert 0.35 < falling < 0.65


def test_blur_keeps_flat_pictures_and_the_mean_of_a_dot() -> None:
    flat = Image.fromarray(np.full((6, 6, 3), 77, dtype=np.uint8))
    assert np.array_equal(np.asarray(_blur(flat, 1.5)), np.asarray(flat))
    dot = np.zeros((7, 7, 3), dtype=np.uint8)
    dot[3, 3] = 255
    spread = np.asarray(_blur(Image.fromarray(dot), 1.5)).astype(int)
    assert abs(spread[..., 0].sum() - 255) <= 9  # nine roundings
    assert (spread[2:5, 2:5] > 0).all()
    assert spread.sum() == spread[2:5, 2:5].sum()


def test_strong_views_are_grey_as_often_as_they_should_be() -> None:
    views = [np.asarray(look(View("strong", k), noise(), 8, "n")).astype(int) for k in range(300)]
    grey = np.mean([(view.max(-1) - view.min(-1)).max() == 0 for view in views])
    assert 0.12 < grey < 0.3


def test_views_are_cached_beside_the_plain_features(tmp_path: Path) -> None:
    pool = load(DataSpec("shapes", train_per_class=1, test_per_class=1, domains=["photo"])).train
    towers = toy_towers("vit")
    plain, first, second = (
        features(pool, towers, cache_dir=tmp_path, view=view) for view in (None, View("crop", 0), View("crop", 1))
    )
    assert len(list(tmp_path.glob("*.npy"))) == 3
    assert not torch.equal(plain, first)
    assert not torch.equal(first, second)
    assert torch.equal(first, features(pool, towers, cache_dir=tmp_path, view=View("crop", 0)))


def test_an_unknown_kind_of_view() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'crop'"):
        look(View("crops"), noise(), 8, "x")
