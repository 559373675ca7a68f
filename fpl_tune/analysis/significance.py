"""Tests of a mean difference over seeds, their correction for several tests, and the seeds that they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

from fpl_tune.analysis.tables import Floats

MOST = 100
"""Largest number of seeds that is considered."""


def paired_t(differences: Sequence[float] | Floats) -> float:
    """Two-sided p value of a paired t test; NaN for one difference, and 0 or 1 where all differences are equal."""
    seen = np.asarray(differences, float)
    if len(seen) < 2:
        return math.nan
    if np.ptp(seen) == 0:
        return 1.0 if seen[0] == 0 else 0.0
    return 2 * float(special.stdtr(len(seen) - 1, -abs(seen.mean()) / (seen.std(ddof=1) / math.sqrt(len(seen)))))


def equivalence(differences: Sequence[float] | Floats, rope: float) -> float:
    """p value of the two one-sided t tests (Schuirmann 1987) that the mean difference lies outside [-rope, rope]."""
    seen = np.asarray(differences, float)
    if len(seen) < 2:
        return math.nan
    mean, error = abs(float(seen.mean())), float(seen.std(ddof=1)) / math.sqrt(len(seen))
    if error == 0:
        return 0.0 if mean < rope else 1.0
    return float(special.stdtr(len(seen) - 1, (mean - rope) / error))


def holm(p: Sequence[float] | Floats) -> Floats:
    """Holm's step-down correction (1979) of a family of p values; NaN (no test possible) stays and is not counted."""
    values = np.asarray(p, float)
    corrected = np.full_like(values, math.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


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
