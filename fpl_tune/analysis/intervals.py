"""Confidence intervals of a mean over seeds whose clients are correlated.

Clients of one seed share a server, a partition and often a prompt, so that seeds, not clients, are the independent
units. The hierarchical bootstrap (Davison & Hinkley 1997, section 3.8) draws seeds, then clients of each drawn seed;
its interval is bias-corrected and accelerated (BCa, Efron 1987) with the jackknife over seeds. With few seeds every
interval of that kind is too short, since resampled means spread by (n-1)/n less and the error of the spread itself is
ignored: `python .github/tools/bench.py statistics` prints the coverage. `interval` therefore uses Student's interval of
the means of seeds below `BCA_FROM` seeds, which holds its level whatever the correlation of the clients is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from fpl_tune.analysis.tables import Floats, present, seed_means

BCA_FROM = 20
"""Smallest number of seeds with a bootstrap interval."""


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float
    method: Literal["t", "bca", "none"]
    seeds: int
    clients: int
    """Clients of the seed that has most."""
    note: str = ""
    """Limitation of the interval, such as "1 seed: no interval"."""


def interval(
    values: Floats,
    *,
    level: float = 0.95,
    method: Literal["auto", "t", "bca"] = "auto",
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Computes the confidence interval of the mean over seeds and clients.

    Args:
        values: [seeds, clients], NaN where missing. Values of one seed need not be independent.
        level: confidence level.
        method: `t` (Student's, of the means of seeds), `bca` (hierarchical bootstrap) or `auto` (`t` below `BCA_FROM`
            seeds).
        resamples: bootstrap resamples.
        seed: of the bootstrap's generator.

    Returns:
        The interval; its bounds are NaN and `note` says why where one seed or none has values.
    """
    kept = values[present(values).any(axis=1)]
    n = len(kept)
    clients = int(present(kept).sum(axis=1).max(initial=0))
    means = seed_means(kept)
    if n < 2:
        mean = float(means[0]) if n else math.nan
        return Interval(mean, math.nan, math.nan, "none", n, clients, f"{n or 'no'} seed: no interval")
    mean = float(means.mean())
    if method == "t" or (method == "auto" and n < BCA_FROM):
        half = t_half_width(float(means.std(ddof=1)) / math.sqrt(n), n, level)
        return Interval(mean, mean - half, mean + half, "t", n, clients)
    low, high = _bca(kept, level, resamples, np.random.default_rng(seed))
    return Interval(mean, low, high, "bca", n, clients)


def t_half_width(sem: float, n: int, level: float = 0.95) -> float:
    """Half width of Student's interval of a mean of n values; NaN for fewer than two."""
    return float(special.stdtrit(n - 1, (1 + level) / 2) * sem) if n > 1 else math.nan


def resample(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Draws means [resamples] by the hierarchical bootstrap: seeds, then clients within each drawn seed.

    Args:
        values: [seeds, clients], NaN where missing; every seed has a value.
        resamples: how many.
        rng: generator.
    """
    n = len(values)
    count = present(values).sum(axis=1)
    packed = np.take_along_axis(values, np.argsort(np.isnan(values), axis=1, kind="stable"), axis=1)  # missing last
    drawn = rng.integers(n, size=(resamples, n))
    if values.shape[1] == 1:
        return packed[drawn, 0].mean(1)
    which = (rng.random((resamples, n, values.shape[1])) * count[drawn][..., None]).astype(int)
    picked = packed[drawn[..., None], which]  # [resamples, seeds, clients]
    inside = np.arange(values.shape[1]) < count[drawn][..., None]
    return ((picked * inside).sum(2) / count[drawn]).mean(1)


def _bca(values: Floats, level: float, resamples: int, rng: np.random.Generator) -> tuple[float, float]:
    drawn = resample(values, resamples, rng)
    means = seed_means(values)
    n = len(means)
    if np.ptp(means) == 0 and np.ptp(drawn) == 0:
        return float(means[0]), float(means[0])
    below = (np.sum(drawn < means.mean()) + 0.5 * np.sum(drawn == means.mean())) / resamples
    bias = special.ndtri(np.clip(below, 1 / (2 * resamples), 1 - 1 / (2 * resamples)))
    left_out = (means.sum() - means) / (n - 1)
    away = left_out.mean() - left_out
    spread = float((away**2).sum())
    acceleration = float((away**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    z = bias + special.ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
    low, high = np.quantile(drawn, special.ndtr(bias + z / (1 - acceleration * z)))
    return float(low), float(high)
