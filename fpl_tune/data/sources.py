"""The catalogue of data sets, with description, origin, loader and usual partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.data.cifar import load_cifar
from fpl_tune.data.coop import load_coop
from fpl_tune.data.domainnet import load_domainnet, load_pickled
from fpl_tune.data.files import FolderLayout
from fpl_tune.data.folders import load_domains, load_folder, load_imagenet, load_own_domains
from fpl_tune.data.pool import Dataset
from fpl_tune.data.published import Sizes, published
from fpl_tune.data.shapes import load_shapes
from fpl_tune.data.spec import DataSpec, PartitionSpec

DISJOINT = PartitionSpec("disjoint", n_clients=10)
DOMAINS = PartitionSpec("domain_dirichlet", n_clients=5, alpha=0.3, min_size=2)
LABEL_SKEW = PartitionSpec("dirichlet", n_clients=100, alpha=0.5, min_size=10)


@dataclass(frozen=True)
class Source:
    """A data set as described before its files are read."""

    what: str
    """One-line description."""
    loader: Callable[[DataSpec], Dataset]
    """Function that lists its images."""
    natural: PartitionSpec
    layout: str
    """Expected files below `data.root`, in one line."""
    origin: str
    """Where to get it."""
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    """Numbers of images by `data.classes`."""
    official: bool = False
    """True if its split into training and test images is official, so that copies on both sides belong to it."""
    outline: Callable[[DataSpec], Dataset] | None = None
    """Function that gives a data set with the published numbers of classes and images, without files; None: unknown."""


READERS: dict[str, tuple[Callable[[DataSpec, FolderLayout], Dataset], PartitionSpec]] = {
    "shapes": (load_shapes, DISJOINT),
    "coop": (load_coop, DISJOINT),
    "imagenet": (load_imagenet, DISJOINT),
    "cifar": (load_cifar, LABEL_SKEW),
    "domainnet": (load_domainnet, DOMAINS),
    "pickled": (load_pickled, DOMAINS),
    "domains": (load_domains, DOMAINS),
    "folder": (load_folder, DISJOINT),
    "own_domains": (load_own_domains, DOMAINS),
}
"""Reader and usual partition of the data sets in `catalogue.yaml`."""
_UNSPLIT = ("domains", "folder", "own_domains")
"""Readers of data sets without an official split."""


def _shipped(
    reader: str,
    what: str,
    sizes: Mapping[str, Sizes] | None = None,
    n_classes: Mapping[str, int] | None = None,
    **layout: Any,
) -> Source:
    load, usual = READERS[reader]
    files, known, classes = FolderLayout(**layout), sizes or {}, n_classes or {}
    return Source(
        what,
        lambda spec: load(spec, files),
        usual,
        files.files,
        files.origin,
        known,
        official=reader not in _UNSPLIT,
        outline=None
        if not classes
        else lambda spec: published(spec, files, known[spec.classes], classes[spec.classes], cifar=reader == "cifar"),
    )


SOURCES: dict[str, Source] = {
    name: _shipped(**entry)
    for name, entry in yaml.load(
        Path(__file__).with_name("catalogue.yaml").read_text(encoding="utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    ).items()
}


def source(name: str) -> Source:
    """The catalogue's entry of a data set. Raises `ConfigError` for an unknown name."""
    if name in SOURCES:
        return SOURCES[name]
    if ":" in name:
        entry = getattr(plugins.module_of(name, "data.name"), name.partition(":")[2], None)
        if not isinstance(entry, Source):
            raise ConfigError(f"data.name {name!r} must name a fpl_tune.data.sources.Source, but is {entry!r:.80}.")
        return entry
    if name not in plugins.names("data"):
        raise unknown("data set", name, (*SOURCES, *plugins.names("data")))
    return plugins.load("data", name)


def catalogue() -> list[dict[str, str]]:
    """Describes all data sets: their content, usual partition, expected files, and where to get them."""
    rows = []
    for name, entry in SOURCES.items():
        usual = f"{entry.natural.name}, {entry.natural.n_clients} clients"
        usual += " per domain" if entry.natural.name == "domain_dirichlet" else ""
        rows.append(
            {"name": name, "what": entry.what, "partition": usual, "files": entry.layout, "origin": entry.origin}
        )
    return rows
