"""Data sets in folders: one folder per class, or domain/class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fpl_tune.data.files import Rows, assemble, cut, images_in, locate, plain, subfolders
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.formatting import counted

TEMPLATE = "a photo of a {}."
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")


class _Layout(NamedTuple):
    """Folders domain/class/* of a published data set."""

    folders: tuple[str, ...]
    domains: Mapping[str, Sequence[str]]
    """The possible folders of each domain."""
    rename: Mapping[str, str] = MappingProxyType({})
    below: str = ""


_LAYOUTS = {
    "pacs": _Layout(("PACS", "pacs"), {name: (name,) for name in ("photo", "art_painting", "cartoon", "sketch")}),
    "officehome": _Layout(
        ("OfficeHome", "office_home", "OfficeHomeDataset_10072016"),
        {"art": ("Art", "art"), "clipart": ("Clipart",), "product": ("Product",), "real_world": ("Real World",)},
    ),
    "vlcs": _Layout(  # names of the original archive, whose classes are numbers, and of DomainBed's
        ("VLCS", "vlcs"),
        {
            "caltech": ("CALTECH", "Caltech101"),
            "labelme": ("LABELME", "LabelMe"),
            "pascal": ("PASCAL", "VOC2007"),
            "sun": ("SUN", "SUN09"),
        },
        {str(k): name for k, name in enumerate(VLCS_CLASSES)},
        "full",
    ),
    "terra_incognita": _Layout(
        ("terra_incognita", "TerraIncognita"), {f"location_{n}": (f"location_{n}",) for n in (38, 43, 46, 100)}
    ),
}


def load_folder(spec: DataSpec, layout: str) -> Dataset:
    """Lists your own images: root/class/*, or root/train/class/* and root/test/class/* (or val/ in place of test/).

    Args:
        spec: the data set.
        layout: the expected folders, for messages.

    Raises:
        ConfigError: test/ contains classes that are missing in train/.
        EnvironmentProblem: `data.root` is not set or is not a folder of folders.
    """
    root = _own_root(spec, layout)
    held = subfolders(root)
    given = next((name for name in ("test", "val") if name in held), None)
    train, test = Rows(), Rows()
    if "train" in held and given:
        classes = sorted(subfolders(held["train"]))
        stray = set(subfolders(held[given])) - set(classes)
        if stray:
            raise ConfigError(f"{root}/{given} has classes that train/ lacks: {sorted(stray)}. Rename or remove them.")
        for rows, part in ((train, "train"), (test, given)):
            for label, name in enumerate(classes):
                rows.add(images_in(held[part] / name, root), label)
        note = f"split by the folders train/ and {given}/"
    else:
        classes = list(held)
        for label, name in enumerate(classes):
            divide(spec, images_in(held[name], root), name, label, 0, train, test)
        note = _own_split_note(spec)
    return _dataset("folder", root, classes, ("images",), train, test, (note,))


def load_domains(spec: DataSpec, layout: str) -> Dataset:
    """Lists your own images of several domains: root/domain/class/*."""
    root = _own_root(spec, layout)
    return by_domain(spec, root, {name: (name,) for name in subfolders(root)})


def load_published(spec: DataSpec, origin: str) -> Dataset:
    """Lists PACS, OfficeHome, VLCS or TerraIncognita, split 80/20 per domain and class: no federated paper states a
    split."""
    layout = _LAYOUTS[spec.name]
    root = locate(spec, layout.folders, [name for names in layout.domains.values() for name in names], origin)
    return by_domain(spec, root, layout.domains, layout.rename, below=layout.below)


def by_domain(
    spec: DataSpec,
    root: Path,
    domains: Mapping[str, Sequence[str]],
    rename: Mapping[str, str] = MappingProxyType({}),
    below: str = "",
) -> Dataset:
    """Lists folders domain/class/*, split by `data.test_share`.

    Args:
        spec: the data set.
        root: folder of the domains.
        domains: each domain's name and possible folders, compared without case and punctuation.
        rename: names of classes that differ from their folders, by the folder's `plain` name.
        below: a folder between domain and class, where a domain has it.

    Raises:
        EnvironmentProblem: a domain's folder is missing.
    """
    held = {plain(name): path for name, path in subfolders(root).items()}
    folder_of: dict[str, Path] = {}
    for domain, candidates in domains.items():
        found = [held[plain(name)] for name in candidates if plain(name) in held]
        if not found:
            raise EnvironmentProblem(
                f"{root} lacks the domain folder {candidates[0]!r}; it has {sorted(p.name for p in held.values())}. "
                "Complete the download, or choose data.domains."
            )
        folder_of[domain] = found[0] / below if (found[0] / below).is_dir() else found[0]
    inside = {domain: subfolders(path) for domain, path in folder_of.items()}
    named = {name: rename.get(plain(name), name) for folders in inside.values() for name in folders}
    classes = sorted(set(named.values()))
    train, test = Rows(), Rows()
    for number, (domain, folders) in enumerate(inside.items()):
        for name, folder in folders.items():
            label = classes.index(named[name])
            divide(spec, images_in(folder, root), f"{domain}/{named[name]}", label, number, train, test)
    return _dataset(spec.name, root, classes, tuple(domains), train, test, (_own_split_note(spec),))


def _own_root(spec: DataSpec, layout: str) -> Path:
    if not spec.root:
        raise EnvironmentProblem(f"data={spec.name} reads files; set data.root. Expected: {layout}")
    root = Path(os.path.expanduser(spec.root))  # leaves a ~name that is not a user
    if not root.is_dir() or not subfolders(root):
        raise EnvironmentProblem(f"data.root={spec.root} is not a folder of folders. Expected: {layout}")
    return root


def divide(spec: DataSpec, names: list[str], group: str, label: int, domain: int, train: Rows, test: Rows) -> None:
    """Adds the images of one class and domain to `train` and `test`, in the shares of `data.test_share`."""
    parts = cut(names, [1 - spec.test_share], spec.split_seed, group)
    for rows, part in zip((train, test), parts, strict=True):
        rows.add(part, label, domain)


def _own_split_note(spec: DataSpec) -> str:
    return (
        f"no official split: {spec.test_share:g} of each domain and class held out for testing, seed {spec.split_seed}"
    )


def _dataset(
    name: str,
    root: Path,
    classes: Sequence[str],
    domains: tuple[str, ...],
    train: Rows,
    test: Rows,
    notes: tuple[str, ...],
) -> Dataset:
    empty = [name for label, name in enumerate(classes) if label not in set(train.label)]
    if empty or not classes:
        raise EnvironmentProblem(
            f"{root} has {counted(len(empty), 'class folder')} without a training image, first {empty[:1]}. "
            "Complete the download, or remove the folders."
        )
    return assemble(name, root, classes, domains, TEMPLATE, (train, test), notes)
