from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fpl_tune.data import DataSpec, load
from fpl_tune.data.sources import SOURCES
from fpl_tune.errors import ConfigError, EnvironmentProblem

MakeFolders = Callable[..., Path]
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
