"""Data sets in files: finds the folder, checks that listed images exist, and splits data sets without a list."""

from __future__ import annotations

import errno
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fpl_tune.core.errors import EnvironmentProblem, MissingData
from fpl_tune.core.formatting import counted
from fpl_tune.data.pool import Dataset, FilePool
from fpl_tune.data.spec import DataSpec

Row = tuple[str, int, int]
"""An image: path below the root, class id, domain id."""
Rows = list[Row]
Group = tuple[str, Sequence[str], int, int]
"""The images of one class and domain: unique name of the group, paths, class id, domain id."""


@dataclass(frozen=True)
class FolderLayout:
    """The names of a data set's files and folders, as in `catalogue.yaml`."""

    files: str
    """Expected files below `data.root`, in one line."""
    origin: str
    """Where to get the files."""
    folders: Sequence[str] = ()
    """Possible names of the data set's folder."""
    template: str = "a photo of a {}."
    """Hand-written prompt."""
    images: str = ""
    """`coop`: the folder that listed paths are relative to; `domains`: an optional folder between domain and class."""
    split: str = ""
    """`coop`: CoOp's list, or that of the data set if CoOp uses it."""
    domains: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Domains in their order, and the possible folders of each, compared without case and punctuation."""
    classes: Sequence[str] = ()
    """Classes in the order of their labels, if lists or folders have another order."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """Class names by folder, where the two differ. Folders are compared without case and punctuation."""


def assemble(
    spec: DataSpec,
    layout: FolderLayout,
    root: Path,
    classes: Sequence[str],
    rows: tuple[Rows, Rows],
    *,
    own_names: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    listed_in: str = "",
) -> Dataset:
    """The data set of training and test images below `root`.

    Args:
        spec: the data set.
        layout: its domains and template.
        root: the folder that the paths in `rows` are relative to.
        classes: class names in the order of the labels; they are cleaned for prompts.
        rows: training and test images.
        own_names: see `Dataset.own_names`; `classes` by default.
        notes: see `Dataset.notes`.
        listed_in: name of the list that the images come from; "" if they were listed from folders.

    Raises:
        EnvironmentProblem: listed images are missing, or a class folder is empty.
    """
    if listed_in:
        rows = (_present(rows[0], root, spec, listed_in), _present(rows[1], root, spec, listed_in))
    else:
        trained = {label for _, label, _ in rows[0]}
        empty = [name for label, name in enumerate(classes) if label not in trained]
        if empty or not classes:
            raise EnvironmentProblem(
                f"{root} has {counted(len(empty), 'class folder')} without a training image, first {empty[:1]}. "
                "Complete the download, or remove the folders."
            )
    train, test = (
        FilePool(
            key=f"{spec.name}-{split}",
            names=tuple(name for name, *_ in listed),
            label=np.array([label for _, label, _ in listed], dtype=np.int64),
            domain=np.array([domain for *_, domain in listed], dtype=np.int64),
            transform="clip",
            root=str(root),
        )
        for listed, split in zip(rows, ("train", "test"), strict=True)
    )
    domains = tuple(layout.domains) or ("images",)
    own = tuple(own_names or classes)
    return Dataset(spec.name, cleaned(classes), domains, layout.template, train, test, own_names=own, notes=notes)


def cleaned(classes: Sequence[str]) -> tuple[str, ...]:
    """Class names for prompts, with blanks in place of underscores."""
    return tuple(name.replace("_", " ") for name in classes)


def locate(spec: DataSpec, layout: FolderLayout, markers: Sequence[str]) -> Path:
    """The folder of a data set that contains one of the markers: the root, or one of `layout.folders` in it.

    Raises:
        MissingData: there is no such folder. The message tells the expected files and their origin.
    """
    expected = f"{layout.files}. {layout.origin}"
    if not spec.root:
        raise MissingData(f"data={spec.name} needs files: set data.root. Expected: {expected}")
    root = Path(spec.root)
    if not root.is_dir():
        raise MissingData(f"data.root={spec.root} is not a folder. It should hold {expected}")
    for folder in (*(root / name for name in layout.folders), root):
        if any((folder / marker).exists() for marker in markers):
            return folder
    wanted = " or ".join(f"{layout.folders[0]}/{marker}" for marker in markers)
    raise MissingData(f"There is no {wanted} below {root}. {layout.origin}")


def plain(name: str) -> str:
    """A folder name without case, blanks and punctuation, to compare names: "Real World" equals "real_world"."""
    return "".join(filter(str.isalnum, name.casefold()))


def _present(rows: Rows, root: Path, spec: DataSpec, listed_in: str) -> Rows:
    """The listed images that exist. If `data.drop_missing` is set, it warns about the others."""
    folders = {os.path.dirname(name) for name, *_ in rows}
    files_in = {folder: set(os.listdir(root / folder)) if (root / folder).is_dir() else set() for folder in folders}
    exists = [os.path.basename(name) in files_in[os.path.dirname(name)] for name, *_ in rows]
    if all(exists):
        return rows
    missing = f"{exists.count(False)} of {len(rows)} images in {listed_in} are not below {root}, first "
    missing += rows[exists.index(False)][0]
    if not spec.drop_missing or not any(exists):
        raise EnvironmentProblem(
            f"{missing}. Complete the download, or set data.drop_missing=true to continue without them."
        )
    warnings.warn(f"{missing}. Continuing without them.", stacklevel=2)
    return [row for row, here in zip(rows, exists, strict=True) if here]


def _text(path: Path) -> str:
    """The text of a file. Devices and pipes are rejected, since they may never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors on Windows add a byte order mark
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # UTF-16 without a mark
        raise OSError(errno.EILSEQ, "it is not text in UTF-8; save it as such")
    return text


def lines_of(path: Path) -> list[str]:
    """The lines of a list, without blank lines and comments.

    Raises:
        EnvironmentProblem: the list cannot be read.
    """
    try:
        lines = [line.strip() for line in _text(path).splitlines()]
    except OSError as error:
        raise EnvironmentProblem(f"Cannot read {path}: {error.strerror}. Complete the download.") from None
    return [line for line in lines if line and not line.startswith("#")]


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file. Raises `EnvironmentProblem`, with `remedy` in its message, if it cannot be read."""
    try:
        return json.loads(_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise EnvironmentProblem(f"Cannot read {path}: {why}. {remedy}") from None


def class_names(listed: Iterable[tuple[int, str]]) -> list[str]:
    """Class names in the order of their labels, from the labels and names of listed images.

    Raises:
        ValueError: a label has two names, or labels are not 0, 1, 2, ...
    """
    pairs = sorted(set(listed))
    if [label for label, _ in pairs] != list(range(len(pairs))):
        raise ValueError("labels are not 0, 1, 2, ... with one name each")
    return [name for _, name in pairs]


_SPLIT_SEED = 1


def divide(groups: Iterable[Group], test_share: float) -> tuple[Rows, Rows]:
    """Shuffles the images of every group and splits them into training and test images.

    With two or more images, a group has at least one training and one test image. The seed depends on the group's name
    only, so that the split of a class does not depend on other classes.
    """
    train: Rows = []
    test: Rows = []
    for group, names, label, domain in groups:
        order = np.random.default_rng([_SPLIT_SEED, zlib.crc32(os.fsencode(group))]).permutation(len(names))
        most = max(len(names) - 1, min(len(names), 1))
        edge = min(round((1 - test_share) * len(names)), most)
        for chosen, into in ((order[:edge], train), (order[edge:], test)):
            into += [(names[i], label, domain) for i in np.sort(chosen).tolist()]
    return train, test
