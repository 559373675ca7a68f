"""Student's confidence intervals of a mean over seeds.

Clients of one seed share a server, a partition and often a prompt, so that seeds, not clients, are the independent
units: an interval is that of the means of seeds, and holds its level whatever the correlation of the clients is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special

from fpl_tune.analysis.tables import Floats, present, seed_means


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval."""

    mean: float
    low: float
    high: float
    seeds: int
    clients: int
    """Clients of the seed that has most."""
    note: str = ""
    """Limitation of the interval, such as "1 seed: no interval"."""


def interval(values: Floats, *, level: float = 0.95) -> Interval:
    """Computes the confidence interval of the mean over seeds and clients.

    Args:
        values: [seeds, clients], NaN where missing. Values of one seed need not be independent.
        level: confidence level.

    Returns:
        The interval; its bounds are NaN and `note` says why where one seed or none has values.
    """
    kept = values[present(values).any(axis=1)]
    n = len(kept)
    clients = int(present(kept).sum(axis=1).max(initial=0))
    means = seed_means(kept)
    if n < 2:
        mean = float(means[0]) if n else math.nan
        return Interval(mean, math.nan, math.nan, n, clients, f"{n or 'no'} seed: no interval")
    mean = float(means.mean())
    half = t_half_width(float(means.std(ddof=1)) / math.sqrt(n), n, level)
    return Interval(mean, mean - half, mean + half, n, clients)


def t_half_width(sem: float, n: int, level: float = 0.95) -> float:
    """Half width of Student's interval of a mean of n values; NaN for fewer than two."""
    return float(special.stdtrit(n - 1, (1 + level) / 2) * sem) if n > 1 else math.nan
