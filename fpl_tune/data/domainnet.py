"""DomainNet with 10 or 345 classes, and Office-Caltech10: lists, pickled lists or folders by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fpl_tune.data.files import Rows, assemble, locate, present
from fpl_tune.data.folders import TEMPLATE, by_domain, divide
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.unpickle import unpickle
from fpl_tune.errors import EnvironmentProblem, unknown

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = tuple("bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split())
OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")
OFFICE_TEN = tuple("back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector".split())


def load_domainnet(spec: DataSpec, origin: str) -> Dataset:
    """All 345 classes by the official lists, or the ten of the federated papers.

    The ten come from FedBN's pickled lists, which the papers use. Without these they are selected from the official
    lists and split 80/20 per domain and class.

    Raises:
        ConfigError: `spec.classes` is neither 10 nor 345.
        EnvironmentProblem: the images or lists are not below the data root.
    """
    if spec.classes not in ("", "10", "345"):
        raise unknown("data.classes of domainnet", spec.classes, ("10", "345"))
    pickles, lists = f"{DOMAINS[0]}_train.pkl", (f"splits/{DOMAINS[0]}_train.txt", f"{DOMAINS[0]}_train.txt")
    ten = spec.classes != "345"
    root = locate(spec, ("DomainNet", "domainnet"), (pickles, *lists) if ten else lists, origin)
    if ten and (root / pickles).is_file():
        return _pickled(spec, root, DOMAINS, TEN)
    rows, names = _lists(root, spec, origin)
    if not ten:
        return _dataset(spec, root, names, DOMAINS, rows["train"], rows["test"])
    train, test = _pick(rows, names, spec, origin)
    note = f"FedBN's pickles are missing: split again, seed {spec.split_seed}; not the papers' split"
    return _dataset(spec, root, TEN, DOMAINS, train, test, (note,))


def load_office(spec: DataSpec, origin: str) -> Dataset:
    """Office-Caltech10 by FedBN's pickled lists, or from folders domain/class, split 80/20 per domain and class."""
    pickles, folders = f"{OFFICE_DOMAINS[0]}_train.pkl", "amazon"
    names = ("office_caltech_10", "OfficeCaltech10", "office_caltech10")
    root = locate(spec, names, (pickles, folders), origin)
    if (root / pickles).is_file():
        return _pickled(spec, root, OFFICE_DOMAINS, OFFICE_TEN)
    domains = {name: (name, f"{name}10") for name in OFFICE_DOMAINS}
    return by_domain(spec, root, domains, {"backpack": "back_pack", "laptop": "laptop_computer"})


def _pickled(spec: DataSpec, root: Path, domains: Sequence[str], classes: Sequence[str]) -> Dataset:
    """`<domain>_{train,test}.pkl`: a pair (image paths, class names). Paths begin at the root or one folder above."""
    label_of = {name: k for k, name in enumerate(classes)}
    rows = {"train": Rows(), "test": Rows()}
    for part, into in rows.items():
        for number, domain in enumerate(domains):
            path = root / f"{domain}_{part}.pkl"
            for image, name in _pairs(path):
                if name not in label_of:
                    raise EnvironmentProblem(f"{path} names the class {name!r}, which is not one of {list(classes)}.")
                into.add([_below(image, root)], label_of[name], number)
    return _dataset(spec, root, classes, domains, rows["train"], rows["test"])


def _pairs(path: Path) -> list[tuple[str, str]]:
    content = unpickle(path)
    if not isinstance(content, (tuple, list, np.ndarray)) or len(content) != 2 or len(content[0]) != len(content[1]):
        raise EnvironmentProblem(f"{path} does not hold image paths and as many class names. Download it again.")
    return [(str(image), str(name)) for image, name in zip(*content, strict=True)]


def _below(image: str, root: Path) -> str:
    """A path relative to the root; in the list it may begin at any folder above."""
    parts = [part for part in image.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    ours = {root.name.lower(), "domainnet", "office_caltech_10"}
    above = [i for i, part in enumerate(parts[:-1]) if part.lower() in ours]
    return "/".join(parts[above[-1] + 1 :] if above else parts)


def _lists(root: Path, spec: DataSpec, origin: str) -> tuple[dict[str, Rows], list[str]]:
    """The official lists `<domain>_{train,test}.txt`: "path label" per line; a class is the path's second part."""
    folder = root / "splits" if (root / "splits").is_dir() else root
    rows = {"train": Rows(), "test": Rows()}
    name_of: dict[int, str] = {}
    for part, into in rows.items():
        for number, domain in enumerate(DOMAINS):
            if spec.domains is not None and domain not in spec.domains:
                continue  # its list may be missing
            path = folder / f"{domain}_{part}.txt"
            if not path.is_file():
                raise EnvironmentProblem(f"There is no {path}. {origin}")
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.strip():
                    image, label = _entry(line, path, name_of)
                    into.add([image], label, number)
    missing = set(range(len(name_of))) - set(name_of)
    if missing:
        raise EnvironmentProblem(f"The lists in {folder} lack labels {sorted(missing)[:5]}. Download them again.")
    return rows, [name_of[label] for label in range(len(name_of))]


def _entry(line: str, path: Path, name_of: dict[int, str]) -> tuple[str, int]:
    try:
        image, number = line.rsplit(maxsplit=1)
        name, label = image.split("/")[1], int(number)
    except (ValueError, IndexError):
        raise EnvironmentProblem(f'{path} has the line {line!r}, which is not "domain/class/image label".') from None
    if name_of.setdefault(label, name) != name:
        raise EnvironmentProblem(f"{path} calls label {label} {name!r}, which was {name_of[label]!r} before.")
    return image, label


def _pick(rows: Mapping[str, Rows], names: Sequence[str], spec: DataSpec, origin: str) -> tuple[Rows, Rows]:
    lacking = [name for name in TEN if name not in names]
    if lacking:
        raise EnvironmentProblem(f"The lists lack the classes {lacking}. {origin}")
    groups: dict[tuple[int, int], list[str]] = {}
    for part in rows.values():
        for image, label, domain in zip(part.names, part.label, part.domain, strict=True):
            if names[label] in TEN:
                groups.setdefault((domain, TEN.index(names[label])), []).append(image)
    train, test = Rows(), Rows()
    for (domain, label), images in sorted(groups.items()):
        divide(spec, sorted(images), f"{DOMAINS[domain]}/{TEN[label]}", label, domain, train, test)
    return train, test


def _dataset(
    spec: DataSpec,
    root: Path,
    names: Sequence[str],
    domains: Sequence[str],
    train: Rows,
    test: Rows,
    notes: tuple[str, ...] = (),
) -> Dataset:
    train, test = (present(rows, root, spec, "the list") for rows in (train, test))
    return assemble(spec.name, root, names, domains, TEMPLATE, (train, test), notes)
