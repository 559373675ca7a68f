"""Image transforms of the protocols: from a picture to the input of an image tower.

Images are resized and normalised as the towers' weights were trained, to the same bits as by open_clip; those of CIFAR
in the PromptFL family by bilinear enlargement without antialiasing, with CIFAR's statistics. Random views for training
depend on the image's name and the number of the view only. The patch of a backdoor is on the pixels that a tower sees.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from fpl_tune.core.errors import unknown
from fpl_tune.data.pool import Dataset, Pool

Picture = Image.Image | NDArray[np.uint8]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Transform:
    """Maps a picture to pixels [3, S, S] and normalises them. The defaults are those of OpenAI's CLIP."""

    resize: Literal["shortest", "longest", "squash", "stretch"] = "shortest"
    """`shortest`: shorter side to S, then the centre crop; `longest`: longer side to S, then a frame around it;
    `squash`: both sides to S. `stretch`: as `squash`, but bilinear without antialiasing."""
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    mean: Triple = (0.48145466, 0.4578275, 0.40821073)
    """By channel, of values in [0, 1]."""
    std: Triple = (0.26862954, 0.26130258, 0.27577711)
    fill: int = 0
    """Grey level of the frame, from 0 to 255."""

    def shrink(self, picture: Picture, size: int) -> NDArray[np.uint8]:
        """The input of `pixels`, uint8 [3, size, size], or the whole picture [3, h, w] for `stretch`."""
        image = as_image(picture)
        if self.resize != "stretch" and image.size != (size, size):
            how = Image.Resampling[self.interpolation.upper()]
            image = {"shortest": _crop, "longest": self._framed, "squash": _squashed}[self.resize](image, size, how)
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))

    def _framed(self, image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
        """Resizes the longer side to `size`, and centres the image in a square."""
        longest = max(image.size)
        width, height = (round(side * size / longest) for side in image.size)
        square = Image.new("RGB", (size, size), (self.fill,) * 3)
        square.paste(image.resize((width, height), how), ((size - width) // 2, (size - height) // 2))
        return square

    def pixels(self, shrunk: Tensor, size: int) -> Tensor:
        """Float pixels [n, 3, size, size] in [0, 255], not normalised, from uint8 [n, 3, h, w]."""
        pixels = shrunk.float()
        if pixels.shape[-2:] == (size, size):
            return pixels
        return F.interpolate(pixels, size=(size, size), mode="bilinear", align_corners=False, antialias=False)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalises pixels [..., 3, H, W] in [0, 255]."""
        mean, std = (torch.tensor(of, device=pixels.device)[:, None, None] for of in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std


CLIP = Transform()
_OWN = {
    "cifar10": Transform("stretch", "bilinear", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": Transform("stretch", "bilinear", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""The transforms of data sets that do not take that of the towers."""


def transform(name: str, towers: Transform) -> Transform:
    """The transform of a pool: that of the towers for `clip`, else the data set's own.

    Raises:
        ConfigError: unknown name.
    """
    by_name = {"clip": towers, **_OWN}
    if name not in by_name:
        raise unknown("transform", name, by_name)
    return by_name[name]


def as_image(picture: Picture) -> Image.Image:
    """The picture as a PIL image."""
    return picture if isinstance(picture, Image.Image) else Image.fromarray(picture)


_LONG = 16  # times the shorter side


def _squashed(image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
    return image.resize((size, size), how)


def _crop(image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
    """Resizes the shorter side to `size`, and crops the centre with torchvision's rounding.

    If an image is longer than `_LONG`, only its centre is scaled, since the whole may take gigabytes. The results of
    both ways differ by at most two grey levels, except next to pixels that the first of Pillow's two passes clips to 0
    or 255.
    """
    w, h = image.size
    width, height = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    if max(width, height) > _LONG * size:
        x, y = w / width, h / height
        middle = (left * x, top * y, (left + size) * x, (top + size) * y)
        return image.resize((size, size), how, box=middle)
    return image.resize((width, height), how).crop((left, top, left + size, top + size))


# ---- views -----------------------------------------------------------------------------------------------------------

PATCH = "patch"


class View(NamedTuple):
    """A view of every image."""

    kind: str
    """`crop`: random resized crop and flip, as in CoOp; `strong`: colours, grey, blur, as in FedAPT's second view;
    `patch`: the image itself with a patch, see `patched`."""
    number: int = 0
    """Number of a random view; of `patch`, the patch's side in thousandths of the image's."""


def pools_and_views(
    dataset: Dataset, n_crops: int, second: str | None, patch: View | None = None
) -> list[tuple[Pool, View | None]]:
    """All images that a trial reads: the training and test images themselves, random views of the training images, and
    with `patch`, the training and test images with the patch.

    There are `n_crops` crops and, if `second` names another kind, as many views of that kind, but at least one.
    """
    pools = (dataset.train, dataset.test)
    views = [View("crop", number) for number in range(n_crops)]
    views += [View(second, number) for number in range(max(1, n_crops)) if second]
    plain, random = [(pool, None) for pool in pools], [(dataset.train, view) for view in views]
    return [*plain, *random, *((pool, patch) for pool in pools if patch)]


_SQUARES = 4  # of a patch, in each direction


def patched(pixels: Tensor, thousandths: int) -> Tensor:
    """Images with the patch of a backdoor: a checkerboard of 4 x 4 black and white squares in the lower right corner.

    Args:
        pixels: [..., 3, S, S], white is 255.
        thousandths: side of the patch in thousandths of S. It is at least two pixels; below four pixels, each pixel is
            a square.
    """
    side = max(2, round(thousandths * pixels.shape[-1] / 1000))
    square = torch.arange(side, device=pixels.device) * min(_SQUARES, side) // side
    marked = pixels.clone()
    marked[..., -side:, -side:] = 255 * ((square[:, None] + square) % 2)
    return marked


def look(view: View, picture: Picture, size: int, name: str) -> Image.Image:
    """A random view of one image, `size` wide and high. Raises `ConfigError` for an unknown kind of view."""
    if view.kind not in _KINDS:
        raise unknown("kind of view", view.kind, _KINDS)
    rng = np.random.default_rng([view.number, zlib.crc32(name.encode())])
    return _KINDS[view.kind](as_image(picture), size, rng)


def _random_crop(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Crops between 8 % and all of the area at a ratio of 3:4 to 4:3, resizes (bicubic) and flips every other time."""
    left, top, width, height = _region(*image.size, rng)
    cropped = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BICUBIC)
    return _flip(cropped, rng)


def _region(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a crop. If ten regions do not fit, it is the largest central one that does."""
    for _ in range(10):
        area, ratio = width * height * rng.uniform(0.08, 1), math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
    w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    return (width - w) // 2, (height - h) // 2, w, h


def _strong(image: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """Stretches and flips an image, and randomly changes colours (0.8), removes them (0.2) and blurs (0.2)."""
    image = _flip(image.resize((size, size), Image.Resampling.BILINEAR), rng)
    if rng.random() < 0.8:
        for change in rng.permutation(4).tolist():
            image = _JITTER[change](image, rng)
    if rng.random() < 0.2:
        image = image.convert("L").convert("RGB")
    return _blur(image, rng.uniform(1, 2)) if rng.random() < 0.2 else image


def _flip(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def _hue(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turn = round(255 * rng.uniform(-0.2, 0.2))  # hue is a circle, and so are bytes
    turned = hue.point([(level + turn) % 256 for level in range(256)])
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


def _blur(image: Image.Image, sigma: float) -> Image.Image:
    """Blurs an image by a Gaussian of three by three pixels."""
    from scipy.ndimage import correlate1d  # few studies blur, and all import this module

    weights = np.exp(-np.array([1.0, 0.0, 1.0]) / (2 * sigma**2))
    pixels = np.asarray(image, dtype=np.float64)
    for axis in (0, 1):
        pixels = correlate1d(pixels, weights / weights.sum(), axis=axis, mode="mirror")
    return Image.fromarray(np.rint(pixels).astype(np.uint8))


_JITTER: tuple[Callable[[Image.Image, np.random.Generator], Image.Image], ...] = (
    lambda image, rng: ImageEnhance.Brightness(image).enhance(rng.uniform(0.2, 1.8)),
    lambda image, rng: ImageEnhance.Contrast(image).enhance(rng.uniform(0.2, 1.8)),
    lambda image, rng: ImageEnhance.Color(image).enhance(rng.uniform(0.2, 1.8)),
    _hue,
)
_KINDS: dict[str, Callable[[Image.Image, int, np.random.Generator], Image.Image]] = {
    "crop": _random_crop,
    "strong": _strong,
}
