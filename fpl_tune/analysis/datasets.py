"""Mean ranks of methods over several data sets.

Frames have the columns `dataset`, `cell`, `value` and, where runs were repeated, `seed`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fpl_tune.core.metrics import comparable

LEAST = 5
"""Minimum number of data sets for a critical difference of ranks."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets, and by how much they must differ."""

    ranks: pd.Series
    """Index cell, the best (smallest) first."""
    critical_difference: float
    """Nemenyi, 5 % (Demsar 2006): ranks closer than this do not differ significantly; NaN below `LEAST` data sets."""
    datasets: int
    left_out: tuple[str, ...]
    """Cells without a value on some data set."""


def mean_ranks(frame: pd.DataFrame, *, higher: bool = True) -> Ranks:
    """Ranks the cells that all data sets have, by their mean over seeds on each, and averages the ranks.

    Args:
        frame: the values.
        higher: larger values are better.
    """
    table = frame.pivot_table(index="dataset", columns="cell", values="value", aggfunc="mean", sort=False)
    whole = table.dropna(axis=1)
    n, k = whole.shape
    critical = math.nan
    if n >= LEAST and k > 1:
        from scipy import stats  # half a second, and few studies have several data sets

        quantile = float(stats.studentized_range.ppf(0.95, k, np.inf))
        critical = quantile / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    ranks = whole.map(comparable).rank(axis=1, ascending=not higher).mean().sort_values()
    return Ranks(ranks, critical, n, tuple(str(cell) for cell in frame["cell"].unique() if cell not in whole))
