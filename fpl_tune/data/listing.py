"""Steps after a data set is listed: selects domains, limits sizes, moves test-only domains, permutes names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fpl_tune.data.partition import ranked
from fpl_tune.data.pool import Dataset, Ints, Pool, join
from fpl_tune.data.spec import DataSpec
from fpl_tune.errors import ConfigError, unknown


def kept_domains(name: str, known: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The domains to keep, in the order of `wanted`.

    Args:
        name: the data set, for messages.
        known: its domains.
        wanted: the domains to keep; None keeps all.

    Raises:
        ConfigError: a domain is unknown or repeated, or none is named.
    """
    if wanted is None:
        return tuple(known)
    for domain in wanted:
        if domain not in known:
            raise unknown(f"domain of {name}", domain, known)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"data.domains must name one or more different domains, but is {list(wanted)}. Known: {list(known)}."
        )
    return tuple(wanted)


def narrow(dataset: Dataset, spec: DataSpec) -> Dataset:
    """The part of a listed data set that `spec` selects.

    Raises:
        ConfigError: unknown domain or transform.
    """
    domains = kept_domains(dataset.name, dataset.domains, spec.domains)
    train, test = _whole_test(dataset, spec)
    position = np.full(len(dataset.domains), -1, dtype=np.int64)
    position[[dataset.domains.index(domain) for domain in domains]] = np.arange(len(domains))
    train = _cap(_relabel(train, position), spec.max_train)
    test = _cap(_relabel(test, position), spec.max_test)
    train, test = (replace(pool, transform=_transform(dataset.name, pool, spec)) for pool in (train, test))
    return replace(dataset, domains=domains, classes=_names(dataset, spec), train=train, test=test)


def check_loaded(dataset: Dataset) -> Dataset:
    """Returns the data set itself.

    Raises:
        ConfigError: a split has no images, or class names repeat.
    """
    for split, pool in (("training", dataset.train), ("test", dataset.test)):
        if not len(pool):
            raise ConfigError(f"{dataset.name} has no {split} images. Check data.root and data.domains.")
    repeated = {name for name in dataset.classes if dataset.classes.count(name) > 1}
    if repeated and not dataset.published_names:
        raise ConfigError(f"{dataset.name} has classes of the same name: {sorted(repeated)}. Rename their folders.")
    return dataset


def _transform(name: str, pool: Pool, spec: DataSpec) -> str:
    if spec.transform not in ("auto", "clip", "cifar"):
        raise unknown("data.transform", spec.transform, ("auto", "clip", "cifar"))
    if spec.transform == "cifar" and not pool.transform.startswith("cifar"):
        raise ConfigError(f"data.transform=cifar is for cifar10 and cifar100, not for {name}. Use clip.")
    return "clip" if spec.transform == "clip" else pool.transform


def _relabel(pool: Pool, position: Ints) -> Pool:
    new = position[pool.domain]
    if (new == pool.domain).all():
        return pool
    kept = pool.take(np.flatnonzero(new >= 0))
    return replace(kept, domain=position[kept.domain])


def _cap(pool: Pool, cap: int | None) -> Pool:
    """At most `cap` images of each class and domain, at even distances in the list."""
    if cap is None or not len(pool):
        return pool
    order, rank, size = ranked(pool.domain * (int(pool.label.max()) + 1) + pool.label)
    kept = rank * np.minimum(cap, size) // size != (rank - 1) * np.minimum(cap, size) // size
    return pool.take(np.sort(order[kept]))


def _whole_test(dataset: Dataset, spec: DataSpec) -> tuple[Pool, Pool]:
    if not spec.whole_test:
        return dataset.train, dataset.test
    kept_domains(dataset.name, dataset.domains, spec.whole_test)
    chosen = np.array([domain in spec.whole_test for domain in dataset.domains])
    moved = chosen[dataset.train.domain]
    extra = dataset.train.take(np.flatnonzero(moved))
    return dataset.train.take(np.flatnonzero(~moved)), join(dataset.test, extra)


def _names(dataset: Dataset, spec: DataSpec) -> tuple[str, ...]:
    if spec.permute_classnames is None:
        return dataset.classes
    order = np.random.default_rng(spec.permute_classnames).permutation(len(dataset.classes))
    warnings.warn(
        f"data.permute_classnames={spec.permute_classnames}: class names of {dataset.name} are shuffled against their "
        "labels, as in published code. Prompts of this run have wrong class names.",
        stacklevel=4,
    )
    return tuple(dataset.classes[i] for i in order)
