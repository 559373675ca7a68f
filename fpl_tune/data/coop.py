"""The data sets in the layout of CoOp (Zhou et al., 2022): a folder of images and `split_zhou_<Name>.json`.

The list gives [path, label, class name] for training, validation and test. As in the federated papers' code, its
validation images are not used; clients validate on some of their own training images. Without the list, the images
are split as the layout's documentation describes, with `data.split_seed`: by the data set's own lists, less 20 % of
each training class for validation, or each class in 50 % training, 20 % validation and 30 % test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data.files import (
    Layout,
    Rows,
    assemble,
    class_names,
    divide,
    images_in,
    label_in,
    lines_of,
    locate,
    needed,
    read_json,
    subfolders,
)
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec

_SHARES = (0.5, 0.2)  # training and validation; the rest are test images
_VALIDATION = 0.2  # of an official training list
Listed = tuple[Rows, Rows, Sequence[str]]
"""Training rows, test rows and class names."""
Pairs = list[tuple[int, str]]
"""Labels and images."""
_LABEL = itemgetter(0)


def load_coop(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists one of the data sets in this layout, by `spec.name`.

    Raises:
        EnvironmentProblem: the list has another format, or names images that are missing.
    """
    marker = "cars_train" if layout.images == "." else layout.images
    folder = locate(spec, layout, (layout.split, marker))
    if not (folder / marker).is_dir():
        raise EnvironmentProblem(f"{folder} has {layout.split} but no {marker}/. {layout.origin}")
    path = folder / layout.split
    coops = path.suffix == ".json"
    listed = coops and path.is_file()
    if listed:
        train, test, names = read_list(path)
    else:
        train, test, names = _OWN.get(spec.name, _folders)(folder, layout, spec.split_seed)
    note = f"{path.name} is missing: split again, seed {spec.split_seed}; not the papers' split"
    notes = (note,) if coops and not listed else ()
    listed_in = path.name if listed else "the data set's own list"
    return assemble(spec, layout, folder / layout.images, names, (train, test), notes=notes, listed_in=listed_in)


def read_list(path: Path) -> Listed:
    """CoOp's list of a split. Raises `EnvironmentProblem` if it has another format."""
    content = read_json(path, "Download it again.")
    try:
        listed = [[(str(image), int(label), str(name)) for image, label, name in content[p]] for p in ("train", "test")]
        names = class_names((label, name) for part in listed for _, label, name in part)
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentProblem(
            f"{path} is not a list of this layout ({error}): it should be "
            '{"train": [[path, label, class name], ...], "val": ..., "test": ...}. Download it again.'
        ) from None
    train, test = ([(image, label, 0) for image, label, _ in part] for part in listed)
    return train, test, names


# ---- split again without CoOp's list ---------------------------------------------------------------------------------


def _by_class(groups: Mapping[str, Sequence[str]], seed: int) -> Listed:
    """The images of each class, without an official split."""
    grouped = [(name, images, label, 0) for label, (name, images) in enumerate(groups.items())]
    return *divide(grouped, _SHARES, seed), list(groups)


def _official(trained: Pairs, tested: Pairs, names: Sequence[str], seed: int) -> Listed:
    """Official lists, without the images that the layout takes from training for validation."""
    by_label = groupby(sorted(trained, key=_LABEL), _LABEL)
    train, _ = divide([(str(k), [image for _, image in pairs], k, 0) for k, pairs in by_label], [1 - _VALIDATION], seed)
    return train, [(image, label, 0) for label, image in sorted(tested, key=_LABEL)], names


def _folders(folder: Path, layout: Layout, seed: int) -> Listed:
    """One folder per class."""
    root = folder / layout.images
    called = {name: layout.rename.get(name, name) for name in subfolders(root)}
    groups = {new: images_in(root / name, root) for name, new in called.items() if new is not None}
    return _by_class(dict(sorted(groups.items())), seed)


def _flowers(folder: Path, layout: Layout, seed: int) -> Listed:
    names = read_json(folder / "cat_to_name.json", layout.origin)
    groups: dict[str, list[str]] = {names[str(k)]: [] for k in range(1, len(names) + 1)}
    for number, label in enumerate(_matlab(folder / "imagelabels.mat", "labels", layout), start=1):
        groups[names[str(label)]].append(f"image_{number:05d}.jpg")
    return _by_class(groups, seed)


def _pets(folder: Path, layout: Layout, seed: int) -> Listed:
    names: dict[int, str] = {}
    parts: list[Pairs] = []
    for part in ("trainval", "test"):
        lines = [line.split() for line in lines_of(folder / "annotations" / f"{part}.txt", layout)]
        names |= {int(number) - 1: image.rsplit("_", 1)[0].lower() for image, number, *_ in lines}
        parts.append([(int(number) - 1, f"{image}.jpg") for image, number, *_ in lines])
    return _official(parts[0], parts[1], [names[label] for label in range(len(names))], seed)


def _ucf(folder: Path, layout: Layout, seed: int) -> Listed:
    lists = folder / "ucfTrainTestlist"
    names = [_spaced(line.split()[1]) for line in lines_of(lists / "classInd.txt", layout)]
    label_of = {name: label for label, name in enumerate(names)}
    parts: list[Pairs] = []
    for path in (lists / "trainlist01.txt", lists / "testlist01.txt"):
        videos = [line.split()[0].split("/") for line in lines_of(path, layout)]
        images = [(_spaced(action), file.replace(".avi", ".jpg")) for action, file in videos]
        parts.append([(label_in(label_of, action, path), f"{action}/{file}") for action, file in images])
    return _official(parts[0], parts[1], names, seed)


def _spaced(action: str) -> str:
    """ApplyEyeMakeup -> Apply_Eye_Makeup; the official lists spell one action in two ways."""
    return "_".join(re.findall("[A-Z][^A-Z]*", action.replace("HandStand", "Handstand")))


def _cars(folder: Path, layout: Layout, seed: int) -> Listed:
    """Stanford's annotations: file names and labels from 1. "Acura RL 2012" is the class "2012 Acura RL"."""
    cars = [str(name).rpartition(" ") for name in _matlab(folder / "devkit/cars_meta.mat", "class_names", layout)]
    files = {"cars_train": "devkit/cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
    train, test = (
        [(int(row["class"]) - 1, f"{images}/{row['fname']}") for row in _matlab(folder / file, "annotations", layout)]
        for images, file in files.items()
    )
    return _official(train, test, [f"{year} {model}" for model, _, year in cars], seed)


def _matlab(path: Path, field: str, layout: Layout) -> list[Any]:
    from scipy.io import loadmat

    return list(loadmat(needed(path, layout), simplify_cells=True)[field])


def _aircraft(folder: Path, layout: Layout, seed: int) -> Listed:
    """The official lists: "image variant", where a variant's name may have blanks. CoOp does not use the validation."""
    names = lines_of(folder / "variants.txt", layout)
    label_of = {name: label for label, name in enumerate(names)}
    parts: list[Rows] = []
    for path in (folder / "images_variant_train.txt", folder / "images_variant_test.txt"):
        lines = [line.partition(" ") for line in lines_of(path, layout)]
        parts.append([(f"{image}.jpg", label_in(label_of, variant, path), 0) for image, _, variant in lines])
    return parts[0], parts[1], names


def _sun(folder: Path, layout: Layout, seed: int) -> Listed:
    """The first of the ten official partitions. "/a/apse/indoor" is the class "indoor apse"."""
    scenes = lines_of(folder / "ClassName.txt", layout)
    label_of = {scene: label for label, scene in enumerate(scenes)}
    train, test = (
        [(label_in(label_of, image.rpartition("/")[0], path), image[1:]) for image in lines_of(path, layout)]
        for path in (folder / "Training_01.txt", folder / "Testing_01.txt")
    )
    return _official(train, test, [" ".join(scene.split("/")[:1:-1]) for scene in scenes], seed)


_OWN: dict[str, Callable[[Path, Layout, int], Listed]] = {
    "oxford_pets": _pets,
    "flowers102": _flowers,
    "ucf101": _ucf,
    "sun397": _sun,
    "stanford_cars": _cars,
    "fgvc_aircraft": _aircraft,
}
"""Readers of data sets whose own lists or labels give a split; all others have one folder per class."""
