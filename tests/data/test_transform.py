"""Transforms of images, and random views."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fpl_tune.core.errors import ConfigError
from fpl_tune.data import DataSpec, features, load
from fpl_tune.data.transform import CLIP, PATCH, Transform, View, _region, look, patched, pools_and_views, transform
from fpl_tune.testing import toy_towers


def plain(image: Image.Image, size: int) -> np.ndarray:
    """The middle of the whole image after it was scaled: int [3, size, size]."""
    scale = size / min(image.size)
    new = (max(size, int(image.width * scale + 1e-9)), max(size, int(image.height * scale + 1e-9)))
    whole = np.asarray(image.resize(new, Image.Resampling.BICUBIC) if new != image.size else image, dtype=int)
    left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
    return whole[top : top + size, left : left + size].transpose(2, 0, 1)


ORDINARY = [(40, 25), (25, 40), (16, 16), (9, 31), (200, 16), (33, 47), (256, 16), (2, 32), (640, 480), (500, 375)]


@pytest.mark.parametrize("size", [16, 224])
@pytest.mark.parametrize(("width", "height"), ORDINARY)
def test_crop_is_bicubic_resize_of_the_shorter_side_and_the_middle(width: int, height: int, size: int) -> None:
    image = noise(width, height)
    assert np.array_equal(CLIP.shrink(image, size), plain(image, size))


@pytest.mark.parametrize("size", [16, 33])
@pytest.mark.parametrize(
    ("width", "height"), [(1, 3_000), (3_000, 1), (2, 20_000), (7, 113), (113, 7), (1, 17), (40, 900), (2_001, 50)]
)
def test_of_a_long_image_the_middle_is_what_it_would_be_of_the_whole(width: int, height: int, size: int) -> None:
    image = noise(width, height).point([64 + level // 2 for level in range(256)] * 3)  # no sum is below 0 or above 255
    kept = CLIP.shrink(image, size).astype(int)
    assert kept.shape == (3, size, size)
    assert np.abs(kept - plain(image, size)).max() <= 2


@pytest.mark.parametrize("size", [(1, 10_000_000), (10_000_000, 1), (3, 40_000_000)])
def test_a_long_image_is_never_scaled_as_a_whole(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, "red")
    with pytest.raises((MemoryError, OverflowError, ValueError)):  # more pixels than Pillow can count
        plain(image, 224)
    kept = CLIP.shrink(image, 224)
    assert np.array_equal(kept, np.broadcast_to(np.array([[[255]], [[0]], [[0]]]), (3, 224, 224)))


def test_cifar_normalising_before_enlarging_is_enlarging_before_normalising() -> None:
    how = transform("cifar10", CLIP)
    picture = np.asarray(noise(32, 32))
    kept = torch.from_numpy(how.shrink(picture, 48))[None]
    assert kept.shape == (1, 3, 32, 32)
    ours = how.normalise(how.pixels(kept, 48))
    mean, std = (torch.tensor(values)[:, None, None] for values in (how.mean, how.std))
    theirs = torch.nn.functional.interpolate((kept / 255 - mean) / std, size=(48, 48), mode="bilinear")
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_pixels_are_normalised_by_channel() -> None:
    scaled = Transform(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0)).normalise(torch.full((1, 3, 2, 2), 51.0))
    assert torch.allclose(scaled[0, :, 0, 0], torch.tensor([0.2, 0.0, -0.05]))


def test_images_are_seen_as_by_the_towers_but_for_those_of_cifar() -> None:
    towers = Transform("squash")
    assert transform("clip", towers) == towers
    assert transform("cifar100", towers).resize == "stretch"
    with pytest.raises(ConfigError, match="no transform 'cifar'"):
        transform("cifar", towers)


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
        assert 0 <= left < left + w <= width
        assert 0 <= top < top + h <= height
        shares.append(w * h / (width * height))
        if min(width, height) >= 30:
            assert 0.7 < w / h < 1.45
    if min(width, height) >= 30:
        assert min(shares) < 0.15
        assert max(shares) > 0.8
        assert 0.4 < np.mean(shares) < 0.6


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


@pytest.mark.parametrize(
    ("n_crops", "second", "views"),
    [
        (0, None, []),
        (2, None, ["crop"] * 2),
        (0, "strong", ["strong"]),
        (2, "strong", ["crop"] * 2 + ["strong"] * 2),
    ],
)
def test_views_are_of_training_images_and_each_has_a_number_of_its_own(n_crops, second, views) -> None:
    dataset = load(DataSpec("shapes", train_per_class=1, test_per_class=1))
    (train, plain), (test, also_plain), *others = pools_and_views(dataset, n_crops, second)
    assert (train, plain, test, also_plain) == (dataset.train, None, dataset.test, None)
    assert all(pool is dataset.train for pool, _ in others)
    assert [view.kind for _, view in others if view] == views
    assert len({view for _, view in others}) == len(views)


def test_the_patched_images_come_last_and_only_if_asked_for() -> None:
    dataset, patch = load(DataSpec("shapes", train_per_class=1, test_per_class=1)), View(PATCH, 200)
    plain = pools_and_views(dataset, 1, "strong")
    assert pools_and_views(dataset, 1, "strong", patch) == [*plain, (dataset.train, patch), (dataset.test, patch)]


@pytest.mark.parametrize(
    ("thousandths", "rows"),
    [
        (1, ["01", "10"]),  # at least two pixels
        (300, ["010", "101", "010"]),
        (400, ["0101", "1010", "0101", "1010"]),
        (800, ["00110011"] * 2 + ["11001100"] * 2 + ["00110011"] * 2 + ["11001100"] * 2),
    ],
)
def test_a_patch_is_a_checkerboard_in_the_lower_right_corner(thousandths: int, rows: list[str]) -> None:
    images = torch.full((2, 3, 10, 10), 128.0)
    marked = patched(images, thousandths)
    board = torch.tensor([[255.0 * int(square) for square in row] for row in rows])
    side = len(rows)
    assert torch.equal(marked[..., -side:, -side:], board.expand(2, 3, side, side))
    marked[..., -side:, -side:] = 128
    assert torch.equal(marked, images)
    assert bool((images == 128).all())
