"""Folders of images: your own, published ones, ImageNet's, and folders with pipes, links in circles and odd names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, load
from fpl_tune.data.check import check
from fpl_tune.data.files import images_in, read_json, subfolders
from fpl_tune.data.pool import read_image
from fpl_tune.data.sources import SOURCES

MakeFolders = MakeImage = Callable[..., Path]
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")


def test_one_folder_a_class_is_split_by_class(folders: MakeFolders) -> None:
    root = folders("tabby_cat", "dog", n=10)
    data = load(DataSpec("folder", root=str(root)))
    assert data.classes == ("dog", "tabby cat")
    assert np.bincount(data.train.label).tolist() == [8, 8]
    assert np.bincount(data.test.label).tolist() == [2, 2]
    assert not set(data.train.names) & set(data.test.names)
    for pool in (data.train, data.test):
        for name, label in zip(pool.names, pool.label, strict=True):
            assert name.startswith(data.classes[label].replace(" ", "_"))
    assert "no official split" in data.notes[0]


def test_a_split_by_folders_is_taken_as_it_is(folders: MakeFolders) -> None:
    folders("cat", "dog", n=4, below="set/train")
    root = folders("cat", "dog", n=2, below="set/test").parent
    data = load(DataSpec("folder", root=str(root)))
    assert (len(data.train), len(data.test)) == (8, 4)
    assert all(name.startswith("test/") for name in data.test.names)
    folders("bird", below="set/test")
    with pytest.raises(ConfigError, match=r"classes that train/ lacks: \['bird'\]"):
        load(DataSpec("folder", root=str(root)))


def test_the_split_of_a_class_does_not_depend_on_other_classes(folders: MakeFolders) -> None:
    root = folders("cat", "dog", n=10)
    before = load(DataSpec("folder", root=str(root)))
    shutil.rmtree(root / "cat")
    after = load(DataSpec("folder", root=str(root)))
    assert [name for name in before.test.names if name.startswith("dog")] == list(after.test.names)
    other = load(DataSpec("folder", root=str(root), split_seed=2))
    assert other.test.names != after.test.names


def test_domains_in_folders(folders: MakeFolders) -> None:
    folders("cat", "dog", below="set/photo")
    root = folders("cat", below="set/sketch").parent
    data = load(DataSpec("domains", root=str(root)))
    assert data.domains == ("photo", "sketch")
    assert data.classes == ("cat", "dog")
    assert np.bincount(data.train.domain).tolist() == [8, 4]


@pytest.mark.parametrize("inside", [True, False])
def test_pacs_is_found_in_the_root_and_as_the_root(folders: MakeFolders, inside: bool) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", "house", below=f"PACS/{domain}").parent
    data = load(DataSpec("pacs", root=str(root.parent if inside else root)))
    assert data.domains == ("photo", "art_painting", "cartoon", "sketch")
    assert len(data.train) == 4 * 2 * 4
    assert data.train.names[0].startswith("photo/dog/")


def test_officehome_folders_are_found_however_they_are_spelled(folders: MakeFolders) -> None:
    for domain in ("Art", "Clipart", "Product", "Real World"):
        root = folders("Alarm_Clock", "Bike", below=f"OfficeHome/{domain}").parent
    data = load(DataSpec("officehome", root=str(root.parent), domains=["real_world"]))
    assert data.classes == ("Alarm Clock", "Bike")
    assert data.train.names[0].startswith("Real World/")


def test_a_missing_domain_is_named(folders: MakeFolders) -> None:
    folders("dog", below="PACS/photo")
    root = folders("dog", below="PACS/cartoon").parent.parent
    with pytest.raises(EnvironmentProblem, match=r"lacks the domain folder 'art_painting'.*photo"):
        load(DataSpec("pacs", root=str(root)))


def test_a_class_without_images_is_named(folders: MakeFolders) -> None:
    root = folders("cat")
    (root / "dog").mkdir()
    with pytest.raises(EnvironmentProblem, match=r"1 class folder without a training image, first \['dog'\]"):
        load(DataSpec("folder", root=str(root)))


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"shapes"}))
def test_a_missing_root_says_what_is_expected(name: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"set data\.root"):
        load(DataSpec(name))
    with pytest.raises(EnvironmentProblem, match=r"data\.root=.*nowhere is not a folder"):
        load(DataSpec(name, root=str(tmp_path / "nowhere")))
    if name not in ("folder", "domains"):
        with pytest.raises(EnvironmentProblem, match=rf"There is no .* below {tmp_path}"):
            load(DataSpec(name, root=str(tmp_path)))


def test_odd_images_are_read_in_colour_and_broken_ones_are_named(odd_images: Path) -> None:
    data = load(DataSpec("folder", root=str(odd_images)))
    read, broken = {}, {}
    for pool in (data.train, data.test):
        for row, name in enumerate(pool.names):
            try:
                read[name] = np.asarray(pool.read(row)).shape
            except EnvironmentProblem as problem:
                broken[name] = str(problem)
    assert set(broken) == {"dog/truncated.jpg", "dog/empty.jpg"}
    assert "the file is empty" in broken["dog/empty.jpg"]
    assert all("fpl-tune data check" in text and "\n" not in text for text in broken.values())
    assert {"dog/SHOUT.JPG", "dog/grey.jpg", "dog/cmyk.jpg", "dog/alpha.png", "dog/palette.png"} < set(read)
    assert set(read.values()) == {(8, 8, 3)}
    assert not any(name.endswith((".doc", ".db")) for name in read)


def test_sixteen_bits_keep_their_shades(tmp_path: Path) -> None:
    """Pillow's own conversion makes all of them white."""
    shades = (np.arange(256, dtype=np.uint16) << 8).reshape(16, 16)
    for name in ("x.png", "x.tif"):
        Image.fromarray(shades).save(tmp_path / name)
        found = np.asarray(read_image(tmp_path / name))
        assert found.shape == (16, 16, 3)
        assert (found[..., 0] == np.arange(256).reshape(16, 16)).all()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_photo_stands_upright(tmp_path: Path) -> None:
    """By its EXIF orientation; damaged EXIF data are no problem."""
    image, exif = Image.new("RGB", (8, 4)), Image.Exif()
    image.paste((255, 255, 255), (0, 0, 4, 4))  # the left half is white
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    image.save(tmp_path / "x.png", exif=exif)
    found = np.asarray(read_image(tmp_path / "x.png"))
    assert found.shape == (8, 4, 3)
    assert (found[:4] == 255).all()
    assert (found[4:] == 0).all()
    image.save(tmp_path / "y.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert np.asarray(read_image(tmp_path / "y.jpg")).shape == (4, 8, 3)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_numbers_of_32_bits_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (4, 4)).save(tmp_path / "x.tif")
    with pytest.raises(EnvironmentProblem, match=rf"x\.tif: its pixels are 32-bit numbers \(mode {mode}\); store it"):
        read_image(tmp_path / "x.tif")


def test_other_modes_are_pillows(tmp_path: Path) -> None:
    """CMYK, the first picture of an animation, and the colours below transparency."""
    red, blue = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    red.convert("CMYK").save(tmp_path / "cmyk.tif")
    red.save(tmp_path / "animated.gif", save_all=True, append_images=[blue])
    clear = red.convert("P")
    clear.save(tmp_path / "palette.png", transparency=clear.getpixel((0, 0)))
    for name in ("cmyk.tif", "animated.gif", "palette.png"):
        assert np.asarray(read_image(tmp_path / name))[0, 0].tolist() == [255, 0, 0], name


def test_names_that_are_no_valid_text_are_no_problem(folders: MakeFolders) -> None:
    root = folders("cat", "dog")
    (root / "cat" / "image_0000.jpg").rename(root / "cat" / os.fsdecode(b"caf\xe9.jpg"))
    data = load(DataSpec("folder", root=str(root)))
    assert len(data.fingerprint) == 16
    assert len(data.train.stamp()) == 64


@pytest.mark.parametrize("original", [True, False])
def test_vlcs_in_both_layouts(folders: MakeFolders, tmp_path: Path, original: bool) -> None:
    names = ("CALTECH", "LABELME", "PASCAL", "SUN") if original else ("Caltech101", "LabelMe", "VOC2007", "SUN09")
    for name in names:
        folders(*("01234" if original else VLCS_CLASSES), below=f"VLCS/{name}/{'full' if original else ''}")
        if original:
            folders("0", n=1, below=f"VLCS/{name}/crossval")
    data = load(DataSpec("vlcs", root=str(tmp_path)))
    assert data.classes == VLCS_CLASSES
    assert data.domains == ("caltech", "labelme", "pascal", "sun")
    assert len(data.train) + len(data.test) == 4 * 5 * 5
    assert not any("crossval" in path for path in data.train.names)


def test_camera_traps_at_four_locations(folders: MakeFolders, tmp_path: Path) -> None:
    for number in (100, 38, 43, 46):
        folders("bird", "bobcat", below=f"terra_incognita/location_{number}")
    data = load(DataSpec("terra_incognita", root=str(tmp_path)))
    assert data.domains == ("location_38", "location_43", "location_46", "location_100")
    assert data.classes == ("bird", "bobcat")


NAMES = {"n01440764": "tench", "n03773504": "missile", "n04008634": "missile", "n99999999": "a class without images"}


@pytest.fixture
def imagenet(tmp_path: Path, picture: MakeImage) -> Path:
    root = tmp_path / "imagenet"
    for identifier in list(NAMES)[:3]:
        for part, n in (("train", 3), ("val", 2)):
            for k in range(n):
                picture(root / "images" / part / identifier / f"{identifier}_{part}_{k}.JPEG")
    (root / "classnames.txt").write_text("".join(f"{key} {name}\n" for key, name in NAMES.items()))
    return root


def test_classes_are_those_with_folders_in_the_order_of_their_identifiers(imagenet: Path) -> None:
    data = load(DataSpec("imagenet", root=str(imagenet.parent)))
    assert data.classes == ("tench", "missile", "missile")  # the published list repeats a name
    assert (len(data.train), len(data.test)) == (9, 6)
    for pool, part in ((data.train, "train"), (data.test, "val")):
        for path, label in zip(pool.names, pool.label.tolist(), strict=True):
            assert path.startswith(f"images/{part}/{list(NAMES)[label]}/")


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda root: (root / "classnames.txt").write_text("n01440764 tench\n"), "has no name for n03773504"),
        (
            lambda root: (root / "images" / "val" / "n01440764").rename(root / "images" / "val" / "n99999999"),
            "only one",
        ),
        (
            lambda root: (root / "images" / "val").rename(root / "images" / "test"),
            r"There is no .*images/val\. Images:",
        ),
        (lambda root: (root / "classnames.txt").unlink(), r"There is no .*classnames\.txt\. Images:"),
    ],
)
def test_incomplete_downloads_are_refused(imagenet: Path, breaks: Callable[[Path], object], message: str) -> None:
    breaks(imagenet)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("imagenet", root=str(imagenet)))


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
