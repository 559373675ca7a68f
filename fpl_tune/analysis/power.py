"""Power of the comparison of two cells, and seeds needed to decide it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy import special

from fpl_tune.analysis.tables import Floats

MOST = 100
"""Largest number of seeds that is considered."""


def pooled_sd(differences: Iterable[Floats]) -> tuple[float, int]:
    """Pools the standard deviation over seeds of several comparisons.

    Args:
        differences: per comparison, mean differences of its seeds.

    Returns:
        Standard deviation and its degrees of freedom; (NaN, 0) where no comparison has two seeds.
    """
    kept = [d for d in differences if len(d) > 1]
    freedom = sum(len(d) - 1 for d in kept)
    squares = sum(float(((d - d.mean()) ** 2).sum()) for d in kept)
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def decision_power(effect: float, sd: float, seeds: int, *, rope: float = 0.01, alpha: float = 0.05) -> float:
    """Probability that a comparison ends with better, worse or equal instead of undecided.

    Args:
        effect: true mean difference.
        sd: standard deviation of the seeds' differences.
        seeds: number of seeds.
        rope: half width of the region of practical equivalence; 0: equality cannot be found.
        alpha: level of both tests.

    Returns:
        The probability; NaN for fewer than two seeds or an unknown `sd`.
    """
    if seeds < 2 or math.isnan(sd) or math.isnan(effect):
        return math.nan
    if sd == 0:
        return float(effect != 0 or rope > 0)
    share = (np.arange(64) + 0.5) / 64
    error = sd / math.sqrt(seeds)  # of the mean
    seen = error * np.sqrt(special.chdtri(seeds - 1, 1 - share) / (seeds - 1))  # as estimated from this number of seeds
    beyond = special.stdtrit(seeds - 1, 1 - alpha / 2) * seen
    inside = np.maximum(rope - special.stdtrit(seeds - 1, 1 - alpha) * seen, 0.0)

    def between(low: Floats, high: Floats) -> Floats:
        return special.ndtr((high - effect) / error) - special.ndtr((low - effect) / error)

    gap = np.where(inside < beyond, between(inside, beyond) + between(-beyond, -inside), 0.0)
    return float(np.clip(1 - gap.mean(), 0.0, 1.0))


def seeds_needed(
    effect: float,
    sd: float,
    *,
    rope: float = 0.01,
    alpha: float = 0.05,
    wanted: float = 0.8,
    most: int = MOST,
) -> int | None:
    """Smallest number of seeds with which a comparison is decided with probability `wanted`.

    Returns:
        The number; None if it exceeds `most` or `sd` is unknown.
    """
    for n in range(2, most + 1):
        if decision_power(effect, sd, n, rope=rope, alpha=alpha) >= wanted:
            return n
    return None
