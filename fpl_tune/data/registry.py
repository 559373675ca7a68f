"""Loads data sets by their specification, and fills in a partition's defaults."""

from __future__ import annotations

from dataclasses import replace

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


def resolve(data: DataSpec, partition: PartitionSpec) -> PartitionSpec:
    """`partition` with `auto` and every field left None filled in: as the papers use the data set, or by `DEFAULTS`."""
    if partition.name != "auto" and all(getattr(partition, name) is not None for name in _OPTIONAL):
        return partition  # a stored configuration, whose plug-in need not be installed
    usual = source(data.name).natural
    name = usual.name if partition.name == "auto" else partition.name
    given = (partition, usual if name == usual.name else DEFAULTS, DEFAULTS)
    filled = {field: next(v for spec in given if (v := getattr(spec, field)) is not None) for field in _OPTIONAL}
    return replace(partition, name=name, **filled)
