"""Few-shot draws: the images that a client trains on and validates on."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data.partition import Assignment, ranked
from fpl_tune.data.pool import Ints


def by_client(pairs: Assignment, n_clients: int) -> list[Ints]:
    """Returns the rows of each client in ascending order."""
    order = np.lexsort((pairs.row, pairs.client))
    cuts = np.searchsorted(pairs.client[order], np.arange(1, n_clients))
    return np.split(pairs.row[order].astype(np.int64), cuts)


def wanted(shots: int | None, val: float) -> int | None:
    """Returns the maximum number of images per class that `draw` takes for a client; None for all."""
    if shots is None:
        return None
    return shots + (max(1, round(val * shots)) if val else 0)


def draw(
    pairs: Assignment, label: Ints, shots: int | None, val: float, rng: np.random.Generator
) -> tuple[Assignment, Assignment]:
    """Draws training and validation images of each client without replacement, class by class.

    Of the a images that a client has of a class, it trains on s = min(shots, a) and validates on v = round(val · s)
    others, at least one. If a < s + v, validation has priority, but at least one image is used for training. With
    `shots=None`, a client validates on round(val · n) of its n images, at least one, in the proportions of its classes.
    `label` [n] covers the whole pool.
    """
    return _cut(_shuffled(pairs, rng), label, shots, val)


def reserve(label: Ints, val: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mask [n] of the images that are only used for validation, for partitions where several clients have an image.

    It has the share val / (1 + val) of each class, and at least one image if there are two.
    """
    reserved = np.zeros(len(label), dtype=bool)
    if val:
        shuffled = rng.permutation(len(label))
        order, rank, size = ranked(label[shuffled])
        n_reserved = np.minimum(np.maximum(np.rint(val / (1 + val) * size), 1), size - 1)
        reserved[shuffled[order[rank < n_reserved]]] = True
    return reserved


def draw_reserved(
    pairs: Assignment, label: Ints, shots: int | None, val: float, rng: np.random.Generator, reserved: NDArray[np.bool_]
) -> tuple[Assignment, Assignment]:
    """Like `draw` for clients that share images: they validate on `reserved` images [n], on which no client trains."""
    shuffled = _shuffled(pairs, rng)
    is_reserved = reserved[shuffled.row]
    train, validate = (shuffled.at(mask) for mask in (~is_reserved, is_reserved))
    limit = None if shots is None else max(1, round(val * shots))
    return _first(train, label, shots), _first(validate, label, limit)


def _shuffled(pairs: Assignment, rng: np.random.Generator) -> Assignment:
    return pairs.at(rng.permutation(len(pairs.row)))


def _first(pairs: Assignment, label: Ints, most: int | None) -> Assignment:
    """At most `most` images of each client and class."""
    order, rank, _ = ranked(_group(pairs, label))
    return pairs.at(order if most is None else order[rank < most])


def _group(pairs: Assignment, label: Ints) -> Ints:
    """[m] number of each pair's client and class."""
    return pairs.client * (int(label.max(initial=0)) + 1) + label[pairs.row]


def _cut(pairs: Assignment, label: Ints, shots: int | None, val: float) -> tuple[Assignment, Assignment]:
    """Takes the first images of each client and class for training, and the next ones for validation."""
    order, rank, size = ranked(_group(pairs, label))
    asked = size if shots is None else np.minimum(size, shots)
    if not val:
        n_val = np.zeros_like(size)
    elif shots is None:
        n_val = _proportional(pairs.client[order], rank, size, val)
    else:
        n_val = np.minimum(np.maximum(np.rint(val * asked), 1), size - 1).astype(np.int64)
    n_train = np.minimum(asked, size - n_val)
    validated = (rank >= n_train) & (rank < n_train + n_val)
    return pairs.at(order[rank < n_train]), pairs.at(order[validated])


def _proportional(client: Ints, rank: Ints, size: Ints, val: float) -> Ints:
    """Numbers of validation images per class, by the largest remainders within each client.

    Args:
        client: [n] the client of each image, sorted by client and class.
        rank: [n] its rank within client and class.
        size: [n] images of its client and class.
        val: share of a client's images to validate on.

    Returns:
        [n] the number of validation images of the image's client and class.
    """
    heads = np.flatnonzero(rank == 0)
    owner, sizes = client[heads], size[heads]
    n = np.bincount(owner, sizes)[owner]
    total = np.maximum(np.rint(val * n), np.minimum(n - 1, 1))
    base = np.minimum(np.floor(val * sizes), sizes - 1)
    remainder = np.where(base < sizes - 1, val * sizes - base, -1)
    by_remainder = np.lexsort((-remainder, owner))
    extra = total - np.bincount(owner, base)[owner]
    place = np.empty_like(heads)
    place[by_remainder] = ranked(owner[by_remainder]).rank
    base += (place < extra) & (base < sizes - 1)
    return np.repeat(base.astype(np.int64), sizes)


def draw_published(
    pairs: Assignment,
    label: Ints,
    shots: int | None,
    val: float,
    rng: np.random.Generator,
    *,
    n_classes: int,
    seed: int,
) -> tuple[Assignment, Assignment]:
    """Like `draw`, but starts with the images that the published code of PromptFL and its descendants draws.

    In every run, that code continues with the Python generator that assigned the classes. It goes through clients, and
    through labels in the order of their first appearance in the list.
    """
    stream = random.Random(seed)
    stream.shuffle(list(range(n_classes)))
    _, first = np.unique(label, return_index=True)
    appearance = np.full(n_classes, -1)
    appearance[label[np.sort(first)]] = np.arange(len(first))
    row, client = by_label = pairs.at(np.lexsort((pairs.row, appearance[label[pairs.row]], pairs.client)))
    cuts = np.flatnonzero((np.diff(client) != 0) | (np.diff(label[row]) != 0)) + 1
    drawn = [
        position
        for images in np.split(np.arange(len(row)), cuts)
        if shots is not None and len(images) >= shots
        for position in stream.sample(images.tolist(), shots)
    ]
    rest = rng.permutation(np.setdiff1d(np.arange(len(row)), drawn))
    ordered = np.concatenate([np.array(drawn, dtype=np.int64), rest])
    return _cut(by_label.at(ordered), label, shots, val)
