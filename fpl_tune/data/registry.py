"""The data sets by name: how each is listed, what it is, where it comes from, how it is naturally dealt to clients."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from fpl_tune.data.listing import check_loaded, narrow
from fpl_tune.data.pool import Dataset
from fpl_tune.data.spec import DataSpec, PartitionSpec
from fpl_tune.errors import unknown

DISJOINT = PartitionSpec("disjoint", n_clients=10)
DOMAINS = PartitionSpec("domain_dirichlet", n_clients=5, alpha=0.3, min_size=2)
LABEL_SKEW = PartitionSpec("dirichlet", n_clients=100, alpha=0.5, min_size=10)
DEFAULTS = PartitionSpec(n_clients=10, alpha=0.5, min_size=10)
"""What a named partition takes where neither the user nor the data set's natural partition says otherwise."""


@dataclass(frozen=True)
class Source:
    """What is known of a data set before anything is read."""

    what: str
    """One line for lists."""
    loader: str
    """`module:function` below `fpl_tune.data` that lists it; imported when needed."""
    natural: PartitionSpec
    layout: str
    """Where its files are expected below `data.root`, in one line."""
    origin: str
    """Where to get it."""
    classes: int | None = None
    domains: tuple[str, ...] = ()
    sizes: tuple[int, int] | None = None
    """Published numbers of training and test images, where there is an official split."""
    total: int | None = None
    """Published number of all images, where there is no official split."""

    def list(self, spec: DataSpec) -> Dataset:
        module, function = self.loader.split(":")
        call: Callable[[DataSpec], Dataset] = getattr(importlib.import_module(f"fpl_tune.data.{module}"), function)
        return call(spec)


SOURCES: dict[str, Source] = {
    "shapes": Source(
        "procedurally drawn world: 20 shapes or 200 coloured shapes in six styles",
        "world:load_shapes",
        DISJOINT,
        "nothing: drawn when needed",
        "ships with fpl-tune",
        domains=("clipart", "infograph", "painting", "quickdraw", "photo", "sketch"),
    ),
}


def source(name: str) -> Source:
    """What is known of the data set `name`. Raises `ConfigError` for an unknown one."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def load(spec: DataSpec) -> Dataset:
    """Lists a data set without reading a pixel.

    Raises:
        ConfigError: the data set, a domain or a value is unknown, or nothing is left of the data set.
        EnvironmentProblem: files are missing or are not what they should be.
    """
    spec.validate()
    return check_loaded(narrow(source(spec.name).list(spec), spec))


def natural(data: DataSpec) -> PartitionSpec:
    """The partition that the papers use for the data set."""
    return replace(source(data.name).natural)


def resolve(data: DataSpec, partition: PartitionSpec) -> PartitionSpec:
    """`partition` with `auto` and every field left None filled in."""
    partition.validate()
    usual = natural(data)
    name = usual.name if partition.name == "auto" else partition.name
    base = usual if name == usual.name else DEFAULTS
    missing = {f.name for f in fields(partition) if getattr(partition, f.name) is None}
    filled = {field: getattr(base, field) for field in missing & {"n_clients", "alpha", "min_size"}}
    return replace(partition, name=name, **{k: v if v is not None else getattr(DEFAULTS, k) for k, v in filled.items()})
