"""Data sets in folders: one folder per class, domain/class, or ImageNet's train/ and val/.

The names of users' own folders are taken as they are. Other spellings of domains and classes are accepted for the data
sets of the catalogue only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.formatting import counted, some
from fpl_tune.data.files import FolderLayout, Group, Rows, assemble, divide, lines_of, locate, plain
from fpl_tune.data.listing import FolderImages, Listing
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec

_PARTS = {
    part: re.compile(rf"\s*({words})[ _.-]?(set|data|images?|split)?\s*", re.IGNORECASE)
    for part, words in {
        "train": "train(ing)?",
        "test": "test(ing)?",
        "val": "val(id(ation)?)?|eval(uation)?",
    }.items()
}
"""Names of folders with one part of a split, such as Train, training_set and valid."""
_RENAME = "If it is a class or a domain, rename its folder."
_REMOVE = "Remove files that do not belong to the data."


def load_folder(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists a user's images: root/class/*, or root/train/class/* and root/test/class/* (or val/ in place of test/).

    Raises:
        ConfigError: test/ contains classes that are missing in train/.
        EnvironmentProblem: `data.root` is not set or is not a folder of folders, or their meaning is not clear: a part
            of a split is missing or exists twice, or the classes are one level deeper.
    """
    listing, folders = _own(spec, layout)
    if parts := _parts(folders):
        return _by_parts(spec, layout, listing, folders, parts)
    images = dict(zip(folders, listing.images(list(folders.values())), strict=True))
    if not any("" in one.inner for one in images.values()):
        _reject_deeper(listing.root, folders, images)
    groups = [(name, one.images, label, 0) for label, (name, one) in enumerate(images.items())]
    dataset = _divided(spec, layout, listing.root, list(folders), groups)
    return _with_notes(dataset, "one folder a class", images, listing)


def load_own_domains(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists a user's images of several domains: root/domain/class/*, split by `data.test_share` per domain and class.

    Raises:
        EnvironmentProblem: `data.root` is not set or has no such folders, or some are named like parts of a split.
    """
    listing, domains = _own(spec, layout)
    _reject_parts(listing.root, domains)
    inside = {domain: _classes(listing, path, layout) for domain, path in domains.items()}
    for domain, folders in inside.items():
        _reject_parts(domains[domain], folders)
    dataset, images = _by_domain(spec, replace(layout, domains={name: (name,) for name in domains}), listing, inside)
    if all(one.deeper for one in images.values()):
        _reject_deeper(listing.root, domains, images)
    read = f"{counted(len(domains), 'domain')} ({some(list(domains))}) with one folder a class"
    return _with_notes(dataset, read, images, listing)


def load_domains(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists PACS, OfficeHome, VLCS or TerraIncognita, for which no federated paper states a split.

    Raises:
        EnvironmentProblem: a domain has no folder or two, or two folders in a domain belong to the same class.
    """
    listing = Listing(locate(spec, layout, [name for names in layout.domains.values() for name in names]))
    root, folders = listing.root, listing.folders(listing.root)
    inside: dict[str, dict[str, Path]] = {}
    for domain, spellings in layout.domains.items():
        matching = [name for name in folders if plain(name) in map(plain, spellings)]
        if not matching:
            raise EnvironmentProblem(
                f"{root} lacks the domain folder {spellings[0]!r}; it has {sorted(folders)}. Complete the download."
            )
        if len(matching) > 1:
            raise EnvironmentProblem(f"{root} has {_slashed(matching)} for the domain {domain!r}. Remove all but one.")
        below = folders[matching[0]] / layout.images
        inside[domain] = named = {}
        for name, path in _classes(listing, below if below.is_dir() else folders[matching[0]], layout).items():
            class_name = layout.rename.get(plain(name), name)
            if class_name in named:
                raise EnvironmentProblem(
                    f"{named[class_name]} and {path} both hold the class {class_name!r}. Merge the two."
                )
            named[class_name] = path
    dataset, _ = _by_domain(spec, layout, listing, inside)
    return replace(dataset, notes=(*dataset.notes, *listing.notes()))


def load_imagenet(spec: DataSpec, layout: FolderLayout) -> Dataset:
    """Lists ImageNet or some of its classes in the layout of CoOp: images/{train,val}/<wnid>/ and `classnames.txt`.

    The classes are those that have folders, in the order of their identifiers. The test images are in val/.

    Raises:
        EnvironmentProblem: a folder or `classnames.txt` is missing, or they name different classes.
    """
    listing = Listing(locate(spec, layout, ("classnames.txt",)))
    root = listing.root
    named = dict(line.split(maxsplit=1) for line in lines_of(root / "classnames.txt") if " " in line)
    train, test = (listing.folders(root / "images" / part) for part in ("train", "val"))
    odd = sorted((set(train) ^ set(test)) | (set(train) - set(named)))
    if odd:
        raise EnvironmentProblem(
            f"{odd[0]} is not both in images/train, images/val and classnames.txt of {root}. Complete the download."
        )
    rows, _ = _rows(listing, train, test)
    names = [named[identifier] for identifier in train]
    return assemble(spec, layout, root, names, rows, own_names=list(train), notes=listing.notes())


def _own(spec: DataSpec, layout: FolderLayout) -> tuple[Listing, dict[str, Path]]:
    """Lists `data.root`, and returns the folders in it."""
    listing = Listing(locate(spec, layout, (".",)))
    folders = listing.folders(listing.root)
    if not folders:
        raise EnvironmentProblem(f"data.root={spec.root} is not a folder of folders. Expected: {layout.files}")
    return listing, folders


def _classes(listing: Listing, folder: Path, layout: FolderLayout) -> dict[str, Path]:
    classes = listing.folders(folder)
    if not classes:
        raise EnvironmentProblem(f"{folder} has no class folders. Expected: {layout.files}. {_REMOVE}")
    return classes


def _parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Folder names that stand for parts of a split, by part."""
    names = list(names)
    named = {part: [name for name in names if pattern.fullmatch(name)] for part, pattern in _PARTS.items()}
    return {part: folders for part, folders in named.items() if folders}


def _reject_parts(folder: Path, names: Iterable[str]) -> None:
    """Rejects a split by folders, which domains cannot have."""
    if named := [name for group in _parts(names).values() for name in group]:
        raise EnvironmentProblem(
            f"{folder} has {_slashed(named)}, a split by folders, but data=domains reads <domain>/<class>/* and splits "
            f"by data.test_share. Merge the parts. {_RENAME}"
        )


def _reject_deeper(root: Path, folders: Mapping[str, Path], images: Mapping[str, FolderImages]) -> None:
    """Rejects images that are certainly too deep: there is only one folder, and in or below it are several folders."""
    paths = [Path(image) for one in images.values() for image in one.images]
    if len(folders) > 1 or not paths:
        return
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    inner = {path.relative_to(shared).parts[0] for path in paths if path.parent != shared}
    if len(inner) > 1 and not any(path.parent == shared for path in paths):
        raise EnvironmentProblem(
            f"{root / next(iter(folders))} is the only folder in data.root, and its images are deeper than they should "
            f"be, in {_slashed(sorted(inner))} of {root / shared}. Set data.root={root / shared}."
        )


def _slashed(names: Sequence[str]) -> str:
    return some([f"{name}/" for name in names])


def _by_parts(
    spec: DataSpec, layout: FolderLayout, listing: Listing, folders: Mapping[str, Path], parts: Mapping[str, list[str]]
) -> Dataset:
    """The data set of root/train/class/* and root/test/class/*; val/ is the test set if there is no other."""
    root = listing.root
    named = [name for group in parts.values() for name in group]
    others = [name for name in folders if name not in named]
    if twice := next((group for group in parts.values() if len(group) > 1), None):
        raise EnvironmentProblem(f"{root} has {_slashed(twice)}, the same part of a split. Merge them. {_RENAME}")
    if "train" not in parts or len(parts) == 1:
        lacks = "train/" if "train" not in parts else "test/ or val/"
        rest = f", only {_slashed(others)}" if others else ""
        raise EnvironmentProblem(
            f"{root} has {_slashed(named)}, a part of a split, but no {lacks}{rest}. Add it. {_RENAME}"
        )
    if any(one.images for one in Listing(root).images([folders[name] for name in others])):
        raise EnvironmentProblem(
            f"{root} has images in {_slashed(others)}, besides the split {_slashed(named)}. {_REMOVE} {_RENAME}"
        )
    train, test = parts["train"][0], parts.get("test", parts.get("val", []))[0]
    classes, tested = (_classes(listing, folders[side], layout) for side in (train, test))
    stray = sorted(set(tested) - set(classes))
    if stray:
        raise ConfigError(f"{root}/{test} has classes that {train}/ lacks: {stray}. Rename or remove them.")
    rows, images = _rows(listing, classes, tested)
    unused = [*others, *(parts["val"] if "test" in parts and "val" in parts else [])]
    read = f"split by the folders {train}/ and {test}/"
    read += f" ({test}/ is the test set)" if "test" not in parts else ""
    read += f" ({_slashed(unused)} not used)" if unused else ""
    names = [*(f"{train}/{name}" for name in classes), *(f"{test}/{name}" for name in tested)]
    dataset = assemble(spec, layout, root, list(classes), rows)
    return _with_notes(dataset, read, dict(zip(names, images, strict=True)), listing)


def _rows(
    listing: Listing, train: Mapping[str, Path], test: Mapping[str, Path]
) -> tuple[tuple[Rows, Rows], list[FolderImages]]:
    """Training and test rows of one domain with the class folders `train` and `test`, and the images of each folder."""
    images = listing.images([*train.values(), *test.values()])
    labels = {name: label for label, name in enumerate(train)}
    of_train, of_test = (
        [(image, labels[name], 0) for name, one in zip(names, below, strict=True) for image in one.images]
        for names, below in ((train, images[: len(train)]), (test, images[len(train) :]))
    )
    return (of_train, of_test), images


def _by_domain(
    spec: DataSpec, layout: FolderLayout, listing: Listing, inside: Mapping[str, Mapping[str, Path]]
) -> tuple[Dataset, dict[str, FolderImages]]:
    """The data set of the class folders `inside` each domain, and the images of each folder by domain/class."""
    classes = sorted({name for folders in inside.values() for name in folders})
    paths = {(domain, name): path for domain, folders in inside.items() for name, path in folders.items()}
    images = dict(zip(paths, listing.images(list(paths.values())), strict=True))
    domains = list(inside)
    groups = [
        (f"{domain}/{name}", one.images, classes.index(name), domains.index(domain))
        for (domain, name), one in images.items()
    ]
    by_name = {"/".join(key): one for key, one in images.items()}
    return _divided(spec, layout, listing.root, classes, groups), by_name


def _divided(spec: DataSpec, layout: FolderLayout, root: Path, classes: list[str], groups: Sequence[Group]) -> Dataset:
    """The data set of folders without an official split."""
    note = f"no official split: {spec.test_share:g} of each domain and class held out for testing"
    rows = divide(groups, spec.test_share)
    return assemble(spec, layout, root, classes, rows, notes=(note,))


def _with_notes(dataset: Dataset, read: str, images: Mapping[str, FolderImages], listing: Listing) -> Dataset:
    """A user's data set with notes on how its folders were `read`, and on missing images and files that were left out.

    Raises:
        EnvironmentProblem: a class folder contains parts of a split.
    """
    notes = [f"{read}, {counted(len(dataset.classes), 'class', 'classes')}: {some(dataset.classes)}"]
    for name, one in images.items():
        parts = _parts(one.inner)
        if "train" in parts and len(parts) > 1:
            named = _slashed([name for names in parts.values() for name in names])
            raise EnvironmentProblem(
                f"{listing.root}/{name} contains {named}, a split inside a class. A split is "
                f"<data.root>/train/<class>/* and <data.root>/test/<class>/*. Set data.root={listing.root / name} if "
                "this is the data set, or rename these folders to have no split."
            )
    tested = set(dataset.test.label.tolist())
    if untested := [name for label, name in enumerate(dataset.classes) if label not in tested]:
        notes.append(f"{counted(len(untested), 'class', 'classes')} without a test image: {some(untested)}")
    if empty := [name for name, one in images.items() if not one.images]:
        notes.append(f"{counted(len(empty), 'class folder')} without an image: {some(empty)}")
    inner = [f"{name} ({some(sorted(one.inner - {''}))})" for name, one in images.items() if one.inner - {""}]
    if inner:
        notes.append(f"images in folders inside class folders belong to the class: {some(inner)}")
    if deeper := [name for name, one in images.items() if one.deeper]:
        notes.append(
            f"all images of {some(deeper)} are in several inner folders: if those are the classes, this is a domain "
            "(data=domains), or data.root is one level too high"
        )
    return replace(dataset, notes=(*dataset.notes, *notes, *listing.notes()))
