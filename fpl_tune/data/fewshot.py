"""Few-shot draws: the images that a client trains on and validates on."""

from __future__ import annotations

import random

import numpy as np

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
    `label` [n] covers the whole pool.
    """
    shuffled = rng.permutation(len(shares.row))
    return _cut(Shares(shares.row[shuffled], shares.client[shuffled]), label, shots, val)


def _cut(shares: Shares, label: Ints, shots: int | None, val: float) -> tuple[Shares, Shares]:
    """The first images of each client and class for training, the next ones for validation."""
    held = label[shares.row]
    order, rank, size = ranked(shares.client * (int(label.max(initial=0)) + 1) + held)
    asked = size if shots is None else np.minimum(size, shots)
    n_val = np.minimum(np.maximum(np.rint(val * asked), 1), size - 1).astype(np.int64) if val else np.zeros_like(size)
    n_train = np.minimum(asked, size - n_val)
    train = order[rank < n_train]
    validate = order[(rank >= n_train) & (rank < n_train + n_val)]
    return (
        Shares(shares.row[train], shares.client[train]),
        Shares(shares.row[validate], shares.client[validate]),
    )


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
    order = np.lexsort((shares.row, appearance[label[shares.row]], shares.client))
    row, client = shares.row[order], shares.client[order]
    cuts = np.flatnonzero((np.diff(client) != 0) | (np.diff(label[row]) != 0)) + 1
    drawn = [
        position
        for images in np.split(np.arange(len(row)), cuts)
        if shots is not None and len(images) >= shots
        for position in stream.sample(images.tolist(), shots)
    ]
    rest = rng.permutation(np.setdiff1d(np.arange(len(row)), drawn))
    ordered = np.concatenate([np.array(drawn, dtype=np.int64), rest])
    return _cut(Shares(row[ordered], client[ordered]), label, shots, val)
