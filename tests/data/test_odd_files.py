"""Folders of images with pipes, links in circles and odd names: one clear line, no hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from fpl_tune.data import DataSpec, load
from fpl_tune.data.check import check
from fpl_tune.data.files import images_in, read_json, subfolders
from fpl_tune.errors import EnvironmentProblem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of two images."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (4, 4)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_links_are_followed_once_so_that_circles_end(root: Path) -> None:
    before = images_in(root / "cat", root)
    (root / "cat" / "again").symlink_to(root / "cat")
    (root / "cat" / "up").symlink_to(root / "cat", target_is_directory=True)
    more = root / "elsewhere"
    more.mkdir()
    Image.new("RGB", (4, 4)).save(more / "x.png")
    for name in ("one", "two"):
        (root / "cat" / name).symlink_to(more)
    (more / "back").symlink_to(root / "cat")
    assert images_in(root / "cat", root) == sorted([*before, "cat/one/x.png"])


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_image_that_is_no_regular_file_is_named_and_not_read(root: Path, kind: str) -> None:
    pool = load(DataSpec(name="folder", root=str(root))).train
    path = root / pool.names[0]
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    assert load(DataSpec(name="folder", root=str(root))).train.names == pool.names
    for read in (lambda: pool.read(0), pool.stamp):
        with pytest.raises(EnvironmentProblem, match=r"\.png is not a regular file"):
            read()


def test_a_broken_link_is_an_image_that_cannot_be_read(root: Path) -> None:
    (root / "dog" / "0.png").unlink()
    (root / "dog" / "0.png").symlink_to(root / "nowhere")
    data = load(DataSpec(name="folder", root=str(root)))
    with pytest.raises(EnvironmentProblem, match=r"Cannot read image .*dog/0\.png: .*No such file"):
        [pool.read(row) for pool in (data.train, data.test) for row in range(len(pool))]


def test_classes_are_named_in_utf8_and_odd_names_of_images_are_printed(root: Path) -> None:
    (root / "cat" / "caf\udce9.png").touch()
    (broken,) = check(DataSpec("folder", root=str(root))).findings[:1]
    assert broken.examples[0].startswith("cat/caf?.png: Cannot read image")
    os.mkdir(os.fsencode(root) + b"/\xfe")
    with pytest.raises(EnvironmentProblem, match=r"named in UTF-8, but .*\\udcfe' is not"):
        subfolders(root)


@pytest.mark.parametrize("kind", ["nested", "pipe"])
def test_a_split_that_cannot_be_read_is_one_line(root: Path, kind: str) -> None:
    path = root / "split.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("[" * 100_000)
    with pytest.raises(EnvironmentProblem, match="recursion depth" if kind == "nested" else "not a regular file"):
        read_json(path, "Download it again.")
