"""Data sets in folders: one folder per class, or domain/class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fpl_tune.data.files import Rows, assemble, cut, images_in, locate, plain, subfolders
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import ConfigError, EnvironmentProblem
from fpl_tune.formatting import counted

TEMPLATE = "a photo of a {}."
PACS_DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
OFFICEHOME_DOMAINS = ("art", "clipart", "product", "real_world")
VLCS_DOMAINS = {
    "caltech": ("CALTECH", "Caltech101"),
    "labelme": ("LABELME", "LabelMe"),
    "pascal": ("PASCAL", "VOC2007"),
    "sun": ("SUN", "SUN09"),
}
"""Names of the original archive, and of DomainBed's."""
VLCS_CLASSES = ("bird", "car", "chair", "dog", "person")
TERRA_DOMAINS = ("location_38", "location_43", "location_46", "location_100")


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


def load_pacs(spec: DataSpec, origin: str) -> Dataset:
    """Lists PACS: domain/class/*, split 80/20 per domain and class, as no federated paper states a split."""
    root = locate(spec, ("PACS", "pacs"), PACS_DOMAINS, origin)
    return by_domain(spec, root, {name: (name,) for name in PACS_DOMAINS})


def load_officehome(spec: DataSpec, origin: str) -> Dataset:
    """Lists OfficeHome: Domain/Class/*, split 80/20 per domain and class, as no federated paper states a split."""
    folders = ("OfficeHome", "office_home", "OfficeHomeDataset_10072016")
    root = locate(spec, folders, ("Art", "art"), origin)
    return by_domain(spec, root, {name: (name,) for name in OFFICEHOME_DOMAINS})


def load_vlcs(spec: DataSpec, origin: str) -> Dataset:
    """Lists VLCS: Domain/full/class/* or Domain/class/*, classes by name or by number; split 80/20 as PACS."""
    root = locate(spec, ("VLCS", "vlcs"), [name for names in VLCS_DOMAINS.values() for name in names], origin)
    return by_domain(spec, root, VLCS_DOMAINS, {str(k): name for k, name in enumerate(VLCS_CLASSES)}, below="full")


def load_terra(spec: DataSpec, origin: str) -> Dataset:
    """Lists TerraIncognita: location_<n>/class/*, split 80/20 per domain and class, as PACS."""
    root = locate(spec, ("terra_incognita", "TerraIncognita"), TERRA_DOMAINS, origin)
    return by_domain(spec, root, {name: (name,) for name in TERRA_DOMAINS})


def by_domain(
    spec: DataSpec,
    root: Path,
    domains: Mapping[str, Sequence[str]],
    rename: Mapping[str, str] | None = None,
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
    named = {name: (rename or {}).get(plain(name), name) for folders in inside.values() for name in folders}
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
    root = Path(os.path.expanduser(spec.root))  # leaves a ~name that is no user
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
