"""Partitions as functions from labels and domains to pairs (row, client).

n images, N clients, K classes. Training and test images follow the same rule, so that a client's test labels follow its
training labels. All functions are deterministic, given their generator.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.data.pool import Ints


class Assignment(NamedTuple):
    """Pairs [m] of images and clients: image `row` of a pool belongs to `client`. Only the partition `classes` gives an
    image to several clients."""

    row: Ints
    client: Ints

    def at(self, index: NDArray[Any]) -> Assignment:
        """The pairs at some positions, or where a mask is True."""
        return Assignment(self.row[index], self.client[index])

    def within(self, rows: Ints) -> Assignment:
        """The pairs with `row` in a whole pool, of which only `rows` were distributed."""
        return Assignment(rows[self.row], self.client)


def joined(parts: Sequence[Assignment]) -> Assignment:
    """Concatenates assignments."""
    return Assignment(np.concatenate([part.row for part in parts]), np.concatenate([part.client for part in parts]))


class Ranked(NamedTuple):
    """Members [n], stably sorted by group, with their rank in the group and the group's size."""

    order: Ints
    rank: Ints
    size: Ints


def ranked(group: Ints) -> Ranked:
    """Sorts members by their group [n], a non-negative integer."""
    order = np.argsort(group, kind="stable")
    start = np.flatnonzero(np.diff(group[order], prepend=-1))
    count = np.diff(start, append=len(order))
    return Ranked(order, np.arange(len(order)) - np.repeat(start, count), np.repeat(count, count))


class Deal(NamedTuple):
    """The training and test images of all clients."""

    train: Assignment
    test: Assignment


def assign_disjoint(n_classes: int, n_clients: int, seed: int) -> NDArray[np.bool_]:
    """Mask [N, K] of the classes of each client. Each class has one owner, and the last client owns the rest.

    Classes are shuffled by Python's generator and dealt in slices of round(K / N), as the published code of PromptFL
    and its descendants does with the seed 2023.

    Raises:
        ConfigError: a client would own no class.
    """
    order = list(range(n_classes))
    random.Random(seed).shuffle(order)
    each = round(n_classes / n_clients)
    owns = np.zeros((n_clients, n_classes), dtype=bool)
    if each:
        owns[np.minimum(np.arange(n_classes) // each, n_clients - 1), order] = True
    if not owns.any(1).all():
        fit = [n for n in range(1, n_classes + 1) if (n - 1) * round(n_classes / n) < n_classes]
        closest = min(fit, key=lambda n: abs(n - n_clients))
        raise ConfigError(
            f"{counted(n_classes, 'disjoint class', 'disjoint classes')} cannot be dealt to {n_clients} clients so "
            f"that each owns {max(each, 1)}. Set partition.n_clients={closest}."
        )
    return owns


def assign_classes(n_classes: int, n_clients: int, per_client: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mask [N, K] of the classes of each client. Each draws `per_client` different classes, independently of others.

    Raises:
        ConfigError: there are fewer classes than `per_client`.
    """
    if per_client > n_classes:
        raise ConfigError(
            f"partition.classes_per_client must be at most the number of classes, {n_classes}, but is {per_client}."
        )
    drawn = rng.random((n_clients, n_classes)).argsort(1)[:, :per_client]
    owns = np.zeros((n_clients, n_classes), dtype=bool)
    np.put_along_axis(owns, drawn, True, 1)
    return owns


def by_class(owns: NDArray[np.bool_], label: Ints) -> Assignment:
    """Gives every image to all owners [N, K] of its class."""
    order = np.argsort(label, kind="stable")
    client, place = np.nonzero(owns[:, label[order]])
    return Assignment(order[place], client)


def some_by_class(owns: NDArray[np.bool_], label: Ints, most: int, rng: np.random.Generator) -> Assignment:
    """Lets every owner [N, K] of a class draw `most` of its images, or gives it all if there are no more.

    It is `by_class` without images that no client would use, which are nearly all if large classes have many owners.
    """
    rows, clients = [], []
    for owners, images in ((np.flatnonzero(owns[:, c]), np.flatnonzero(label == c)) for c in range(owns.shape[1])):
        if len(images) > most:
            keys = rng.random((len(owners), len(images)), dtype=np.float32)
            picked = images[keys.argpartition(most, axis=1)[:, :most]]
        else:
            picked = np.broadcast_to(images, (len(owners), len(images)))
        rows.append(picked.ravel())
        clients.append(np.repeat(owners, picked.shape[1]))
    pairs = Assignment(np.concatenate(rows), np.concatenate(clients))
    return pairs.at(np.argsort(pairs.client, kind="stable"))


def iid(n: int, n_clients: int, rng: np.random.Generator) -> Assignment:
    """Shuffles all images and splits them into parts whose sizes differ by at most one."""
    return Assignment(rng.permutation(n), np.arange(n) * n_clients // max(n, 1))
