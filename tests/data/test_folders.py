"""Folders of images: your own, published ones, ImageNet's; what clients hold, and what is wrong with files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.inspection import check, overview
from fpl_tune.data.pool import read_image
from fpl_tune.data.sources import SOURCES, catalogue

from .conftest import MakeImage

VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")


def test_one_folder_a_class_is_split_by_class(folders: MakeImage) -> None:
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


def test_a_split_by_folders_is_taken_as_it_is(folders: MakeImage) -> None:
    folders("cat", "dog", n=4, below="set/train")
    root = folders("cat", "dog", n=2, below="set/test").parent
    data = load(DataSpec("folder", root=str(root)))
    assert (len(data.train), len(data.test)) == (8, 4)
    assert all(name.startswith("test/") for name in data.test.names)
    folders("bird", below="set/test")
    with pytest.raises(ConfigError, match=r"classes that train/ lacks: \['bird'\]"):
        load(DataSpec("folder", root=str(root)))


def test_the_split_of_a_class_does_not_depend_on_other_classes(folders: MakeImage) -> None:
    root = folders("cat", "dog", n=10)
    before = load(DataSpec("folder", root=str(root)))
    shutil.rmtree(root / "cat")
    after = load(DataSpec("folder", root=str(root)))
    assert [name for name in before.test.names if name.startswith("dog")] == list(after.test.names)
    other = load(DataSpec("folder", root=str(root), split_seed=2))
    assert other.test.names != after.test.names


def test_domains_in_folders(folders: MakeImage) -> None:
    folders("cat", "dog", below="set/photo")
    root = folders("cat", below="set/sketch").parent
    data = load(DataSpec("domains", root=str(root)))
    assert data.domains == ("photo", "sketch")
    assert data.classes == ("cat", "dog")
    assert np.bincount(data.train.domain).tolist() == [8, 4]


@pytest.mark.parametrize("inside", [True, False])
def test_pacs_is_found_in_the_root_and_as_the_root(folders: MakeImage, inside: bool) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", "house", below=f"PACS/{domain}").parent
    data = load(DataSpec("pacs", root=str(root.parent if inside else root)))
    assert data.domains == ("photo", "art_painting", "cartoon", "sketch")
    assert len(data.train) == 4 * 2 * 4
    assert data.train.names[0].startswith("photo/dog/")


def test_a_missing_domain_is_named(folders: MakeImage) -> None:
    folders("dog", below="PACS/photo")
    root = folders("dog", below="PACS/cartoon").parent.parent
    with pytest.raises(EnvironmentProblem, match=r"lacks the domain folder 'art_painting'.*photo"):
        load(DataSpec("pacs", root=str(root)))


def test_a_class_without_images_is_named(folders: MakeImage) -> None:
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
    assert all("fpl-tune data check" in text and "\n" not in text for text in broken.values())
    assert {"dog/SHOUT.JPG", "dog/grey.jpg", "dog/cmyk.jpg", "dog/alpha.png", "dog/palette.png"} < set(read)
    assert set(read.values()) == {(8, 8, 3)}
    assert not any(name.endswith((".doc", ".db")) for name in read)


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


@pytest.mark.parametrize("mode", ["I", "F", "I;16"])
def test_images_of_more_than_8_bits_are_refused_by_name(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (4, 4)).save(tmp_path / "x.tif")
    with pytest.raises(EnvironmentProblem, match=rf"x\.tif: its pixels have more than 8 bits \(mode {mode}\)"):
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


@pytest.mark.parametrize("original", [True, False])
def test_vlcs_in_both_layouts(folders: MakeImage, tmp_path: Path, original: bool) -> None:
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


@pytest.fixture
def imagenet(tmp_path: Path, picture: MakeImage) -> Path:
    root = tmp_path / "imagenet"
    names = {"n01440764": "tench", "n03773504": "missile", "n04008634": "missile", "n99999999": "no images"}
    for identifier in list(names)[:3]:
        for part, n in (("train", 3), ("val", 2)):
            for k in range(n):
                picture(root / "images" / part / identifier / f"{identifier}_{part}_{k}.JPEG")
    (root / "classnames.txt").write_text("".join(f"{key} {name}\n" for key, name in names.items()))
    return root


def test_classes_of_imagenet_are_those_with_folders_in_the_order_of_their_identifiers(imagenet: Path) -> None:
    data = load(DataSpec("imagenet", root=str(imagenet.parent)))
    assert data.classes == ("tench", "missile", "missile")  # the published list repeats a name
    assert (len(data.train), len(data.test)) == (9, 6)
    folders = ("n01440764", "n03773504", "n04008634")
    for pool, part in ((data.train, "train"), (data.test, "val")):
        for path, label in zip(pool.names, pool.label.tolist(), strict=True):
            assert path.startswith(f"images/{part}/{folders[label]}/")


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (lambda root: (root / "classnames.txt").write_text("n01440764 tench\n"), "n03773504 is not both in"),
        (lambda root: shutil.rmtree(root / "images" / "val" / "n01440764"), "n01440764 is not both in"),
        (lambda root: shutil.rmtree(root / "images" / "val"), "There is no folder .*images/val"),
    ],
)
def test_incomplete_downloads_are_refused(imagenet: Path, breaks: Callable[[Path], object], message: str) -> None:
    breaks(imagenet)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("imagenet", root=str(imagenet)))


def finding(report: dict[str, Any], words: str) -> dict[str, Any]:
    (found,) = [f for f in report["findings"] if words in f["finding"]]
    return found


def test_an_overview_counts_what_each_client_holds() -> None:
    spec = DataSpec("shapes", train_per_class=4, test_per_class=2, shots=2)
    data = load(spec)
    drawn = split(data, spec, PartitionSpec("disjoint", n_clients=10), 0)
    seen = json.loads(json.dumps(overview(drawn, data)))
    assert (seen["dataset"], seen["hash"]) == ("shapes", drawn.hash)
    assert seen["constant_prediction"] == 0.5  # two classes of equal size
    assert [client["client"] for client in seen["clients"]] == list(range(10))
    first = seen["clients"][0]
    assert [first[name] for name in ("train", "val", "test", "classes")] == [4, 2, 24, 2]
    assert sorted(first["most frequent"]) == sorted(f"{data.classes[k]} 2" for k in set(drawn.train_label[0].tolist()))
    assert set(first["domains"]) == {data.domains[d] for d in data.train.domain[drawn.train[0]]}


def test_a_sound_data_set_has_no_findings(folders: Callable[..., Path]) -> None:
    told: list[tuple[int, int, str]] = []
    report = check(DataSpec("folder", root=str(folders("cat", "dog"))), progress=lambda *step: told.append(step))
    assert report["sound"]
    assert not report["findings"]
    assert report["sizes"] == [{"domain": "all", "train": 8, "test": 2, "published": ""}]
    assert told == [(8, 8, "folder-train"), (2, 2, "folder-test")]


def test_unreadable_images_are_counted_and_named(odd_images: Path) -> None:
    report = check(DataSpec("folder", root=str(odd_images)))
    broken = finding(report, "cannot be read")
    assert broken["cases"] == 2
    assert {text.split(":")[0] for text in broken["first"].split("\n")} == {"dog/truncated.jpg", "dog/empty.jpg"}
    assert not report["sound"]


def test_copies_are_told_apart_by_what_they_spoil(folders: Callable[..., Path]) -> None:
    root = folders("cat", "dog", n=10)
    spec = DataSpec("folder", root=str(root))
    data = load(spec)
    cats, dogs = ([name for name in data.train.names if name.startswith(kind)] for kind in ("cat", "dog"))
    tested = next(name for name in data.test.names if name.startswith("cat"))
    for source, target in ((cats[0], cats[1]), (cats[3], tested), (cats[4], dogs[4])):
        (root / target).write_bytes((root / source).read_bytes())
    report = check(spec)
    assert finding(report, "on one side of the split")["first"] == f"{cats[0]} = {cats[1]}"
    assert finding(report, "on both sides of the split")["first"] == f"{cats[3]} = {tested}"
    assert finding(report, "under different labels")["first"] == f"{cats[4]} = {dogs[4]}"
    assert report["sound"]


def test_missing_images_do_not_end_the_check(tmp_path: Path, picture: MakeImage) -> None:
    content = {"train": [["a/0.jpg", 0, "a"], ["a/1.jpg", 0, "a"]], "val": [], "test": [["a/2.jpg", 0, "a"]]}
    for k in (0, 2):
        picture(tmp_path / "dtd" / "images" / "a" / f"{k}.jpg")
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(content))
    report = check(DataSpec("dtd", root=str(tmp_path)))
    assert "1 of 2 images" in finding(report, "are not below")["finding"]
    assert finding(report, "differs from the published one")
    assert report["sizes"] == [{"domain": "all", "train": 1, "test": 1, "published": "2,820 / 1,692 differs"}]


def test_published_sizes_by_domain(folders: Callable[..., Path]) -> None:
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        root = folders("dog", below=f"PACS/{domain}").parent
    sizes = check(DataSpec("pacs", root=str(root.parent)))["sizes"]
    assert sizes[0] == {"domain": "photo", "train": 4, "test": 1, "published": "1,670 differs"}
    assert sizes[-1] == {"domain": "all", "train": 16, "test": 4, "published": ""}


def test_the_catalogue_describes_every_data_set() -> None:
    assert {row["name"] for row in catalogue() if all(row.values())} == set(SOURCES)
