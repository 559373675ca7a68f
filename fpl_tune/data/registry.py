"""Loads data sets by their specification, and fills in a partition's defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fpl_tune.data.listing import check_loaded, narrow
from fpl_tune.data.pool import Dataset
from fpl_tune.data.sources import source
from fpl_tune.data.spec import DataSpec, PartitionSpec

DEFAULTS = PartitionSpec(n_clients=10, alpha=0.5, min_size=10)
"""Defaults of a named partition, if neither the user nor the data set specifies a value."""
_OPTIONAL = ("n_clients", "alpha", "min_size")


def load(spec: DataSpec) -> Dataset:
    """Lists a data set without reading images.

    Raises:
        ConfigError: unknown data set, domain or value, or a selection without images.
        EnvironmentProblem: files are missing or damaged.
    """
    return check_loaded(narrow(source(spec.name).loader(spec), spec))


def natural(data: DataSpec) -> PartitionSpec:
    """The partition that the papers use for the data set."""
    return replace(source(data.name).natural)


def resolve(data: DataSpec, partition: PartitionSpec) -> PartitionSpec:
    """`partition` with `auto` and every field left None filled in."""
    if partition.name != "auto" and all(getattr(partition, name) is not None for name in _OPTIONAL):
        return partition
    usual = natural(data)
    name = usual.name if partition.name == "auto" else partition.name
    base = usual if name == usual.name else DEFAULTS
    filled = {name: _first(getattr(spec, name) for spec in (partition, base, DEFAULTS)) for name in _OPTIONAL}
    return replace(partition, name=name, **filled)


def _first(values: Iterable[Any]) -> Any:
    return next(value for value in values if value is not None)
