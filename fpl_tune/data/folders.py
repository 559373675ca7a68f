"""Data sets in folders: one folder per class, domain/class, or ImageNet's train/ and val/.

Your own folders go by their exact names; other spellings of domains and classes are the catalogue's, for its own sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.formatting import counted, some
from fpl_tune.data.files import Group, Layout, Rows, assemble, divide, lines_of, locate, plain
from fpl_tune.data.listing import Found, Listing
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
"""Names of folders that hold a part of a split, such as Train, training_set, valid."""
_RENAME = "If it is a class or a domain, rename its folder."
_AWAY = "Remove files that do not belong to the data."


def load_folder(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists your own images: root/class/*, or root/train/class/* and root/test/class/* (or val/ in place of test/).

    Raises:
        ConfigError: test/ contains classes that are missing in train/.
        EnvironmentProblem: `data.root` is not set or is not a folder of folders, or their meaning is not clear: a part
            of a split has no partner or is there twice, or the classes lie one level deeper.
    """
    listing, held = _own(spec, layout)
    if parts := _parts(held):
        return _by_parts(spec, layout, listing, held, parts)
    found = dict(zip(held, listing.images(list(held.values())), strict=True))
    _refuse_deeper(held, found)
    groups = [(name, one.images, label, 0) for label, (name, one) in enumerate(found.items())]
    whole = _divided(spec, layout, listing.root, list(held), groups)
    return _told(whole, "one folder a class", found, listing)


def load_own_domains(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists your own images of several domains: root/domain/class/*, split by `data.test_share` per domain and class.

    Raises:
        EnvironmentProblem: `data.root` is not set or holds no such folders, or some are named as parts of a split.
    """
    listing, held = _own(spec, layout)
    _refuse_parts(listing.root, held)
    inside = {domain: _classes(listing, path, layout) for domain, path in held.items()}
    for domain, folders in inside.items():
        _refuse_parts(held[domain], folders)
    whole, found = _by_domain(spec, replace(layout, domains={name: (name,) for name in held}), listing, inside)
    _refuse_deeper(held, found)
    read = f"{counted(len(held), 'domain')} ({some(list(held))}) with one folder a class"
    return _told(whole, read, found, listing)


def load_domains(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists PACS, OfficeHome, VLCS or TerraIncognita: no federated paper states a split.

    Raises:
        EnvironmentProblem: a domain has no folder or two, or two folders in a domain hold the same class.
    """
    listing = Listing(locate(spec, layout, [name for names in layout.domains.values() for name in names]))
    root, held = listing.root, listing.folders(listing.root)
    inside: dict[str, dict[str, Path]] = {}
    for domain, spellings in layout.domains.items():
        found = [name for name in held if plain(name) in map(plain, spellings)]
        if not found:
            raise EnvironmentProblem(
                f"{root} lacks the domain folder {spellings[0]!r}; it has {sorted(held)}. Complete the download."
            )
        if len(found) > 1:
            raise EnvironmentProblem(f"{root} has {_slashed(found)} for the domain {domain!r}. Remove all but one.")
        below = held[found[0]] / layout.images
        inside[domain] = named = {}
        for name, path in _classes(listing, below if below.is_dir() else held[found[0]], layout).items():
            known = layout.rename.get(plain(name), name)
            if known in named:
                raise EnvironmentProblem(f"{named[known]} and {path} both hold the class {known!r}. Merge the two.")
            named[known] = path
    whole, _ = _by_domain(spec, layout, listing, inside)
    return replace(whole, notes=(*whole.notes, *listing.notes()))


def load_imagenet(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists ImageNet or a part of its classes in the layout of CoOp: images/{train,val}/<wnid>/ and `classnames.txt`.

    The classes are those that have folders, in the order of their identifiers; val/ holds the test images.

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


def _own(spec: DataSpec, layout: Layout) -> tuple[Listing, dict[str, Path]]:
    """The listing of `data.root`, and the folders in it."""
    listing = Listing(locate(spec, layout, (".",)))
    held = listing.folders(listing.root)
    if not held:
        raise EnvironmentProblem(f"data.root={spec.root} is not a folder of folders. Expected: {layout.files}")
    return listing, held


def _classes(listing: Listing, folder: Path, layout: Layout) -> dict[str, Path]:
    held = listing.folders(folder)
    if not held:
        raise EnvironmentProblem(f"{folder} has no class folders. Expected: {layout.files}. {_AWAY}")
    return held


def _parts(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that are those of parts of a split, by part."""
    names = list(names)
    named = {part: [name for name in names if known.fullmatch(name)] for part, known in _PARTS.items()}
    return {part: found for part, found in named.items() if found}


def _refuse_parts(folder: Path, names: Iterable[str]) -> None:
    """Domains have no split by folders."""
    if named := [name for found in _parts(names).values() for name in found]:
        raise EnvironmentProblem(
            f"{folder} has {_slashed(named)}, a split by folders, but data=domains reads <domain>/<class>/* and splits "
            f"by data.test_share. Merge the parts. {_RENAME}"
        )


def _refuse_deeper(held: Mapping[str, Path], found: Mapping[str, Found]) -> None:
    """Images one level deeper than they should lie, where it is certain: there is one folder, and all are deeper."""
    if len(held) == 1 and all(one.deeper for one in found.values()):
        (folder,) = held.values()
        inner = sorted({name for one in found.values() for name in one.inner})
        raise EnvironmentProblem(
            f"{folder} is the only folder in data.root, and its images lie one level deeper than they should, in "
            f"{_slashed(inner)}. Set data.root={folder}."
        )


def _slashed(names: Sequence[str]) -> str:
    return some([f"{name}/" for name in names])


def _by_parts(
    spec: DataSpec, layout: Layout, listing: Listing, held: Mapping[str, Path], parts: Mapping[str, list[str]]
) -> Dataset:
    """The data set of root/train/class/* and root/test/class/*; val/ is the test set if there is no other."""
    root = listing.root
    named = [name for found in parts.values() for name in found]
    others = [name for name in held if name not in named]
    if twice := next((found for found in parts.values() if len(found) > 1), None):
        raise EnvironmentProblem(f"{root} has {_slashed(twice)}, the same part of a split. Merge them. {_RENAME}")
    if "train" not in parts or len(parts) == 1:
        lacks = "train/" if "train" not in parts else "test/ or val/"
        beside = f" but {_slashed(others)}" if others else ""
        raise EnvironmentProblem(
            f"{root} has {_slashed(named)}, a part of a split, and no {lacks} beside it{beside}. Add it. {_RENAME}"
        )
    if any(one.images for one in Listing(root).images([held[name] for name in others])):
        raise EnvironmentProblem(
            f"{root} has images in {_slashed(others)}, beside the split {_slashed(named)}. {_AWAY} {_RENAME}"
        )
    train, test = parts["train"][0], parts.get("test", parts.get("val", []))[0]
    classes, tested = (_classes(listing, held[part], layout) for part in (train, test))
    stray = sorted(set(tested) - set(classes))
    if stray:
        raise ConfigError(f"{root}/{test} has classes that {train}/ lacks: {stray}. Rename or remove them.")
    rows, found = _rows(listing, classes, tested)
    unused = [*others, *(parts["val"] if "test" in parts and "val" in parts else [])]
    read = f"split by the folders {train}/ and {test}/"
    read += f" ({test}/ is the test set)" if "test" not in parts else ""
    read += f" ({_slashed(unused)} not used)" if unused else ""
    places = [*(f"{train}/{name}" for name in classes), *(f"{test}/{name}" for name in tested)]
    whole = assemble(spec, layout, root, list(classes), rows)
    return _told(whole, read, dict(zip(places, found, strict=True)), listing)


def _rows(
    listing: Listing, train: Mapping[str, Path], test: Mapping[str, Path]
) -> tuple[tuple[Rows, Rows], list[Found]]:
    """Training and test rows of one domain in the class folders `train` and `test`, and what was found in each."""
    found = listing.images([*train.values(), *test.values()])
    labels = {name: label for label, name in enumerate(train)}
    of_train, of_test = (
        [(image, labels[name], 0) for name, one in zip(names, held, strict=True) for image in one.images]
        for names, held in ((train, found[: len(train)]), (test, found[len(train) :]))
    )
    return (of_train, of_test), found


def _by_domain(
    spec: DataSpec, layout: Layout, listing: Listing, inside: Mapping[str, Mapping[str, Path]]
) -> tuple[Dataset, dict[str, Found]]:
    """The data set of the class folders `inside` each domain, and what was found by domain/class."""
    classes = sorted({name for folders in inside.values() for name in folders})
    places = {(domain, name): path for domain, folders in inside.items() for name, path in folders.items()}
    found = dict(zip(places, listing.images(list(places.values())), strict=True))
    domains = list(inside)
    groups = [
        (f"{domain}/{name}", one.images, classes.index(name), domains.index(domain))
        for (domain, name), one in found.items()
    ]
    held = {"/".join(place): one for place, one in found.items()}
    return _divided(spec, layout, listing.root, classes, groups), held


def _divided(spec: DataSpec, layout: Layout, root: Path, classes: list[str], groups: Sequence[Group]) -> Dataset:
    """The data set of folders without an official split."""
    note = f"no official split: {spec.test_share:g} of each domain and class held out for testing"
    rows = divide(groups, spec.test_share)
    return assemble(spec, layout, root, classes, rows, notes=(note,))


def _told(whole: Dataset, read: str, found: Mapping[str, Found], listing: Listing) -> Dataset:
    """Your own data set with notes on how its folders were `read`, what they lack, and what was left out.

    Raises:
        EnvironmentProblem: a class folder contains parts of a split.
    """
    notes = [f"{read}, {counted(len(whole.classes), 'class', 'classes')}: {some(whole.classes)}"]
    for place, one in found.items():
        parts = _parts(one.inner)
        if "train" in parts and len(parts) > 1:
            named = _slashed([name for names in parts.values() for name in names])
            raise EnvironmentProblem(
                f"{listing.root}/{place} contains {named}, a split inside a class. A split is "
                "<data.root>/train/<class>/* and <data.root>/test/<class>/*; rename these folders to have no split."
            )
    tested = set(whole.test.label.tolist())
    if untested := [name for label, name in enumerate(whole.classes) if label not in tested]:
        notes.append(f"{counted(len(untested), 'class', 'classes')} without a test image: {some(untested)}")
    if empty := [place for place, one in found.items() if not one.images]:
        notes.append(f"{counted(len(empty), 'class folder')} without an image: {some(empty)}")
    inner = [f"{place} ({some(sorted(one.inner - {''}))})" for place, one in found.items() if one.inner - {""}]
    if inner:
        notes.append(f"images in folders inside class folders belong to the class: {some(inner)}")
    if deeper := [place for place, one in found.items() if one.deeper]:
        notes.append(
            f"all images of {some(deeper)} lie in several inner folders: if those are the classes, this is a domain "
            "(data=domains), or data.root is one level too high"
        )
    return replace(whole, notes=(*whole.notes, *notes, *listing.notes()))
