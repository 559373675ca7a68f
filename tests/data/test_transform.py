from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fpl_tune.data.transform import TRANSFORMS, transform
from fpl_tune.errors import ConfigError


def noise(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("width", "height"), [(40, 25), (25, 40), (16, 16), (9, 31), (200, 16), (33, 47)])
def test_crop_is_bicubic_resize_of_the_shorter_side_and_the_middle(width: int, height: int) -> None:
    image, size = noise(width, height), 16
    kept = TRANSFORMS["clip"].shrink(image, size)
    assert kept.shape == (3, size, size)
    scale = size / min(width, height)
    new = (max(size, int(width * scale + 1e-9)), max(size, int(height * scale + 1e-9)))
    whole = np.asarray(image.resize(new, Image.Resampling.BICUBIC)) if new != image.size else np.asarray(image)
    left, top = round((new[0] - size) / 2), round((new[1] - size) / 2)
    assert np.array_equal(kept, whole[top : top + size, left : left + size].transpose(2, 0, 1))


def test_a_picture_of_the_right_size_is_kept_as_it_is() -> None:
    array = np.asarray(noise(16, 16))
    assert np.array_equal(TRANSFORMS["clip"].shrink(array, 16), array.transpose(2, 0, 1))


def test_cifar_normalising_before_enlarging_is_enlarging_before_normalising() -> None:
    how = TRANSFORMS["cifar10"]
    picture = np.asarray(noise(32, 32))
    kept = torch.from_numpy(how.shrink(picture, 48))[None]
    assert kept.shape == (1, 3, 32, 32)
    ours = how.normalise(how.pixels(kept, 48), (0.0,) * 3, (1.0,) * 3)
    mean, std = (torch.tensor(values)[:, None, None] for values in (how.mean, how.std))
    theirs = torch.nn.functional.interpolate((kept / 255 - mean) / std, size=(48, 48), mode="bilinear")
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_statistics_are_the_towers_where_the_transform_has_none() -> None:
    pixels = torch.full((1, 3, 2, 2), 51.0)
    scaled = TRANSFORMS["clip"].normalise(pixels, (0.1, 0.2, 0.3), (0.5, 1.0, 2.0))
    assert torch.allclose(scaled[0, :, 0, 0], torch.tensor([0.2, 0.0, -0.05]))


def test_an_unknown_transform() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'clip'"):
        transform("clipp")
