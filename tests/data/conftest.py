"""Miniature data sets: a few 8×8 images in every layout, also of kinds that real downloads hold."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeImage = Callable[..., Path]


@pytest.fixture
def picture() -> MakeImage:
    """Writes one noise image; the format follows the suffix, the noise the path, so that no two are the same."""

    def write(path: Path, mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(list(str(path.parent.name + path.name).encode()))
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else path.suffix[1:].upper()
        Image.fromarray(pixels).convert(mode).save(path, format=kind)
        return path

    return write


@pytest.fixture
def folders(tmp_path: Path, picture: MakeImage) -> Callable[..., Path]:
    """Writes folder/class/image for every class, `n` images each, and gives the folder."""

    def write(*classes: str, n: int = 5, below: str = "") -> Path:
        for name in classes:
            for k in range(n):
                picture(tmp_path / below / name / f"image_{k:04d}.jpg")
        return tmp_path / below

    return write


@pytest.fixture
def odd_images(tmp_path: Path, picture: MakeImage) -> Path:
    """A folder data set of two classes with grey, CMYK, palette, upper-case, truncated, empty and non-image files."""
    root = tmp_path / "odd"
    for k in range(6):
        picture(root / "cat" / f"{k}.jpg")
    picture(root / "dog" / "grey.jpg", "L")
    picture(root / "dog" / "cmyk.jpg", "CMYK")
    picture(root / "dog" / "alpha.png", "RGBA")
    picture(root / "dog" / "palette.png", "P")
    picture(root / "dog" / "SHOUT.JPG")
    whole = picture(root / "dog" / "truncated.jpg", size=(64, 64)).read_bytes()
    (root / "dog" / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "dog" / "empty.jpg").touch()
    (root / "dog" / "notes.doc").write_text("not an image")
    (root / "dog" / "Thumbs.db").write_bytes(b"\0\1")
    return root
