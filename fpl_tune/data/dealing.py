"""The partitions by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data import dirichlet
from fpl_tune.data.partition import (
    Deal,
    Shares,
    assign_classes,
    assign_disjoint,
    by_class,
    by_domain,
    iid,
    joined,
    some_by_class,
)
from fpl_tune.data.pool import Ints
from fpl_tune.data.spec import PartitionSpec
from fpl_tune.errors import ConfigError, unknown


@dataclass(frozen=True)
class Images:
    """Labels and domains of the images to distribute."""

    label: Ints
    """[n] below `Request.n_classes`"""
    domain: Ints
    """[n]"""


@dataclass(frozen=True)
class Request:
    """A partition to compute. All optional fields of `spec` are filled in."""

    spec: PartitionSpec
    train: Images
    test: Images
    n_classes: int
    domains: tuple[int, ...]
    """Ids of the domains that have clients, in the order of the clients."""
    coarse: Ints | None
    wanted: int | None
    """Training images per class that a client uses at most; more need not be distributed. None: all."""
    reserved: NDArray[np.bool_]
    """[n] training images that clients only validate on (`classes`)."""
    rng: np.random.Generator

    @property
    def n_clients(self) -> int:
        assert self.spec.n_clients is not None
        return self.spec.n_clients

    @property
    def skew(self) -> tuple[float, int, int]:
        """Concentration, and the minimum numbers of training and test images of a client."""
        alpha, min_size = self.spec.alpha, self.spec.min_size
        assert alpha is not None
        assert min_size is not None
        personal = self.spec.evaluation in ("personal", "base_to_novel")
        return alpha, min_size, min_size if personal else 0


def deal(request: Request) -> Deal:
    """Distributes the images as `request.spec.name` says.

    Raises:
        ConfigError: unknown name, or an infeasible partition.
    """
    name = request.spec.name
    if name not in PARTITIONS:
        raise unknown("partition", name, [*PARTITIONS, "auto", "file"])
    if request.spec.compat_fixed_split and name not in ("dirichlet", "domain_dirichlet"):
        raise ConfigError(f"compat_fixed_split is a defect of Dirichlet partitions; partition={name} has none.")
    return PARTITIONS[name](request)


def _disjoint(request: Request) -> Deal:
    owns = assign_disjoint(request.n_classes, request.n_clients, request.spec.seed)
    return Deal(by_class(owns, request.train.label), by_class(owns, request.test.label), request.n_clients)


def _classes(request: Request) -> Deal:
    rng = np.random.default_rng(request.spec.seed)
    owns = assign_classes(request.n_classes, request.n_clients, request.spec.classes_per_client, rng)
    label, reserved = request.train.label, request.reserved
    if request.wanted is None:
        train = by_class(owns, label)
    else:  # of each part all that a client may draw
        rows = [np.flatnonzero(part) for part in (~reserved, reserved)]
        parts = [some_by_class(owns, label[part], request.wanted, request.rng) for part in rows]
        train = joined([share.within(part) for part, share in zip(rows, parts, strict=True)])
    return Deal(train, by_class(owns, request.test.label), request.n_clients)


def _domain(request: Request) -> Deal:
    client_of = np.full(max(request.domains) + 1, -1, dtype=np.int64)
    client_of[list(request.domains)] = np.arange(len(request.domains))
    train, test = (by_domain(images.domain, client_of) for images in (request.train, request.test))
    return Deal(train, test, len(request.domains))


def _iid(request: Request) -> Deal:
    train, test = (iid(len(images.label), request.n_clients, request.rng) for images in (request.train, request.test))
    return Deal(train, test, request.n_clients)


def _labels(request: Request, train: Ints, test: Ints) -> Deal:
    alpha, min_size, min_test = request.skew
    if request.spec.compat_fixed_split:
        return dirichlet.fixed_by_label(train, test, request.n_clients, alpha)
    balanced = request.spec.balanced
    return dirichlet.by_label(
        train, test, request.n_clients, alpha, min_size, request.rng, min_test=min_test, balanced=balanced
    )


def _dirichlet(request: Request) -> Deal:
    return _labels(request, request.train.label, request.test.label)


def _domain_dirichlet(request: Request) -> Deal:
    """Client ids form blocks of `n_clients`, one block per domain."""
    parts: list[tuple[Shares, Shares]] = []
    for block, domain in enumerate(request.domains):
        rows = [np.flatnonzero(images.domain == domain) for images in (request.train, request.test)]
        inside = _labels(request, request.train.label[rows[0]], request.test.label[rows[1]])
        first = block * request.n_clients
        train, test = (share.within(of) for of, share in zip(rows, (inside.train, inside.test), strict=True))
        parts.append((Shares(train.row, train.client + first), Shares(test.row, test.client + first)))
    train, test = map(joined, zip(*parts, strict=True))
    return Deal(train, test, request.n_clients * len(request.domains))


def _dirichlet_coarse(request: Request) -> Deal:
    if request.coarse is None:
        raise ConfigError("partition=dirichlet_coarse needs super-classes, which only cifar100 has. Use dirichlet.")
    train, test = request.train.label, request.test.label
    return dirichlet.by_superclass(train, test, request.coarse, request.n_clients, request.skew[0], request.rng)


PARTITIONS: dict[str, Callable[[Request], Deal]] = {
    "disjoint": _disjoint,
    "classes": _classes,
    "dirichlet": _dirichlet,
    "dirichlet_coarse": _dirichlet_coarse,
    "domain": _domain,
    "domain_dirichlet": _domain_dirichlet,
    "iid": _iid,
}
