"""Few-shot draws: the images that a client trains on and validates on."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from fpl_tune.data.partition import Shares, ranked
from fpl_tune.data.pool import Ints


def by_client(shares: Shares, n_clients: int) -> list[Ints]:
    """The rows of each client in ascending order."""
    order = np.lexsort((shares.row, shares.client))
    cuts = np.searchsorted(shares.client[order], np.arange(1, n_clients))
    return np.split(shares.row[order].astype(np.int64), cuts)


def wanted(shots: int | None, val: float) -> int | None:
    """Maximum number of images per class that `draw` takes for a client; None: all."""
    if shots is None:
        return None
    return shots + (max(1, round(val * shots)) if val else 0)


def draw(shares: Shares, label: Ints, shots: int | None, val: float, rng: np.random.Generator) -> tuple[Shares, Shares]:
    """Training and validation images of each client, drawn without replacement class by class.

    Of the a images of a class that a client holds, it trains on s = min(shots, a) and validates on v = round(val · s)
    others, at least one. If it holds fewer than s + v, validation has priority, but one image is always trained on.
    With `shots=None` a client validates on round(val · n) of its n images, at least one, in the proportions of its
    classes. `label` [n] covers the whole pool.
    """
    return _cut(_shuffled(shares, rng), label, shots, val)


def reserve(label: Ints, val: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which images [n] clients only validate on where several clients hold an image: of each class the share
    val / (1 + val), at least one of two."""
    reserved = np.zeros(len(label), dtype=bool)
    if val:
        shuffled = rng.permutation(len(label))
        order, rank, size = ranked(label[shuffled])
        held = np.minimum(np.maximum(np.rint(val / (1 + val) * size), 1), size - 1)
        reserved[shuffled[order[rank < held]]] = True
    return reserved


def draw_reserved(
    shares: Shares, label: Ints, shots: int | None, val: float, rng: np.random.Generator, reserved: NDArray[np.bool_]
) -> tuple[Shares, Shares]:
    """Like `draw` where clients share images: validation comes from the `reserved` images [n], which none trains on."""
    shuffled = _shuffled(shares, rng)
    held = reserved[shuffled.row]
    train, validate = (shuffled.at(part) for part in (~held, held))
    limit = None if shots is None else max(1, round(val * shots))
    return _first(train, label, shots), _first(validate, label, limit)


def _shuffled(shares: Shares, rng: np.random.Generator) -> Shares:
    return shares.at(rng.permutation(len(shares.row)))


def _first(shares: Shares, label: Ints, most: int | None) -> Shares:
    """At most `most` images of each client and class."""
    order, rank, _ = ranked(_group(shares, label))
    return shares.at(order if most is None else order[rank < most])


def _group(shares: Shares, label: Ints) -> Ints:
    """A number per image for its client and class."""
    return shares.client * (int(label.max(initial=0)) + 1) + label[shares.row]


def _cut(shares: Shares, label: Ints, shots: int | None, val: float) -> tuple[Shares, Shares]:
    """The first images of each client and class for training, the next ones for validation."""
    order, rank, size = ranked(_group(shares, label))
    asked = size if shots is None else np.minimum(size, shots)
    if not val:
        n_val = np.zeros_like(size)
    elif shots is None:
        n_val = _proportional(shares.client[order], rank, size, val)
    else:
        n_val = np.minimum(np.maximum(np.rint(val * asked), 1), size - 1).astype(np.int64)
    n_train = np.minimum(asked, size - n_val)
    validated = (rank >= n_train) & (rank < n_train + n_val)
    return shares.at(order[rank < n_train]), shares.at(order[validated])


def _proportional(client: Ints, rank: Ints, size: Ints, val: float) -> Ints:
    """Validation images per class, by the largest remainders within each client.

    Args:
        client: [n] the client of each image, sorted by client and class.
        rank: [n] its rank within client and class.
        size: [n] images of its client and class.
        val: share of a client's images.

    Returns:
        [n] the number for the image's client and class.
    """
    heads = np.flatnonzero(rank == 0)
    owner, held = client[heads], size[heads]
    n = np.bincount(owner, held)[owner]
    total = np.maximum(np.rint(val * n), np.minimum(n - 1, 1))
    base = np.minimum(np.floor(val * held), held - 1)
    remainder = np.where(base < held - 1, val * held - base, -1)
    by_remainder = np.lexsort((-remainder, owner))
    extra = total - np.bincount(owner, base)[owner]
    place = np.empty_like(heads)
    place[by_remainder] = ranked(owner[by_remainder]).rank
    base += (place < extra) & (base < held - 1)
    return np.repeat(base.astype(np.int64), held)


def draw_published(
    shares: Shares, label: Ints, shots: int | None, val: float, rng: np.random.Generator, *, n_classes: int, seed: int
) -> tuple[Shares, Shares]:
    """Like `draw`, but takes the images first that the published code of PromptFL and its descendants draws.

    That code continues, in every run, the Python generator that assigned the classes: client by client, labels in the
    order of their first appearance in the list.
    """
    stream = random.Random(seed)
    stream.shuffle(list(range(n_classes)))
    _, first = np.unique(label, return_index=True)
    appearance = np.full(n_classes, -1)
    appearance[label[np.sort(first)]] = np.arange(len(first))
    row, client = held = shares.at(np.lexsort((shares.row, appearance[label[shares.row]], shares.client)))
    cuts = np.flatnonzero((np.diff(client) != 0) | (np.diff(label[row]) != 0)) + 1
    drawn = [
        position
        for images in np.split(np.arange(len(row)), cuts)
        if shots is not None and len(images) >= shots
        for position in stream.sample(images.tolist(), shots)
    ]
    rest = rng.permutation(np.setdiff1d(np.arange(len(row)), drawn))
    ordered = np.concatenate([np.array(drawn, dtype=np.int64), rest])
    return _cut(held.at(ordered), label, shots, val)
