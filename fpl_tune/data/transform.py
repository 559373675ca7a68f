"""Image transforms of the protocols: from a picture to the input of an image tower.

There are two: CLIP's (bicubic resize of the shorter side, centre crop), and for CIFAR in the PromptFL family bilinear
enlargement without antialiasing, with CIFAR's statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fpl_tune.errors import unknown

Picture = Image.Image | NDArray[np.uint8]


@dataclass(frozen=True)
class Transform:
    """Maps a picture to pixels [3, S, S] and normalises them."""

    resize: Literal["crop", "stretch"]
    """`crop`: shorter side to S, bicubic, centre crop. `stretch`: both sides to S, bilinear, no antialiasing."""
    mean: tuple[float, float, float] | None = None
    """None: the towers' own statistics."""
    std: tuple[float, float, float] | None = None

    def shrink(self, picture: Picture, size: int) -> NDArray[np.uint8]:
        """The input of `pixels`, uint8 [3, h, w]: cropped to [3, size, size], or the whole picture if stretched."""
        image = as_image(picture)
        if self.resize == "crop" and image.size != (size, size):
            image = _crop(image, size)
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    def pixels(self, kept: Tensor, size: int) -> Tensor:
        """Float pixels [n, 3, size, size] in [0, 255], not normalised, from uint8 [n, 3, h, w]."""
        pixels = kept.float()
        if pixels.shape[-2:] == (size, size):
            return pixels
        return F.interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False, antialias=False)

    def normalise(self, pixels: Tensor, towers_mean: Sequence[float], towers_std: Sequence[float]) -> Tensor:
        """Normalises pixels [..., 3, H, W] in [0, 255] by the transform's statistics, or the towers' if it has none."""
        mean, std = (
            torch.tensor(own or theirs, device=pixels.device)[:, None, None]
            for own, theirs in ((self.mean, towers_mean), (self.std, towers_std))
        )
        return (pixels.float() / 255 - mean) / std


TRANSFORMS = {
    "clip": Transform("crop"),
    "cifar10": Transform("stretch", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": Transform("stretch", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def transform(name: str) -> Transform:
    """The transform `name`. Raises `ConfigError` for an unknown one."""
    if name not in TRANSFORMS:
        raise unknown("transform", name, TRANSFORMS)
    return TRANSFORMS[name]


def as_image(picture: Picture) -> Image.Image:
    """The picture as a PIL image."""
    return picture if isinstance(picture, Image.Image) else Image.fromarray(picture)


def _crop(image: Image.Image, size: int) -> Image.Image:
    """The shorter side to `size` (bicubic), then the middle, rounded as torchvision rounds."""
    w, h = image.size
    width, height = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
