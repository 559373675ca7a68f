"""DomainNet with 10 or 345 classes, and Office-Caltech10: lists, pickled lists or folders by domain."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from fpl_tune.core.errors import EnvironmentProblem, unknown
from fpl_tune.data.files import Layout, Rows, assemble, class_names, divide, label_in, lines_of, locate
from fpl_tune.data.folders import by_domain
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec
from fpl_tune.data.unpickle import unpickle


def load_domainnet(spec: DataSpec, layout: Layout) -> Dataset:
    """All 345 classes by the official lists, or the ten of the federated papers.

    The ten come from FedBN's pickled lists, which the papers use. Without these they are selected from the official
    lists and split 80/20 per domain and class.

    Raises:
        ConfigError: `spec.classes` is neither 10 nor 345.
        EnvironmentProblem: the images or lists are not below the data root.
    """
    if spec.classes not in ("", "10", "345"):
        raise unknown("data.classes of domainnet", spec.classes, ("10", "345"))
    ten, pickles = spec.classes != "345", ["clipart_train.pkl"]
    root = locate(spec, layout, [*(pickles if ten else []), "splits/clipart_train.txt", "clipart_train.txt"])
    if ten and (root / pickles[0]).is_file():
        return _pickled(spec, layout, root)
    rows, names = _listed(spec, layout, root)
    if not ten:
        return assemble(spec, layout, root, names, rows, listed_in="the list")
    lacking = [name for name in layout.classes if name not in names]
    if lacking:
        raise EnvironmentProblem(f"The lists lack the classes {lacking}. {layout.origin}")
    held: dict[tuple[int, int], list[str]] = defaultdict(list)
    for image, label, domain in (*rows[0], *rows[1]):
        if names[label] in layout.classes:
            held[domain, layout.classes.index(names[label])].append(image)
    domains = list(layout.domains)
    groups = [
        (f"{domains[domain]}/{layout.classes[label]}", sorted(images), label, domain)
        for (domain, label), images in sorted(held.items())
    ]
    rows = divide(groups, [1 - spec.test_share], spec.split_seed)
    note = f"FedBN's pickles are missing: split again, seed {spec.split_seed}; not the papers' split"
    return assemble(spec, layout, root, layout.classes, rows, notes=(note,), listed_in="the list")


def load_office(spec: DataSpec, layout: Layout) -> Dataset:
    """Office-Caltech10 by FedBN's pickled lists, or from folders domain/class, split 80/20 per domain and class."""
    root = locate(spec, layout, ("amazon_train.pkl", "amazon"))
    return (_pickled if (root / "amazon_train.pkl").is_file() else by_domain)(spec, layout, root)


def _pickled(spec: DataSpec, layout: Layout, root: Path) -> Dataset:
    """`<domain>_{train,test}.pkl`: a pair (image paths, class names). Paths begin at the root or one folder above."""
    label_of = {name: k for k, name in enumerate(layout.classes)}
    rows: tuple[Rows, Rows] = ([], [])
    for part, into in zip(("train", "test"), rows, strict=True):
        for number, domain in enumerate(layout.domains):
            path = root / f"{domain}_{part}.pkl"
            into += [
                (_below(image, root, layout), label_in(label_of, name, path), number) for image, name in _pairs(path)
            ]
    return assemble(spec, layout, root, layout.classes, rows, listed_in="the list")


def _pairs(path: Path) -> list[tuple[str, str]]:
    content = unpickle(path)
    if not isinstance(content, (tuple, list, np.ndarray)) or len(content) != 2 or len(content[0]) != len(content[1]):
        raise EnvironmentProblem(f"{path} does not hold image paths and as many class names. Download it again.")
    return [(str(image), str(name)) for image, name in zip(*content, strict=True)]


def _below(image: str, root: Path, layout: Layout) -> str:
    """A path relative to the root; in the list it may begin at any folder above."""
    parts = [part for part in image.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    ours = {root.name.lower(), *(name.lower() for name in layout.folders)}
    above = [i for i, part in enumerate(parts[:-1]) if part.lower() in ours]
    return "/".join(parts[above[-1] + 1 :] if above else parts)


def _listed(spec: DataSpec, layout: Layout, root: Path) -> tuple[tuple[Rows, Rows], list[str]]:
    """The official lists `<domain>_{train,test}.txt`: "path label" per line; a class is the path's second part.

    Lists of domains that are not used may be missing.
    """
    folder = root / "splits" if (root / "splits").is_dir() else root
    rows: tuple[Rows, Rows] = ([], [])
    for part, into in zip(("train", "test"), rows, strict=True):
        for number, domain in enumerate(layout.domains):
            if spec.domains is None or domain in spec.domains:
                path = folder / f"{domain}_{part}.txt"
                into += [_entry(line, number, path) for line in lines_of(path, layout)]
    try:
        return rows, class_names((label, image.split("/")[1]) for part in rows for image, label, _ in part)
    except ValueError as error:
        raise EnvironmentProblem(f"The lists in {folder} are damaged: {error}. Download them again.") from None


def _entry(line: str, domain: int, path: Path) -> tuple[str, int, int]:
    image, _, label = line.rpartition(" ")
    if image.count("/") < 2 or not label.isdecimal():
        raise EnvironmentProblem(f'{path} has the line {line!r}, which is not "domain/class/image label".')
    return image, int(label), domain
