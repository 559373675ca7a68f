"""Data sets in folders: one folder per class, domain/class, or ImageNet's train/ and val/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data.files import Group, Layout, assemble, divide, images_in, lines_of, locate, plain, subfolders
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec


def load_folder(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists your own images: root/class/*, or root/train/class/* and root/test/class/* (or val/ in place of test/).

    Raises:
        ConfigError: test/ contains classes that are missing in train/.
        EnvironmentProblem: `data.root` is not set or is not a folder of folders.
    """
    root, held = _own_root(spec, layout)
    given = next((name for name in ("test", "val") if name in held), None)
    if "train" not in held or not given:
        groups = [(name, images_in(path, root), label, 0) for label, (name, path) in enumerate(held.items())]
        return _divided(spec, layout, root, list(held), groups)
    classes = list(subfolders(held["train"]))
    stray = set(subfolders(held[given])) - set(classes)
    if stray:
        raise ConfigError(f"{root}/{given} has classes that train/ lacks: {sorted(stray)}. Rename or remove them.")
    train, test = (
        [(image, label, 0) for label, name in enumerate(classes) for image in images_in(held[part] / name, root)]
        for part in ("train", given)
    )
    note = f"split by the folders train/ and {given}/"
    return assemble(spec, layout, root, classes, (train, test), notes=(note,))


def load_own_domains(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists your own images of several domains: root/domain/class/*."""
    root, held = _own_root(spec, layout)
    return by_domain(spec, replace(layout, domains={name: (name,) for name in held}), root)


def load_domains(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists PACS, OfficeHome, VLCS or TerraIncognita: no federated paper states a split."""
    folders = [name for names in layout.domains.values() for name in names]
    return by_domain(spec, layout, locate(spec, layout, folders))


def by_domain(spec: DataSpec, layout: Layout, root: Path) -> Dataset:
    """Lists folders domain/class/*, split by `data.test_share` per domain and class.

    Raises:
        EnvironmentProblem: a domain's folder is missing.
    """
    held = {plain(name): path for name, path in subfolders(root).items()}
    inside: list[dict[str, Path]] = []
    for candidates in layout.domains.values():
        found = [held[plain(name)] for name in candidates if plain(name) in held]
        if not found:
            raise EnvironmentProblem(
                f"{root} lacks the domain folder {candidates[0]!r}; it has {sorted(p.name for p in held.values())}. "
                "Complete the download, or choose data.domains."
            )
        below = found[0] / layout.images
        inside.append(subfolders(below if below.is_dir() else found[0]))
    named = {name: layout.rename.get(plain(name)) or name for folders in inside for name in folders}
    classes = sorted(set(named.values()))
    groups = [
        (f"{domain}/{named[name]}", images_in(path, root), classes.index(named[name]), number)
        for number, (domain, folders) in enumerate(zip(layout.domains, inside, strict=True))
        for name, path in folders.items()
    ]
    return _divided(spec, layout, root, classes, groups)


def load_imagenet(spec: DataSpec, layout: Layout) -> Dataset:
    """Lists ImageNet or a part of its classes in the layout of CoOp: images/{train,val}/<wnid>/ and `classnames.txt`.

    The classes are those that have folders, in the order of their identifiers; val/ holds the test images.

    Raises:
        EnvironmentProblem: a folder or `classnames.txt` is missing, or they name different classes.
    """
    root = locate(spec, layout, ("classnames.txt",))
    named = dict(line.split(maxsplit=1) for line in lines_of(root / "classnames.txt") if " " in line)
    train, test = (subfolders(root / "images" / part) for part in ("train", "val"))
    odd = sorted((set(train) ^ set(test)) | (set(train) - set(named)))
    if odd:
        raise EnvironmentProblem(
            f"{odd[0]} is not both in images/train, images/val and classnames.txt of {root}. Complete the download."
        )
    rows = tuple(
        [(image, label, 0) for label, name in enumerate(train) for image in images_in(folders[name], root)]
        for folders in (train, test)
    )
    return assemble(spec, layout, root, [named[identifier] for identifier in train], (rows[0], rows[1]))


def _own_root(spec: DataSpec, layout: Layout) -> tuple[Path, dict[str, Path]]:
    """`data.root` and the folders in it."""
    root = locate(spec, layout, (".",))
    held = subfolders(root)
    if not held:
        raise EnvironmentProblem(f"data.root={spec.root} is not a folder of folders. Expected: {layout.files}")
    return root, held


def _divided(spec: DataSpec, layout: Layout, root: Path, classes: list[str], groups: Sequence[Group]) -> Dataset:
    """The data set of folders without an official split."""
    note = (
        f"no official split: {spec.test_share:g} of each domain and class held out for testing, seed {spec.split_seed}"
    )
    rows = divide(groups, spec.test_share, spec.split_seed)
    return assemble(spec, layout, root, classes, rows, notes=(note,))
