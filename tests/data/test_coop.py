from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.io import savemat

import fpl_tune
from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data import DataSpec, load

MakeImage = Callable[..., Path]
CATALOGUE = yaml.safe_load((Path(fpl_tune.__file__).parent / "data" / "catalogue.yaml").read_text())
LISTED = [name for name, entry in CATALOGUE.items() if entry.get("split", "").endswith(".json")]


@pytest.fixture
def listed(tmp_path: Path, picture: MakeImage) -> Callable[..., Path]:
    """Writes a data set with its list: two classes with three training, one validation and two test images."""

    def write(name: str, *, folder: str | None = None) -> Path:
        layout = CATALOGUE[name]
        root = tmp_path / (folder or layout["folders"][0])
        content: dict[str, list] = {"train": [], "val": [], "test": []}
        for label, called in enumerate(("first_kind", "second kind")):
            for part, n in (("train", 3), ("val", 1), ("test", 2)):
                for k in range(n):
                    path = f"{called}/{part}_{k}.jpg"
                    picture(root / layout["images"] / path)
                    (root / layout["images"].replace(".", "cars_train")).mkdir(exist_ok=True)
                    content[part].append([path, label, called])
        (root / layout["split"]).write_text(json.dumps(content))
        return root

    return write


@pytest.mark.parametrize("name", LISTED)
def test_each_data_set_of_the_layout_loads_by_its_list(listed: Callable[..., Path], name: str) -> None:
    root = listed(name)
    data = load(DataSpec(name, root=str(root.parent)))
    assert data.classes == ("first kind", "second kind")
    assert (len(data.train), len(data.test)) == (6, 4)
    assert not any("val" in path for path in (*data.train.names, *data.test.names))
    assert "{}" in data.template
    assert np.asarray(data.train.read(0)).shape == (8, 8, 3)


@pytest.mark.parametrize("folder", ["caltech-101", "caltech101"])
def test_both_spellings_of_a_folder(listed: Callable[..., Path], folder: str) -> None:
    root = listed("caltech101", folder=folder)
    assert len(load(DataSpec("caltech101", root=str(root.parent))).train) == 6
    assert len(load(DataSpec("caltech101", root=str(root))).train) == 6


def test_listed_images_that_are_missing_are_counted_and_can_be_dropped(listed: Callable[..., Path]) -> None:
    root = listed("dtd")
    (root / "images" / "first_kind" / "train_1.jpg").unlink()
    spec = DataSpec("dtd", root=str(root.parent))
    with pytest.raises(EnvironmentProblem, match=r"^1 of 6 images .*first first_kind/train_1\.jpg.*drop_missing"):
        load(spec)
    with pytest.warns(UserWarning, match="1 of 6 images"):
        assert len(load(replace(spec, drop_missing=True)).train) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "Cannot read"),
        ("[]", "not a list of this layout"),
        ('{"train": [["a.jpg", 0]], "test": []}', "not a list of this layout"),
        ('{"train": [["a.jpg", 0, "x"], ["b.jpg", 0, "y"]], "test": []}', "label 0 is both 'x' and 'y'"),
        ('{"train": [["a.jpg", 1, "x"]], "test": []}', "labels are not 0, 1, 2"),
    ],
)
def test_a_list_that_is_no_list_is_refused(listed: Callable[..., Path], content: str, message: str) -> None:
    root = listed("food101")
    (root / "split_zhou_Food101.json").write_text(content)
    with pytest.raises(EnvironmentProblem, match=message):
        load(DataSpec("food101", root=str(root.parent)))


def test_a_list_without_the_images_folder(listed: Callable[..., Path]) -> None:
    root = listed("food101")
    (root / "images").rename(root / "pictures")
    with pytest.raises(EnvironmentProblem, match="but no images/"):
        load(DataSpec("food101", root=str(root.parent)))


# ---- split again without a list --------------------------------------------------------------------------------------


def test_caltech_again_leaves_out_two_folders_and_renames_four(tmp_path: Path, picture: MakeImage) -> None:
    names = ("BACKGROUND_Google", "Faces", "Faces_easy", "Leopards", "Motorbikes", "airplanes", "accordion")
    for name in names:
        for k in range(10):
            picture(tmp_path / "caltech-101" / "101_ObjectCategories" / name / f"image_{k:04d}.jpg")
    data = load(DataSpec("caltech101", root=str(tmp_path)))
    assert data.classes == ("accordion", "airplane", "face", "leopard", "motorbike")
    assert np.bincount(data.train.label).tolist() == [5] * 5
    assert np.bincount(data.test.label).tolist() == [3] * 5
    folder = {"airplane": "airplanes", "face": "Faces"}
    for path, label in zip(data.test.names, data.test.label.tolist(), strict=True):
        called = data.classes[label]
        assert path.startswith(folder.get(called, called.capitalize() + "s" if called != "accordion" else called))
    assert "not the papers' split" in data.notes[0]


def test_flowers_again(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "oxford_flowers"
    labels = [1, 2] * 10
    for number in range(1, 21):
        picture(root / "jpg" / f"image_{number:05d}.jpg")
    savemat(root / "imagelabels.mat", {"labels": np.array([labels])})
    (root / "cat_to_name.json").write_text('{"1": "pink primrose", "2": "moon orchid"}')
    data = load(DataSpec("flowers102", root=str(tmp_path)))
    assert data.classes == ("pink primrose", "moon orchid")
    numbers = [int(name[6:11]) for name in data.train.names]
    assert data.train.label.tolist() == [labels[number - 1] - 1 for number in numbers]
    assert (len(data.train), len(data.test)) == (10, 6)


def test_pets_again(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "oxford_pets"
    lines: dict[str, list[str]] = {"trainval": ["# header"], "test": []}
    for part, n in (("trainval", 5), ("test", 2)):
        for label, breed in enumerate(("Abyssinian", "american_bulldog"), start=1):
            for k in range(n):
                picture(root / "images" / f"{breed}_{part}{k}.jpg")
                lines[part].append(f"{breed}_{part}{k} {label} 1 1")
    (root / "annotations").mkdir()
    for part, text in lines.items():
        (root / "annotations" / f"{part}.txt").write_text("\n".join(text))
    data = load(DataSpec("oxford_pets", root=str(tmp_path)))
    assert data.classes == ("abyssinian", "american bulldog")
    assert (len(data.train), len(data.test)) == (8, 4)  # a fifth of each class is kept for validation


def test_ucf_again(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "ucf101"
    lists = root / "ucfTrainTestlist"
    lists.mkdir(parents=True)
    (lists / "classInd.txt").write_text("1 ApplyEyeMakeup\n2 HandstandPushups\n")
    lines: dict[str, list[str]] = {"trainlist01.txt": [], "testlist01.txt": []}
    for file, n in (("trainlist01.txt", 5), ("testlist01.txt", 2)):
        for action, folder in (
            ("ApplyEyeMakeup", "Apply_Eye_Makeup"),
            ("HandStandPushups", "Handstand_Pushups"),
        ):
            for k in range(n):
                video = f"v_{action}_{file[:5]}{k}"
                picture(root / "UCF-101-midframes" / folder / f"{video}.jpg")
                lines[file].append(f"{action}/{video}.avi 1")
        (lists / file).write_text("\n".join(lines[file]))
    data = load(DataSpec("ucf101", root=str(tmp_path)))
    assert data.classes == ("Apply Eye Makeup", "Handstand Pushups")
    assert (len(data.train), len(data.test)) == (8, 4)


@pytest.mark.parametrize(
    ("name", "image", "lacking"),
    [
        ("flowers102", "oxford_flowers/jpg/a.jpg", "imagelabels.mat"),
        ("oxford_pets", "oxford_pets/images/a.jpg", "trainval.txt"),
    ],
)
def test_neither_list_nor_what_to_split_by(
    tmp_path: Path, picture: MakeImage, name: str, image: str, lacking: str
) -> None:
    (picture(tmp_path / image).parents[1] / "cat_to_name.json").write_text("{}")
    with pytest.raises(EnvironmentProblem, match=rf"^There is no .*{lacking}\. Images: .*DATASETS\.md"):
        load(DataSpec(name, root=str(tmp_path)))


def test_cars_by_their_annotations(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    cars = np.array(["Acura RL Sedan 2012", "Ford F-150 Regular Cab 2007"], dtype=object)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": cars})
    for part, file, n in (("train", "devkit/cars_train_annos.mat", 10), ("test", "cars_test_annos_withlabels.mat", 4)):
        rows = [(f"{k:05d}.jpg", k % 2 + 1) for k in range(n)]
        savemat(root / file, {"annotations": np.array(rows, dtype=[("fname", object), ("class", np.uint8)])})
        for name, _ in rows:
            picture(root / f"cars_{part}" / name)
    data = load(DataSpec("stanford_cars", root=str(tmp_path)))
    assert data.classes == ("2012 Acura RL Sedan", "2007 Ford F-150 Regular Cab")
    assert (len(data.train), len(data.test)) == (8, 4)
    for pool, part in ((data.train, "train"), (data.test, "test")):
        for path, label in zip(pool.names, pool.label.tolist(), strict=True):
            assert path.startswith(f"cars_{part}/")
            assert int(path[-9:-4]) % 2 == label
    np.asarray(data.train.read(0))


def test_aircraft_by_the_official_lists(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "fgvc_aircraft"
    root.mkdir()
    (root / "variants.txt").write_text("707-320\nA340-300 Long\n")
    for part, numbers in (("train", range(4)), ("val", range(4, 6)), ("test", range(6, 9))):
        lines = [f"{k:07d} {('707-320', 'A340-300 Long')[k % 2]}" for k in numbers]
        (root / f"images_variant_{part}.txt").write_text("\n".join(lines) + "\n")
        for k in numbers:
            picture(root / "images" / f"{k:07d}.jpg")
    data = load(DataSpec("fgvc_aircraft", root=str(tmp_path)))
    assert data.classes == ("707-320", "A340-300 Long")
    assert data.train.names == tuple(f"{k:07d}.jpg" for k in range(4))
    assert data.train.label.tolist() == [0, 1, 0, 1]
    assert data.test.label.tolist() == [0, 1, 0]
    assert not data.notes  # these lists are the papers'
    (root / "images_variant_test.txt").write_text("0000006 Concorde\n")
    with pytest.raises(EnvironmentProblem, match=r"images_variant_test\.txt names the class 'Concorde'"):
        load(DataSpec("fgvc_aircraft", root=str(tmp_path)))


def test_scenes_by_the_first_official_partition(tmp_path: Path, picture: MakeImage) -> None:
    root = tmp_path / "sun397"
    scenes = ("/a/abbey", "/a/apse/indoor")
    (root / "SUN397").mkdir(parents=True)
    (root / "ClassName.txt").write_text("\n".join(scenes) + "\n")
    for file, n in (("Training_01.txt", 5), ("Testing_01.txt", 2)):
        images = [f"{scene}/sun_{file[:5]}{k}.jpg" for scene in scenes for k in range(n)]
        (root / file).write_text("\n".join(images) + "\n")
        for image in images:
            picture(root / "SUN397" / image[1:])
    data = load(DataSpec("sun397", root=str(tmp_path)))
    assert data.classes == ("abbey", "indoor apse")
    assert (len(data.train), len(data.test)) == (8, 4)
    assert all(("apse" in path) == bool(label) for path, label in zip(data.test.names, data.test.label, strict=True))


def test_satellite_images_are_named_as_in_the_prompts(tmp_path: Path, picture: MakeImage) -> None:
    for name in ("AnnualCrop", "Forest", "SeaLake"):
        for k in range(10):
            picture(tmp_path / "eurosat" / "2750" / name / f"{name}_{k}.jpg")
    data = load(DataSpec("eurosat", root=str(tmp_path)))
    assert data.classes == ("Annual Crop Land", "Forest", "Sea or Lake")
    assert data.template.format(data.classes[1]) == "a centered satellite photo of Forest."
