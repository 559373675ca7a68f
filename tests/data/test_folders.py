"""Folders of images: your own, published ones, ImageNet's; what clients hold, and what is wrong with files."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import fpl_tune
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, Notice
from fpl_tune.data import DataSpec, PartitionSpec, load, split
from fpl_tune.data.files import plain
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
    assert data.notes[1:] == ("one folder a class, 2 classes: dog, tabby cat",)


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


@pytest.mark.parametrize(
    ("train", "test", "note"),
    [
        ("train", "test", "train/ and test/"),
        ("Train", "Test", "Train/ and Test/"),
        ("TRAINING", "testing", "TRAINING/ and testing/"),
        ("training_set", "test_set", "training_set/ and test_set/"),
        ("trainset", "Test-Images", "trainset/ and Test-Images/"),
        ("train data", "TestData", "train data/ and TestData/"),
        ("train ", "test ", "train / and test /"),
        ("train", "val", "train/ and val/ (val/ is the test set)"),
        ("train", "valid", "train/ and valid/ (valid/ is the test set)"),
        ("training", "Validation", "training/ and Validation/ (Validation/ is the test set)"),
        ("train", "eval", "train/ and eval/ (eval/ is the test set)"),
        ("Train_Set", "evaluation", "Train_Set/ and evaluation/ (evaluation/ is the test set)"),
    ],
)
def test_usual_spellings_of_a_split(folders: MakeImage, train: str, test: str, note: str) -> None:
    folders("cat", "dog", n=4, below=f"set/{train}")
    root = folders("cat", "dog", n=2, below=f"set/{test}").parent
    data = load(DataSpec("folder", root=str(root)))
    assert data.classes == ("cat", "dog")
    assert {name.split("/")[0] for name in data.train.names} == {train}
    assert {name.split("/")[0] for name in data.test.names} == {test}
    assert data.notes == (f"split by the folders {note}, 2 classes: cat, dog",)


def test_the_validation_part_is_not_used_beside_a_test_part(folders: MakeImage, tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        folders("cat", "dog", n=2, below=part)
    (tmp_path / "annotations").mkdir()
    data = load(DataSpec("folder", root=str(tmp_path)))
    assert {name.split("/")[0] for name in data.test.names} == {"test"}
    assert "train/ and test/ (annotations/, valid/ not used)" in data.notes[0]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (["train/cat"], r"has train/, a part of a split, but no test/ or val/\. Add it"),
        (["Training/cat"], "has Training/, a part of a split"),
        (["test/cat"], "has test/, a part of a split, but no train/"),
        (["val/cat", "test/cat"], "has test/, val/, a part of a split, but no train/"),
        (["train", "cat", "dog"], "no test/ or val/, only cat/, dog/"),
        (["Test", "cat"], "no train/, only cat/"),
        (["train/cat", "holdout/cat"], "no test/ or val/, only holdout/"),
        (["train/cat", "test/cat", "Testing/cat"], "has Testing/, test/, the same part"),
        (["train/cat", "Training/cat", "test/cat"], "has Training/, train/, the same part"),
        (["train/cat", "val/cat", "validation/cat", "test/cat"], "has val/, validation/, the same part"),
        (["train/cat", "train_set/cat"], "the same part"),
        (["train/cat", "test/cat", "dog"], "has images in dog/, besides the split train/, test/"),
        (["cat/train", "cat/test", "dog/train"], "cat contains train/, test/, a split inside a class"),
        (["cat/Train", "cat/valid", "dog"], "cat contains Train/, valid/, a split inside a class"),
        (["train/cat/train", "train/cat/val", "test/cat"], "train/cat contains train/, val/"),
    ],
)
def test_a_split_that_is_not_clear_is_refused(
    folders: MakeImage, tmp_path: Path, held: list[str], message: str
) -> None:
    folders(*held, n=2)
    with pytest.raises(EnvironmentProblem, match=f"{message}.*[Rr]ename"):
        load(DataSpec("folder", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("held", "classes"),
    [
        (["trains", "cat"], ("cat", "trains")),
        (["bullet_train", "test_tube"], ("bullet train", "test tube")),
        (["valley", "cat"], ("cat", "valley")),
        (["train2", "cat"], ("cat", "train2")),
        (["cat/test", "dog/test"], ("cat", "dog")),
    ],
)
def test_names_that_only_sound_like_a_split_are_classes(
    folders: MakeImage, tmp_path: Path, held: list[str], classes: tuple[str, ...]
) -> None:
    folders(*held)
    assert load(DataSpec("folder", root=str(tmp_path))).classes == classes


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_class_folders_is_refused(folders: MakeImage, picture: MakeImage, part: str) -> None:
    root = folders("cat", "dog", below=f"set/{'test' if part == 'train' else 'train'}").parent
    picture(root / part / "1.jpg")
    with pytest.raises(EnvironmentProblem, match=rf"/{part} has no class folders\. Expected: <data\.root>"):
        load(DataSpec("folder", root=str(root)))


@pytest.mark.parametrize("name", ["folder", "domains"])
def test_a_data_root_one_level_too_high_is_refused(folders: MakeImage, tmp_path: Path, name: str) -> None:
    level = "" if name == "folder" else "/photo"
    folders("cat", "dog", below=f"set{level}")
    folders("cat", "dog", below=f"set{level.replace('photo', 'sketch')}")
    folders("x", below="__MACOSX/set")
    inner = "cat/, dog/" if name == "folder" else "photo/, sketch/"
    with pytest.raises(
        EnvironmentProblem, match=rf"set is the only folder.* in {inner} of .*\. Set data\.root={tmp_path}/set\.$"
    ):
        load(DataSpec(name, root=str(tmp_path)))
    assert load(DataSpec(name, root=str(tmp_path / "set"))).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("held", "inner", "root"),
    [
        (
            ["caltech-101/101_ObjectCategories/ant", "caltech-101/101_ObjectCategories/bee"],
            "ant/, bee/",
            "caltech-101/101_ObjectCategories",
        ),
        (["a/b/c/ant", "a/b/c/bee/small"], "ant/, bee/", "a/b/c"),
        (["photos/train/ant", "photos/train/bee", "photos/test/ant"], "test/, train/", "photos"),
        (["a/photos/train/ant", "a/photos/train/bee", "a/photos/test/ant"], "test/, train/", "a/photos"),
    ],
)
def test_a_data_root_several_levels_too_high_is_refused(
    folders: MakeImage, tmp_path: Path, held: list[str], inner: str, root: str
) -> None:
    folders(*held)
    below = tmp_path / root
    with pytest.raises(EnvironmentProblem, match=rf"in {inner} of {below}\. Set data\.root={below}\.$"):
        load(DataSpec("folder", root=str(tmp_path)))
    assert load(DataSpec("folder", root=str(below))).classes == ("ant", "bee")


def test_one_class_with_folders_inside_is_taken_as_it_is(folders: MakeImage, tmp_path: Path) -> None:
    folders("ant/old", "ant")
    assert load(DataSpec("folder", root=str(tmp_path))).classes == ("ant",)


def test_a_split_beside_other_folders_names_the_folder_with_it(folders: MakeImage, tmp_path: Path) -> None:
    folders("photos/train/ant", "photos/test/ant", "drafts")
    with pytest.raises(EnvironmentProblem, match=rf"Set data\.root={tmp_path}/photos if this is the data set"):
        load(DataSpec("folder", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("held", "notes"),
    [
        (
            ["photo/cat", "photo/dog", "sketch/cat", "sketch/dog"],
            [
                "images in folders inside class folders belong to the class: photo (cat, dog); sketch (cat, dog)",
                "all images of photo, sketch are in several inner folders: if those are the classes, this is a domain",
            ],
        ),
        (["cat", "cat/old", "dog"], ["images in folders inside class folders belong to the class: cat (old)"]),
        (
            ["cat/images", "dog/images"],
            ["images in folders inside class folders belong to the class: cat (images), dog"],
        ),
    ],
)
def test_inner_folders_are_named(folders: MakeImage, tmp_path: Path, held: list[str], notes: list[str]) -> None:
    folders(*held)
    found = load(DataSpec("folder", root=str(tmp_path))).notes[2:]
    assert len(found) == len(notes)
    assert all(one.startswith(note) for one, note in zip(found, notes, strict=True)), found


def test_what_is_left_out_and_lacking_is_named(folders: MakeImage, picture: MakeImage, tmp_path: Path) -> None:
    folders("train/cat", "train/dog", "test/cat", n=2)
    picture(tmp_path / "stray.jpg")
    picture(tmp_path / "train" / "unsorted.jpg")
    picture(tmp_path / "train" / "cat" / ".ipynb_checkpoints" / "image_0000.jpg")
    picture(tmp_path / "train" / "cat" / "._image_0000.jpg")
    (tmp_path / "train" / "cat" / "caption.txt").touch()
    (tmp_path / "test" / "dog").mkdir()
    data = load(DataSpec("folder", root=str(tmp_path)))
    assert len(data.train) == 4
    assert data.notes == (
        "split by the folders train/ and test/, 2 classes: cat, dog",
        "1 class without a test image: dog",
        "1 class folder without an image: test/dog",
        "left out 1 file of other kinds (1 .txt): train/cat/caption.txt",
        "left out 1 folder hidden by name: train/cat/.ipynb_checkpoints",
        "left out 2 images beside folders: stray.jpg, train/unsorted.jpg",
        "left out 1 image hidden by name: train/cat/._image_0000.jpg",
    )


def test_long_lists_of_classes_are_cut(folders: MakeImage, tmp_path: Path) -> None:
    folders(*(f"kind{k:02d}" for k in range(20)), n=2)
    note = load(DataSpec("folder", root=str(tmp_path))).notes[1]
    assert note.startswith("one folder a class, 20 classes: kind00, kind01, ")
    assert note.endswith("kind07 and 12 more")


def test_a_class_in_another_unicode_form_is_the_same_class(folders: MakeImage, tmp_path: Path) -> None:
    """As in archives of macOS, in a part of a split and in a domain."""
    for one, other in (("train", "test"), ("photo", "sketch")):
        folders("caf\u00e9", "dog", below=f"{one}-set/{one}")
        folders("cafe\u0301", "dog", below=f"{one}-set/{other}")
    assert load(DataSpec("folder", root=str(tmp_path / "train-set"))).classes == ("caf\u00e9", "dog")
    assert load(DataSpec("domains", root=str(tmp_path / "photo-set"))).classes == ("caf\u00e9", "dog")


@pytest.mark.parametrize(("name", "other"), [("cat", b"caf\xe9"), ("dog/image_0000.jpg", b"dog/\xff.jpg")])
def test_names_that_are_not_utf8_are_refused(folders: MakeImage, tmp_path: Path, name: str, other: bytes) -> None:
    root = os.fsencode(folders("cat", "dog"))
    os.rename(root + b"/" + name.encode(), root + b"/" + other)
    with pytest.raises(EnvironmentProblem, match=r"must be UTF-8, but folder has '.*\\udc.*'\. Rename it") as refused:
        load(DataSpec("folder", root=str(tmp_path)))
    str(refused.value).encode()


def test_domains_in_folders(folders: MakeImage) -> None:
    folders("cat", "dog", below="set/photo")
    root = folders("cat", below="set/sketch").parent
    data = load(DataSpec("domains", root=str(root)))
    assert data.domains == ("photo", "sketch")
    assert data.classes == ("cat", "dog")
    assert np.bincount(data.train.domain).tolist() == [8, 4]
    assert data.notes[1:] == ("2 domains (photo, sketch) with one folder a class, 2 classes: cat, dog",)


@pytest.mark.parametrize(
    "names",
    [
        ("照片", "素描"),
        ("Real", "real"),
        ("v1.0", "v10"),
        ("real world", "real_world", "RealWorld", "real-world"),
        ("фото", "эскиз", "photo"),
        ("a", "a!", "(a)"),
        ("site ", "site"),
        ("café", "cafe"),
        ("٣", "3"),
    ],
)
def test_own_domains_go_by_their_exact_names(folders: MakeImage, tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        folders("cat", "dog", below=name)
    data = load(DataSpec("domains", root=str(tmp_path)))
    assert data.domains == tuple(sorted(names))
    for pool in (data.train, data.test):
        folder = [path.split("/")[0] for path in pool.names]
        assert folder == [data.domains[number] for number in pool.domain.tolist()]
    assert not set(data.train.names) & set(data.test.names)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (["train/photo/cat", "test/photo/cat"], "set has train/, test/, a split by folders, but data=domains"),
        (["Training/photo/cat"], "set has Training/, a split"),
        (["photo/cat", "val/cat"], "set has val/, a split"),
        (["photo/train/cat", "photo/test/cat", "sketch/train/cat"], "photo has train/, test/, a split"),
        (["photo/cat", "sketch/Train/cat", "sketch/valid/cat"], "sketch has Train/, valid/, a split"),
        (["photo/train", "photo/bus"], "photo has train/, a split"),
        (
            ["photo/cat/train", "photo/cat/test", "sketch/cat"],
            "photo/cat contains train/, test/, a split inside a class",
        ),
    ],
)
def test_domains_with_a_split_by_folders_are_refused(
    folders: MakeImage, tmp_path: Path, held: list[str], message: str
) -> None:
    folders(*(f"set/{path}" for path in held), n=2)
    with pytest.raises(EnvironmentProblem, match=f"{message}.*rename"):
        load(DataSpec("domains", root=str(tmp_path / "set")))


@pytest.mark.parametrize("empty", [True, False])
def test_a_domain_without_class_folders_is_refused(
    folders: MakeImage, picture: MakeImage, tmp_path: Path, empty: bool
) -> None:
    folders("cat", "dog", below="photo")
    (tmp_path / "sketch").mkdir()
    if not empty:
        picture(tmp_path / "sketch" / "x.jpg")
    with pytest.raises(
        EnvironmentProblem, match=r"/sketch has no class folders\. Expected: .*<domain>/<class>.*Remove files"
    ):
        load(DataSpec("domains", root=str(tmp_path)))


def test_no_spelling_of_the_catalogue_is_that_of_two_domains() -> None:
    layouts = yaml.safe_load((Path(fpl_tune.__file__).parent / "data" / "catalogue.yaml").read_text())
    for layout in layouts.values():
        known = [{plain(name) for name in names} for names in layout.get("domains", {}).values()]
        assert len(set().union(*known)) == sum(len(names) for names in known)
        assert "" not in set().union(*known)


@pytest.mark.parametrize(
    ("spec", "held", "message"),
    [
        ("pacs", ["photo", "Photo", "art_painting", "cartoon", "sketch"], "has Photo/, photo/ for the domain 'photo'"),
        ("pacs", ["photo", "art painting", "ArtPainting", "cartoon", "sketch"], "has ArtPainting/, art painting/ for"),
        ("officehome", ["Art", "Clipart", "Product", "Real World", "real_world"], "has Real World/, real_world/ for"),
        ("vlcs", ["CALTECH", "Caltech101", "LabelMe", "VOC2007", "SUN09"], "has CALTECH/, Caltech101/ for the domain"),
        (
            "terra_incognita",
            ["location_38", "location_43", "location_46", "location_100", "location-100"],
            "location_100",
        ),
    ],
)
def test_two_folders_of_one_domain_are_refused(
    folders: MakeImage, tmp_path: Path, spec: str, held: list[str], message: str
) -> None:
    for name in held:
        folders("dog", below=name)
    with pytest.raises(EnvironmentProblem, match=f"{message}.*Remove all but one"):
        load(DataSpec(spec, root=str(tmp_path)))


@pytest.mark.parametrize("twins", [("0", "bird"), ("3", "dog"), ("1", "1_")])
@pytest.mark.parametrize("full", [True, False])
def test_two_folders_of_one_class_are_refused(
    folders: MakeImage, tmp_path: Path, twins: tuple[str, str], full: bool
) -> None:
    for name in ("CALTECH", "LABELME", "PASCAL", "SUN"):
        folders("0", "3", "1", *(twins if name == "SUN" else ()), below=f"{name}/{'full' if full else ''}")
    with pytest.raises(EnvironmentProblem, match=rf"SUN.*{twins[0]} and .*SUN.*{twins[1]} both hold the class"):
        load(DataSpec("vlcs", root=str(tmp_path)))


@pytest.mark.parametrize(
    "held", [("Photo", "ART PAINTING", "cartoon", "Sketch"), ("photo", "art-painting", "Cartoon", "SKETCH")]
)
def test_spellings_of_the_catalogue_are_known(folders: MakeImage, tmp_path: Path, held: tuple[str, ...]) -> None:
    for name in held:
        folders("dog", below=name)
    assert load(DataSpec("pacs", root=str(tmp_path))).domains == ("photo", "art_painting", "cartoon", "sketch")


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
    with pytest.warns(Notice, match=r"'missile' \(1: n03773504, 2: n04008634\)"):
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
    assert (report["whole"], report["sound"]) == (True, False)


def same_bytes(image: Path, name: str) -> None:
    image.with_name(name).write_bytes(image.read_bytes())


def same_pixels(image: Path, name: str) -> None:
    Image.open(image).save(image.with_name(name))


@pytest.mark.parametrize(
    ("copy", "name"),
    [
        (same_bytes, "copy.jpg"),
        (same_bytes, "copy.jpeg"),
        (same_bytes, "copy.png"),
        (same_bytes, "copy.JFIF"),
        (same_pixels, "copy.png"),
        (same_pixels, "copy.bmp"),
        (same_pixels, "copy.tif"),
    ],
)
@pytest.mark.parametrize("name_of_set", ["folder", "domains", "pacs"])
def test_a_test_image_that_was_trained_on_spoils_a_split_that_is_not_official(
    folders: MakeImage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copy: Callable[[Path, str], None],
    name: str,
    name_of_set: str,
) -> None:
    monkeypatch.setitem(SOURCES, name_of_set, replace(SOURCES[name_of_set], sizes={}))
    for domain in ("photo", "art_painting", "cartoon", "sketch") if name_of_set != "folder" else ("",):
        folders("cat", "dog", n=1, below=domain)
    (image,) = (tmp_path / ("photo" if name_of_set != "folder" else "") / "cat").iterdir()
    copy(image, name)  # of two images, one is held out
    report = check(DataSpec(name_of_set, root=str(tmp_path)))
    found = finding(report, "on both sides of the split: delete all but one")
    assert (found["cases"], name in found["first"], "image_0000.jpg" in found["first"]) == (1, True, True)
    assert (report["whole"], report["sound"]) == (True, False)


def test_a_copy_on_both_sides_under_another_label_is_both(picture: MakeImage, tmp_path: Path) -> None:
    for place in ("train/cat/a", "train/dog/b", "test/cat/c", "test/dog/d"):
        picture(tmp_path / f"{place}.png")
    assert check(DataSpec("folder", root=str(tmp_path)))["sound"]
    shutil.copy(tmp_path / "train" / "cat" / "a.png", tmp_path / "test" / "dog" / "e.png")
    report = check(DataSpec("folder", root=str(tmp_path)))
    for words in ("under different labels", "on both sides of the split"):
        assert finding(report, words)["first"] == "train/cat/a.png = test/dog/e.png"
    assert not report["sound"]


def test_copies_in_an_official_split_are_named_and_belong_to_it(
    tmp_path: Path, picture: MakeImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "dtd", replace(SOURCES["dtd"], sizes={"": {"all": [1, 1]}}))
    content = {"train": [["a/0.png", 0, "a"]], "val": [], "test": [["a/1.png", 0, "a"]]}
    image = picture(tmp_path / "dtd" / "images" / "a" / "0.png")
    shutil.copy(image, image.with_name("1.png"))
    (tmp_path / "dtd" / "split_zhou_DescribableTextures.json").write_text(json.dumps(content))
    report = check(DataSpec("dtd", root=str(tmp_path)))
    assert finding(report, "on both sides")["finding"] == "copies of an image on both sides of the split"
    assert (report["whole"], report["sound"]) == (True, True)


def test_splits_that_are_not_official() -> None:
    made = {"folder", "domains", "pacs", "officehome", "vlcs", "terra_incognita"}
    assert {name for name, entry in SOURCES.items() if not entry.official} == made


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
