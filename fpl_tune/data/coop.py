"""The data sets in the layout of CoOp (Zhou et al., 2022): a folder of images and `split_zhou_<Name>.json`.

The list gives [path, label, class name] for training, validation and test. As in the federated papers' code, its
validation images are not used; clients validate on some of their own training images. Without the list, the images
are split as the layout's documentation describes, with `data.split_seed`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpl_tune.data.files import Rows, assemble, cut, images_in, locate, present, subfolders
from fpl_tune.data.pool import Dataset, irregular
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import EnvironmentProblem

_SHARES = (0.5, 0.2)  # training and validation; the rest are test images
_VALIDATION = 0.2  # of an official training list


@dataclass(frozen=True)
class Layout:
    """Folders, list and prompt of a data set in this layout."""

    folders: tuple[str, ...]
    images: str
    split: str
    template: str
    again: Callable[[Path, DataSpec], tuple[Rows, Rows, list[str]]]
    """Splits without the list; returns training rows, test rows and class names."""


def load_coop(spec: DataSpec, origin: str) -> Dataset:
    """Lists one of the six data sets of the layout, by `spec.name`.

    Args:
        spec: the data set.
        origin: where to download it, for messages.

    Raises:
        EnvironmentProblem: the list has another format, or names images that are missing.
    """
    layout = LAYOUTS[spec.name]
    folder = locate(spec, layout.folders, (layout.split, layout.images), origin)
    images = folder / layout.images
    if not images.is_dir():
        raise EnvironmentProblem(f"{folder} has {layout.split} but no {layout.images}/. {origin}")
    notes: tuple[str, ...] = ()
    if (folder / layout.split).is_file():
        train, test, names = _listed(folder / layout.split)
        listed_in = layout.split
    else:
        train, test, names = layout.again(folder, spec)
        listed_in = "the data set's own list"
        notes = (f"{layout.split} is missing: split again, seed {spec.split_seed}; not the papers' split",)
    train, test = (present(rows, images, spec, listed_in) for rows in (train, test))
    return assemble(spec.name, images, names, ("images",), layout.template, (train, test), notes)


def _listed(path: Path) -> tuple[Rows, Rows, list[str]]:
    content = _json(path)
    name_of: dict[int, str] = {}
    parts = []
    try:
        for part in ("train", "test"):
            rows = Rows()
            for image, label, name in content[part]:
                if name_of.setdefault(int(label), str(name)) != name:
                    raise ValueError(f"label {label} is both {name_of[label]!r} and {name!r}")
                rows.add([str(image)], int(label))
            parts.append(rows)
        if sorted(name_of) != list(range(len(name_of))):
            raise ValueError("labels are not 0, 1, 2, ...")
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentProblem(
            f"{path} is not a list of this layout ({error}): it should be "
            '{"train": [[path, label, class name], ...], "val": ..., "test": ...}. Download it again.'
        ) from None
    return parts[0], parts[1], [name_of[label] for label in range(len(name_of))]


def _json(path: Path) -> Any:
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
    lines = _needed(path).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line.strip() and not line.startswith("#")]


def _by_class(groups: Mapping[str, list[str]], spec: DataSpec) -> tuple[Rows, Rows, list[str]]:
    """Splits each class: 50 % training, 20 % validation (not used), 30 % test."""
    train, test = Rows(), Rows()
    for label, (name, images) in enumerate(groups.items()):
        first, _, last = cut(images, _SHARES, spec.split_seed, name)
        train.add(first, label)
        test.add(last, label)
    return train, test, list(groups)


def _official(trained: Mapping[int, list[str]], tested: Mapping[int, list[str]], spec: DataSpec) -> tuple[Rows, Rows]:
    """Official lists by label, without the 20 % of each class that the layout takes from training for validation."""
    train, test = Rows(), Rows()
    for label, images in sorted(trained.items()):
        train.add(cut(images, [1 - _VALIDATION], spec.split_seed, str(label))[0], label)
    for label, images in sorted(tested.items()):
        test.add(images, label)
    return train, test


def _folders(images: str, rename: Mapping[str, str | None] | None = None) -> Callable[[Path, DataSpec], Any]:
    """Splits images in one folder per class; `rename` maps folders to classes, and to None to skip them."""

    def again(folder: Path, spec: DataSpec) -> tuple[Rows, Rows, list[str]]:
        root = folder / images
        called = {name: (rename or {}).get(name, name) for name in subfolders(root)}
        groups = {new: images_in(root / name, root) for name, new in called.items() if new is not None}
        return _by_class(dict(sorted(groups.items())), spec)

    return again


def _flowers(folder: Path, spec: DataSpec) -> tuple[Rows, Rows, list[str]]:
    from scipy.io import loadmat

    names = _json(folder / "cat_to_name.json")
    labels = loadmat(_needed(folder / "imagelabels.mat"))["labels"][0]
    groups: dict[str, list[str]] = {names[str(k)]: [] for k in range(1, len(names) + 1)}
    for number, label in enumerate(labels.tolist(), start=1):
        groups[names[str(label)]].append(f"image_{number:05d}.jpg")
    return _by_class(groups, spec)


def _pets(folder: Path, spec: DataSpec) -> tuple[Rows, Rows, list[str]]:
    names: dict[int, str] = {}
    groups: dict[str, dict[int, list[str]]] = {"trainval": {}, "test": {}}
    for part, by_label in groups.items():
        for image, number, *_ in _lines(folder / "annotations" / f"{part}.txt"):
            label = int(number) - 1
            names[label] = image.rsplit("_", 1)[0].lower()
            by_label.setdefault(label, []).append(f"{image}.jpg")
    return *_official(groups["trainval"], groups["test"], spec), [names[label] for label in range(len(names))]


def _ucf(folder: Path, spec: DataSpec) -> tuple[Rows, Rows, list[str]]:
    lists = folder / "ucfTrainTestlist"
    names = [_spaced(name) for _, name in _lines(lists / "classInd.txt")]
    parts: list[dict[int, list[str]]] = []
    for part in ("trainlist01.txt", "testlist01.txt"):
        groups: dict[int, list[str]] = {}
        for video, *_ in _lines(lists / part):
            action, file = video.split("/")
            groups.setdefault(names.index(_spaced(action)), []).append(
                f"{_spaced(action)}/{file.replace('.avi', '.jpg')}"
            )
        parts.append(groups)
    return *_official(parts[0], parts[1], spec), names


def _spaced(action: str) -> str:
    """ApplyEyeMakeup -> Apply_Eye_Makeup; the official lists spell one action in two ways."""
    return "_".join(re.findall("[A-Z][^A-Z]*", action.replace("HandStand", "Handstand")))


_CALTECH = {
    "BACKGROUND_Google": None,
    "Faces_easy": None,
    "airplanes": "airplane",
    "Faces": "face",
    "Leopards": "leopard",
    "Motorbikes": "motorbike",
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
}
