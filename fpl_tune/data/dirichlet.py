"""Label skew by Dirichlet draws. n images, N clients, K classes, β the concentration."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import counted
from fpl_tune.data.partition import Assignment, Deal, joined
from fpl_tune.data.pool import Ints

Floats = NDArray[np.float64]


def by_label(
    train: Ints,
    test: Ints,
    n_clients: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
    *,
    min_test: int | None = None,
) -> Deal:
    """Divides each class over the clients in shares ~ Dir(β·1_N), training and test images in the same shares.

    A client that has n / N training images receives no images of later classes. The draw is repeated until every client
    has the minimum numbers of images. It is that of Hsu et al. 2019 in the form of Li et al. 2022 ("labeldir").

    Args:
        train, test: labels of the images to distribute.
        n_clients: N.
        alpha: β, the concentration.
        min_size: minimum number of training images of a client, and of test images unless `min_test` is given.

    Raises:
        ConfigError: no draw can reach the minimum, or none of many did.
    """
    least = np.array([min_size, min_size if min_test is None else min_test])
    for kind, label, size in zip(("training", "test"), (train, test), least, strict=True):
        if len(label) < n_clients * size:
            raise ConfigError(
                f"{counted(len(label), f'{kind} image')} cannot give {counted(n_clients, 'client')} {size} each. "
                "Lower partition.n_clients or partition.min_size."
            )
    n_classes = int(max(train.max(initial=0), test.max(initial=0))) + 1
    sizes = np.stack([np.bincount(train, minlength=n_classes), np.bincount(test, minlength=n_classes)])
    best = np.array([-1, -1])
    tries = int(np.clip(10_000_000 // (n_classes * n_clients), 100, 5_000))
    for _ in range(tries):
        cuts = _cuts(sizes, n_clients, alpha, rng)
        smallest = np.diff(cuts, axis=-1).sum(1).min(-1)
        if (smallest >= least).all():
            return Deal(_deal(train, cuts[0], rng), _deal(test, cuts[1], rng))
        best = max(best, smallest, key=lambda sizes: min(sizes - least))
    raise ConfigError(
        f"None of {tries} Dirichlet draws with alpha {alpha:g} gave each of {counted(n_clients, 'client')} {least[0]} "
        f"training and {least[1]} test images; the best gave {best[0]} and {best[1]}. "
        "Raise partition.alpha, or lower partition.n_clients or partition.min_size."
    )


def _cuts(sizes: Ints, n_clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """Positions [2, K, N + 1] at which the list of each class is cut, for training and test images."""
    fair, counts = sizes[0].sum() / n_clients, np.zeros(n_clients)
    shares = _dirichlet(rng, alpha, n_clients, sizes.shape[1])
    cuts = np.zeros((2, sizes.shape[1], n_clients + 1), dtype=np.int64)
    for k, share in enumerate(shares):
        edges = _edges(share, counts < fair)
        cuts[:, k, 1:] = (edges * sizes[:, k, None]).astype(np.int64)
        counts += np.diff(cuts[0, k])
    return cuts


def _edges(share: Floats, takes: NDArray[np.bool_]) -> Floats:
    """[N] ends of the clients' parts of a class in [0, 1]. Clients outside the mask `takes` have empty parts."""
    share = np.where(takes, share, 0)
    if not share.sum() > 0:  # only full clients drew a share, so the others receive equal parts
        share = takes.astype(float)
    edges = np.cumsum(share / share.sum())
    edges[-1] = 1
    return edges


def _dirichlet(rng: np.random.Generator, alpha: float, n_clients: int, n: int) -> Floats:
    """[n, N] draws from Dir(β·1_N); equal shares for an infinite concentration."""
    if math.isinf(alpha):
        return np.full((n, n_clients), 1 / n_clients)
    return rng.dirichlet(np.full(n_clients, alpha), size=n)


def _deal(label: Ints, cuts: Ints, rng: np.random.Generator) -> Assignment:
    """Shuffles each class and divides it at `cuts` [K, N + 1]."""
    shuffled = rng.permutation(len(label))
    row = shuffled[np.argsort(label[shuffled], kind="stable")]
    n_clients = cuts.shape[1] - 1
    client = np.repeat(np.tile(np.arange(n_clients), len(cuts)), np.diff(cuts, axis=1).reshape(-1))
    return Assignment(row, client)


def fixed_by_label(train: Ints, test: Ints, n_clients: int, alpha: float) -> Deal:
    """The draw of the published code for DomainNet and Office, where the generator is seeded with 0 before each class.

    The partition is therefore the same in every run, and classes of equal size have equal shares.
    """
    n_classes = int(max(train.max(initial=0), test.max(initial=0))) + 1
    fair, counts = len(train) / n_clients, np.zeros(n_clients)
    parts: tuple[list[Assignment], list[Assignment]] = ([], [])
    for k in range(n_classes):
        rng = np.random.RandomState(0)
        rows = [np.flatnonzero(label == k) for label in (train, test)]
        for images in rows:
            rng.shuffle(images)
        edges = _edges(rng.dirichlet(np.full(n_clients, alpha)), counts < fair)
        for into, images in zip(parts, rows, strict=True):
            sizes = np.diff((edges * len(images)).astype(int), prepend=0)
            into.append(Assignment(images, np.repeat(np.arange(n_clients), sizes)))
        counts += np.bincount(parts[0][-1].client, minlength=n_clients)
    return Deal(joined(parts[0]), joined(parts[1]))


def by_superclass(
    train: Ints,
    test: Ints,
    coarse: Ints,
    n_clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    within: float = 10.0,
) -> Deal:
    """Two-level draw for CIFAR-100 ("labeldir100"): each client draws n / N images of training and test set together.

    The shares of super-classes are ~ Dir(β·1), and those of the classes within each ~ Dir(10·1). Images are drawn
    without replacement; those from the test set become the client's test images. `coarse` [K] is the super-class of
    each class.
    """
    label = np.concatenate([train, test])
    shuffled = rng.permutation(len(label))
    order = shuffled[np.argsort(label[shuffled], kind="stable")]
    left = np.bincount(label, minlength=len(coarse))
    next_row = np.cumsum(left) - left
    n_coarse, quota = int(coarse.max()) + 1, len(label) // n_clients
    rows: list[Ints] = []
    for _ in range(n_clients):
        mix = _dirichlet(rng, alpha, n_coarse, 1)[0][coarse]
        for group in range(n_coarse):
            mix[coarse == group] *= _dirichlet(rng, within, int((coarse == group).sum()), 1)[0]
        taken = _fill(quota, mix, coarse, left, rng)
        rows += [order[start : start + count] for start, count in zip(next_row, taken, strict=True)]
        next_row, left = next_row + taken, left - taken
    pairs = Assignment(np.concatenate(rows), np.repeat(np.arange(n_clients), quota))
    is_train = pairs.row < len(train)
    test_pairs = pairs.at(~is_train)
    return Deal(pairs.at(is_train), test_pairs._replace(row=test_pairs.row - len(train)))


def _fill(quota: int, mix: Floats, coarse: Ints, left: Ints, rng: np.random.Generator) -> Ints:
    """[K] numbers of images per class in `quota` draws from `mix`. Draws of exhausted classes are repeated."""
    n_coarse = int(coarse.max()) + 1
    weight = np.bincount(coarse, mix, minlength=n_coarse)  # of super-classes, including exhausted classes
    taken = np.zeros_like(left)
    while (missing := quota - int(taken.sum())) > 0:
        open_ = left > taken
        inside = np.bincount(coarse, mix * open_, minlength=n_coarse)
        # an exhausted class leaves its share to its super-class, an exhausted super-class to the others
        share = np.where(open_, mix, 0) * np.divide(weight, inside, out=np.zeros(n_coarse), where=inside > 0)[coarse]
        if not share.sum() > 0:
            share = open_.astype(float)
        taken = np.minimum(taken + rng.multinomial(missing, share / share.sum()), left)
    return taken
