"""The data sets of CoOp's layout: folders, list, prompt, and their own lists in case CoOp's is missing.

Folders and names follow CoOp's DATASETS.md (Zhou et al., 2022); templates are those of CoOp's zero-shot list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpl_tune.data.files import Rows, cut, images_in, subfolders
from fpl_tune.data.pool import irregular
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem

_SHARES = (0.5, 0.2)  # training and validation; the rest are test images
_VALIDATION = 0.2  # of an official training list
Listed = tuple[Rows, Rows, list[str]]
"""Training rows, test rows and class names."""
Pair = tuple[int, str]
"""Label and image."""


@dataclass(frozen=True)
class Layout:
    """Folders, list and prompt of a data set in this layout."""

    folders: tuple[str, ...]
    images: str
    """The folder that listed paths begin in."""
    split: str
    """CoOp's list, or the data set's own if CoOp uses that."""
    template: str
    own: Callable[[Path, DataSpec], Listed]
    """Reads or draws the split without CoOp's list."""

    @property
    def markers(self) -> tuple[str, str]:
        """What marks the data set's folder."""
        return self.split, "cars_train" if self.images == "." else self.images

    @property
    def official(self) -> bool:
        """Whether the data set's own list is the papers' split."""
        return not self.split.startswith("split_zhou")


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises `EnvironmentProblem` if it cannot be read."""
    try:
        if not path.is_file():
            raise irregular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise EnvironmentProblem(f"Cannot read {path}: its lists are nested too deeply. Download it again.") from None
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"Cannot read {path}: {error}. Download it again.") from None


def _needed(path: Path) -> Path:
    if not path.is_file():
        raise EnvironmentProblem(f"Neither the split list nor {path} exists. Download one of them.")
    return path


def _lines(path: Path) -> list[list[str]]:
    return [line.split() for line in _text(path) if line.strip() and not line.startswith("#")]


def _by_class(groups: Mapping[str, list[str]], spec: DataSpec) -> Listed:
    """Splits each class: 50 % training, 20 % validation (not used), 30 % test."""
    train, test = Rows(), Rows()
    for label, (name, images) in enumerate(groups.items()):
        first, _, last = cut(images, _SHARES, spec.split_seed, name)
        train.add(first, label)
        test.add(last, label)
    return train, test, list(groups)


def _official(trained: Iterable[Pair], tested: Iterable[Pair], spec: DataSpec) -> tuple[Rows, Rows]:
    """Official lists of labels and images, without the 20 % of each class that the layout takes from training for
    validation."""
    train, test = Rows(), Rows()
    for label, images in _grouped(trained):
        train.add(cut(images, [1 - _VALIDATION], spec.split_seed, str(label))[0], label)
    for label, images in _grouped(tested):
        test.add(images, label)
    return train, test


def _grouped(pairs: Iterable[Pair]) -> list[tuple[int, list[str]]]:
    """Images by label, in the order of the labels."""
    groups: dict[int, list[str]] = {}
    for label, image in pairs:
        groups.setdefault(label, []).append(image)
    return sorted(groups.items())


def _folders(images: str, rename: Mapping[str, str | None] | None = None) -> Callable[[Path, DataSpec], Any]:
    """Splits images in one folder per class; `rename` maps folders to classes, and to None to skip them."""

    def own(folder: Path, spec: DataSpec) -> Listed:
        root = folder / images
        called = {name: (rename or {}).get(name, name) for name in subfolders(root)}
        groups = {new: images_in(root / name, root) for name, new in called.items() if new is not None}
        return _by_class(dict(sorted(groups.items())), spec)

    return own


def _flowers(folder: Path, spec: DataSpec) -> Listed:
    from scipy.io import loadmat

    names = read_json(folder / "cat_to_name.json")
    labels = loadmat(_needed(folder / "imagelabels.mat"))["labels"][0]
    groups: dict[str, list[str]] = {names[str(k)]: [] for k in range(1, len(names) + 1)}
    for number, label in enumerate(labels.tolist(), start=1):
        groups[names[str(label)]].append(f"image_{number:05d}.jpg")
    return _by_class(groups, spec)


def _pets(folder: Path, spec: DataSpec) -> Listed:
    names: dict[int, str] = {}
    parts: list[list[Pair]] = []
    for part in ("trainval", "test"):
        listed = [(int(number) - 1, image) for image, number, *_ in _lines(folder / "annotations" / f"{part}.txt")]
        names |= {label: image.rsplit("_", 1)[0].lower() for label, image in listed}
        parts.append([(label, f"{image}.jpg") for label, image in listed])
    return *_official(parts[0], parts[1], spec), [names[label] for label in range(len(names))]


def _ucf(folder: Path, spec: DataSpec) -> Listed:
    lists = folder / "ucfTrainTestlist"
    names = [_spaced(name) for _, name in _lines(lists / "classInd.txt")]
    parts: list[list[Pair]] = []
    for part in ("trainlist01.txt", "testlist01.txt"):
        videos = [video.split("/") for video, *_ in _lines(lists / part)]
        listed = [(_spaced(action), file.replace(".avi", ".jpg")) for action, file in videos]
        parts.append([(names.index(action), f"{action}/{file}") for action, file in listed])
    return *_official(parts[0], parts[1], spec), names


def _spaced(action: str) -> str:
    """ApplyEyeMakeup -> Apply_Eye_Makeup; the official lists spell one action in two ways."""
    return "_".join(re.findall("[A-Z][^A-Z]*", action.replace("HandStand", "Handstand")))


def _cars(folder: Path, spec: DataSpec) -> Listed:
    """Stanford's annotations: file names and labels from 1, in struct arrays of MATLAB files."""
    from scipy.io import loadmat

    def read(file: str, field: str) -> Any:
        return loadmat(_needed(folder / file), simplify_cells=True)[field]

    names = [_year_first(str(name)) for name in read("devkit/cars_meta.mat", "class_names")]
    files = {"cars_train": "devkit/cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
    parts = [
        [(int(row["class"]) - 1, f"{images}/{row['fname']}") for row in read(file, "annotations")]
        for images, file in files.items()
    ]
    return *_official(parts[0], parts[1], spec), names


def _year_first(car: str) -> str:
    """ "Acura RL Sedan 2012" -> "2012 Acura RL Sedan"."""
    model, _, year = car.rpartition(" ")
    return f"{year} {model}"


def _aircraft(folder: Path, spec: DataSpec) -> Listed:
    """The official lists: "image variant", where a variant's name may have blanks. CoOp does not use the validation."""
    names = [line.strip() for line in _text(folder / "variants.txt") if line.strip()]
    parts = []
    for part in ("train", "test"):
        rows, path = Rows(), folder / f"images_variant_{part}.txt"
        for line in _text(path):
            image, _, variant = line.strip().partition(" ")
            if image and variant not in names:
                raise EnvironmentProblem(f"{path} names the variant {variant!r}, which variants.txt lacks.")
            rows.add([f"{image}.jpg"] if image else [], names.index(variant) if image else 0)
        parts.append(rows)
    return parts[0], parts[1], names


def _sun(folder: Path, spec: DataSpec) -> Listed:
    """The first of the ten official partitions. "/a/apse/indoor" is the class "indoor apse"."""
    paths = [line.strip() for line in _text(folder / "ClassName.txt") if line.strip()]
    label_of = {path: label for label, path in enumerate(paths)}
    parts: list[list[Pair]] = []
    for file in ("Training_01.txt", "Testing_01.txt"):
        images = [line.strip() for line in _text(folder / file) if line.strip()]
        lacking = next((scene for scene in map(_scene, images) if scene not in label_of), None)
        if lacking is not None:
            raise EnvironmentProblem(f"{folder / file} names the scene {lacking!r}, which ClassName.txt lacks.")
        parts.append([(label_of[_scene(image)], image.lstrip("/")) for image in images])
    return *_official(parts[0], parts[1], spec), [" ".join(path.split("/")[:1:-1]) for path in paths]


def _scene(image: str) -> str:
    return image.rpartition("/")[0]


def _text(path: Path) -> list[str]:
    return _needed(path).read_text(encoding="utf-8").splitlines()


_CALTECH = {
    "BACKGROUND_Google": None,
    "Faces_easy": None,
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
}
_EUROSAT = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}
LAYOUTS = {
    "oxford_pets": Layout(
        ("oxford_pets", "OxfordPets"), "images", "split_zhou_OxfordPets.json", "a photo of a {}, a type of pet.", _pets
    ),
    "flowers102": Layout(
        ("oxford_flowers", "flowers102"),
        "jpg",
        "split_zhou_OxfordFlowers.json",
        "a photo of a {}, a type of flower.",
        _flowers,
    ),
    "food101": Layout(
        ("food-101", "food101"),
        "images",
        "split_zhou_Food101.json",
        "a photo of {}, a type of food.",
        _folders("images"),
    ),
    "caltech101": Layout(
        ("caltech-101", "caltech101"),
        "101_ObjectCategories",
        "split_zhou_Caltech101.json",
        "a photo of a {}.",
        _folders("101_ObjectCategories", _CALTECH),
    ),
    "dtd": Layout(("dtd", "DTD"), "images", "split_zhou_DescribableTextures.json", "{} texture.", _folders("images")),
    "ucf101": Layout(
        ("ucf101", "UCF101"), "UCF-101-midframes", "split_zhou_UCF101.json", "a photo of a person doing {}.", _ucf
    ),
    "sun397": Layout(("sun397", "SUN397"), "SUN397", "split_zhou_SUN397.json", "a photo of a {}.", _sun),
    "stanford_cars": Layout(("stanford_cars",), ".", "split_zhou_StanfordCars.json", "a photo of a {}.", _cars),
    "fgvc_aircraft": Layout(
        ("fgvc_aircraft",), "images", "images_variant_train.txt", "a photo of a {}, a type of aircraft.", _aircraft
    ),
    "eurosat": Layout(
        ("eurosat", "EuroSAT"),
        "2750",
        "split_zhou_EuroSAT.json",
        "a centered satellite photo of {}.",
        _folders("2750", _EUROSAT),
    ),
}
