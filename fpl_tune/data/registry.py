"""Loads data sets by their specification, and fills in a partition's defaults."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from fpl_tune.core.errors import ConfigError, EnvironmentProblem, MissingData, Notice
from fpl_tune.core.paths import local
from fpl_tune.core.spec import with_place
from fpl_tune.data.names import renamed, sharing
from fpl_tune.data.partition import ranked
from fpl_tune.data.pool import Dataset, Ints, Pool, join
from fpl_tune.data.repeats import once, repeated
from fpl_tune.data.sources import source
from fpl_tune.data.spec import DataSpec, PartitionSpec, kept_domains
from fpl_tune.data.splits import on_sides

DEFAULTS = PartitionSpec(n_clients=10, alpha=0.5, min_size=10)
"""Defaults of a named partition, if neither the user nor the data set specifies a value."""
_OPTIONAL = ("n_clients", "alpha", "min_size")


def load(spec: DataSpec, file: str | None = None) -> Dataset:
    """Lists a data set without reading images, and selects the part of it that `spec` describes.

    It warns about classes that share a prompt, and about images that are listed more than once.

    Args:
        spec: the data set.
        file: `PartitionSpec.file`, an exported split, which decides which images are for training and which for tests.

    Raises:
        ConfigError: unknown data set, domain, class or value, or a selection without images; see `on_sides` for `file`.
        EnvironmentProblem: files are missing or damaged, have names that are not UTF-8, or do not have the content
            `spec.content`.
    """
    dataset = source(spec.name).loader(spec if spec.root is None else replace(spec, root=str(local(spec.root))))
    _check_texts(dataset)
    loaded, listed_twice = _selected(dataset, spec)
    names = renamed(dataset, spec.names)
    texts = (sharing(dataset, names), repeated(dataset.name, loaded.train, loaded.test, listed_twice))
    warned = [text for text in texts if text]
    for text in warned:
        warnings.warn(text, Notice, stacklevel=2)
    loaded = replace(loaded, classes=_shuffled(names, spec), notes=(*dataset.notes, *warned))
    if file is not None:
        loaded = on_sides(loaded, file)
    if spec.content is not None and spec.content != loaded.fingerprint:
        raise EnvironmentProblem(
            f"data.root={spec.root} must have the content {spec.content} of {spec.name}, but has "
            f"{loaded.fingerprint}. Name the folder of those images, or leave out data.content."
        )
    return loaded


def outline(spec: DataSpec, file: str | None = None) -> Dataset:
    """A data set to plan with: `load` or, where its files are missing, as many classes and images as are published.

    Raises:
        ConfigError, EnvironmentProblem: as `load`. Missing files are reported if `file` divides their images, or if
            nothing is published of the data set.
    """
    try:
        return load(spec, file)
    except MissingData:
        known = source(spec.name).outline
        if known is None or file is not None:
            raise
        return _selected(known(spec), spec)[0]


def _selected(dataset: Dataset, spec: DataSpec) -> tuple[Dataset, int]:
    """The domains and images of a data set that `spec` selects, each image once, and how many were listed again."""
    domains = kept_domains(dataset.name, dataset.domains, spec.domains)
    position = np.full(len(dataset.domains), -1, dtype=np.int64)
    position[[dataset.domains.index(domain) for domain in domains]] = np.arange(len(domains))
    pools: list[Pool] = []
    repeats: list[Ints] = []
    for split, pool, most in zip(
        ("training", "test"), _whole_test(dataset, spec), (spec.max_train, spec.max_test), strict=True
    ):
        selected = pool.take(np.flatnonzero(position[pool.domain] >= 0))
        transform = "clip" if spec.transform == "clip" else pool.transform
        selected = replace(selected, domain=position[selected.domain], transform=transform)
        if not len(selected):
            raise ConfigError(f"{dataset.name} has no {split} images. Check data.root and data.domains.")
        distinct = once(selected)
        listed, kept = (np.bincount(of.domain, minlength=len(domains)) for of in (selected, distinct))
        repeats.append(listed - kept)
        pools.append(_cap(distinct, most))
    train, test = pools
    chosen = replace(dataset, domains=domains, train=train, test=test, repeats=np.stack(repeats))
    return chosen, int(np.sum(repeats))


def resolve(data: DataSpec, partition: PartitionSpec) -> PartitionSpec:
    """Fills in `auto` and all fields that are None, by the papers' usual values for the data set or by `DEFAULTS`."""
    if partition.name != "auto" and all(getattr(partition, name) is not None for name in _OPTIONAL):
        return partition  # a stored configuration, whose plug-in need not be installed
    usual = source(data.name).natural
    name = usual.name if partition.name == "auto" else partition.name
    given = (partition, usual if name == usual.name else DEFAULTS, DEFAULTS)
    filled = {field: next(v for spec in given if (v := getattr(spec, field)) is not None) for field in _OPTIONAL}
    return replace(partition, name=name, **filled)


def _cap(pool: Pool, cap: int | None) -> Pool:
    """At most `cap` images of each class and domain, evenly spaced in the list."""
    if cap is None:
        return pool
    order, rank, size = ranked(pool.domain * (int(pool.label.max()) + 1) + pool.label)
    chosen = rank * np.minimum(cap, size) // size != (rank - 1) * np.minimum(cap, size) // size
    return pool.take(np.sort(order[chosen]))


def _whole_test(dataset: Dataset, spec: DataSpec) -> tuple[Pool, Pool]:
    if not spec.whole_test:
        return dataset.train, dataset.test
    kept_domains(dataset.name, dataset.domains, spec.whole_test)
    chosen = np.array([domain in spec.whole_test for domain in dataset.domains])
    moved = chosen[dataset.train.domain]
    extra = dataset.train.take(np.flatnonzero(moved))
    return dataset.train.take(np.flatnonzero(~moved)), join(dataset.test, extra)


def _check_texts(dataset: Dataset) -> None:
    """Rejects a template without one {} for the class, and names that are not UTF-8."""
    try:
        with_place(dataset.template)
    except ValueError as problem:
        raise ConfigError(f"The template of {dataset.name} {problem}, but is {dataset.template!r}.") from None
    for name in (*dataset.domains, *dataset.classes, *dataset.train.names, *dataset.test.names):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise EnvironmentProblem(
                f"Names of folders and images must be UTF-8, but {dataset.name} has {name!a}. Rename it."
            ) from None


def _shuffled(classes: tuple[str, ...], spec: DataSpec) -> tuple[str, ...]:
    if spec.permute_classnames is None:
        return classes
    order = np.random.default_rng(spec.permute_classnames).permutation(len(classes))
    warnings.warn(
        f"data.permute_classnames={spec.permute_classnames}: class names of {spec.name} are shuffled against their "
        "labels, as in published code. Prompts of this run have wrong class names.",
        stacklevel=3,
    )
    return tuple(classes[i] for i in order)
