"""The partitions by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.data import dirichlet, partition
from fpl_tune.data.partition import Assignment, Deal, by_class, joined
from fpl_tune.data.pool import Ints
from fpl_tune.data.spec import PartitionSpec


@dataclass(frozen=True)
class Request:
    """A partition to compute. Tuples are for training and test images. All optional fields of `spec` are filled in."""

    spec: PartitionSpec
    label: tuple[Ints, Ints]
    """[n] class ids below `n_classes`."""
    domain: tuple[Ints, Ints]
    """[n] domain ids."""
    n_classes: int
    domains: list[int]
    """Ids of the domains that have clients, in the order of the clients."""
    coarse: Ints | None
    wanted: int | None
    """Maximum number of training images per class that a client uses; more need not be distributed. None for all."""
    reserved: NDArray[np.bool_]
    """[n] mask of training images that are only used for validation (`classes`)."""
    rng: np.random.Generator

    @property
    def n_clients(self) -> int:
        """Number of clients, under `domain_dirichlet` per domain."""
        if self.spec.name == "domain":
            return len(self.domains)
        assert self.spec.n_clients is not None
        return self.spec.n_clients

    @property
    def alpha(self) -> float:
        assert self.spec.alpha is not None
        return self.spec.alpha


def deal(request: Request) -> tuple[Deal, int]:
    """Distributes the images by the partition `request.spec.name`.

    Returns:
        The images of all clients, and the number of clients.

    Raises:
        ConfigError: unknown name, or an infeasible partition.
    """
    name = request.spec.name
    if name not in PARTITIONS:
        raise unknown("partition", name, [*PARTITIONS, "auto", "file"])
    if request.spec.compat_fixed_split and name not in ("dirichlet", "domain_dirichlet"):
        raise ConfigError(f"compat_fixed_split is a defect of Dirichlet partitions; partition={name} has none.")
    n_blocks = len(request.domains) if name == "domain_dirichlet" else 1
    return PARTITIONS[name](request), n_blocks * request.n_clients


def _disjoint(request: Request) -> Deal:
    owns = partition.assign_disjoint(request.n_classes, request.n_clients, request.spec.seed)
    return Deal(*(by_class(owns, label) for label in request.label))


def _classes(request: Request) -> Deal:
    rng = np.random.default_rng(request.spec.seed)
    owns = partition.assign_classes(request.n_classes, request.n_clients, request.spec.classes_per_client, rng)
    label, test = request.label
    if request.wanted is None:
        return Deal(by_class(owns, label), by_class(owns, test))
    drawn: list[Assignment] = []
    for mask in (~request.reserved, request.reserved):  # from each part as many as a client may use
        rows = np.flatnonzero(mask)
        drawn.append(partition.some_by_class(owns, label[rows], request.wanted, request.rng).within(rows))
    return Deal(joined(drawn), by_class(owns, test))


def _domain(request: Request) -> Deal:
    owners = [np.searchsorted(request.domains, domain) for domain in request.domain]
    return Deal(*(Assignment(np.arange(len(owner)), owner) for owner in owners))


def _iid(request: Request) -> Deal:
    return Deal(*(partition.iid(len(label), request.n_clients, request.rng) for label in request.label))


def _dirichlet(request: Request) -> Deal:
    spec = request.spec
    if spec.compat_fixed_split:
        return dirichlet.fixed_by_label(*request.label, request.n_clients, request.alpha)
    assert spec.min_size is not None
    min_test = spec.min_size if spec.evaluation in ("personal", "base_to_novel", "open_set") else 0
    return dirichlet.by_label(
        *request.label,
        request.n_clients,
        request.alpha,
        spec.min_size,
        request.rng,
        min_test=min_test,
    )


def _domain_dirichlet(request: Request) -> Deal:
    """Client ids form blocks of `n_clients`, one block per domain."""
    parts: list[list[Assignment]] = []
    for block, domain in enumerate(request.domains):
        train, test = (np.flatnonzero(domains == domain) for domains in request.domain)
        inside = _dirichlet(replace(request, label=(request.label[0][train], request.label[1][test])))
        first = block * request.n_clients
        parts.append([Assignment(rows[s.row], s.client + first) for rows, s in zip((train, test), inside, strict=True)])
    return Deal(*map(joined, zip(*parts, strict=True)))


def _dirichlet_coarse(request: Request) -> Deal:
    if request.coarse is None:
        raise ConfigError("partition=dirichlet_coarse needs super-classes, which only cifar100 has. Use dirichlet.")
    return dirichlet.by_superclass(*request.label, request.coarse, request.n_clients, request.alpha, request.rng)


PARTITIONS: dict[str, Callable[[Request], Deal]] = {
    "disjoint": _disjoint,
    "classes": _classes,
    "dirichlet": _dirichlet,
    "dirichlet_coarse": _dirichlet_coarse,
    "domain": _domain,
    "domain_dirichlet": _domain_dirichlet,
    "iid": _iid,
}
