"""Mean ranks of methods over several data sets.

Frames have the columns `dataset`, `cell`, `value` and, where runs were repeated, `seed`. Larger values are better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets, and which of them differ (Demsar 2006)."""

    ranks: pd.Series
    """Index cell, the best (smallest) first."""
    critical_difference: float
    """Nemenyi: mean ranks that differ by less are not distinguished; NaN below two data sets or cells."""
    p: float
    """Friedman's test that all cells are equal; NaN below three cells or two data sets."""
    groups: list[list[str]]
    """Largest sets of cells whose ranks lie within the critical difference."""
    datasets: int
    note: str = ""


def mean_ranks(frame: pd.DataFrame, *, alpha: float = 0.05) -> Ranks:
    """Ranks cells on every data set, by their mean over seeds, and averages the ranks.

    Cells without a value on some data set are left out, which `note` says.
    """
    table, note = _means(frame)
    n, k = table.shape
    if n == 0 or k == 0:
        return Ranks(pd.Series(dtype=float), math.nan, math.nan, [], n, note or "no complete cell")
    ranks = table.rank(axis=1, ascending=False).mean().sort_values()
    if n < 2 or k < 2:
        return Ranks(ranks, math.nan, math.nan, [], n, "; ".join(filter(None, [note, "one data set or cell: no test"])))
    from scipy import stats  # half a second, and few studies have several data sets

    q = float(stats.studentized_range.ppf(1 - alpha, k, np.inf)) / math.sqrt(2)
    critical = q * math.sqrt(k * (k + 1) / (6 * n))
    p = math.nan
    if k > 2 and float(np.ptp(table.to_numpy(), axis=1).max()) > 0:
        tested: Any = stats.friedmanchisquare(*(table[cell] for cell in table))
        p = float(tested.pvalue)
    groups: list[list[str]] = []
    for i in range(k):
        group = [str(c) for c in ranks.index[i:] if ranks[c] - ranks.iloc[i] <= critical]
        if len(group) > 1 and not any(set(group) <= set(other) for other in groups):
            groups.append(group)
    return Ranks(ranks, critical, p, groups, n, note)


def _means(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Means over seeds [datasets, cells] of the cells that all data sets have."""
    table = frame.pivot_table(index="dataset", columns="cell", values="value", aggfunc="mean", sort=False)
    whole = table.dropna(axis=1)
    lost = [str(cell) for cell in table if cell not in whole]
    return whole, f"not on every data set, left out: {', '.join(lost)}" if lost else ""
