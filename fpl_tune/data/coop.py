"""Data sets in the layout of CoOp (Zhou et al., 2022): a folder of images and `split_zhou_<Name>.json`.

The list has [path, label, class name] for training, validation and test. As in the code of the federated papers, its
validation images are not used; clients validate on some of their own training images.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.data.files import FolderLayout, Rows, assemble, class_names, lines_of, locate, read_json
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec

Listed = tuple[Rows, Rows, Sequence[str]]
"""Training rows, test rows and class names."""


def load_coop(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists the data set `spec.name`, which has this layout.

    Raises:
        EnvironmentProblem: the list or listed images are missing, or the list has another format.
    """
    folder = locate(spec, layout, (layout.split,))
    path = folder / layout.split
    try:
        train, test, names = (_read if path.suffix == ".json" else _read_aircraft)(path)
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentProblem(f"{path} is not a list of CoOp's layout ({error}). Download it again.") from None
    return assemble(spec, layout, folder / layout.images, names, (train, test), listed_in=path.name)


def _read(path: Path) -> Listed:
    """Reads {"train": [[path, label, class name], ...], "val": ..., "test": ...}."""
    content = read_json(path, "Download it again.")
    parts = [[(str(image), int(label), str(name)) for image, label, name in content[p]] for p in ("train", "test")]
    names = class_names((label, name) for part in parts for _, label, name in part)
    train, test = ([(image, label, 0) for image, label, _ in part] for part in parts)
    return train, test, names


def _read_aircraft(path: Path) -> Listed:
    """Reads the official lists of "image variant", where a variant may contain blanks.

    As in CoOp, validation images are not used.
    """
    names = lines_of(path.with_name("variants.txt"))
    parts: list[Rows] = []
    for file in ("images_variant_train.txt", "images_variant_test.txt"):
        lines = [line.partition(" ") for line in lines_of(path.with_name(file))]
        parts.append([(f"{image}.jpg", names.index(variant), 0) for image, _, variant in lines])
    return parts[0], parts[1], names
