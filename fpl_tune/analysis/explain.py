"""Importance of hyper-parameters: analysis of variance over cells (Hays 1963).

A field's share is what it explains beside all other fields (omega squared), so that a field which is only drawn
together with an important one gets none. In a complete grid this is the main effect of functional ANOVA (Sobol 1993).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import special

from fpl_tune.analysis.significance import two_way
from fpl_tune.analysis.tables import Floats, read, seed_means

LEAST, PER_FIELD = 10, 3
"""Drawn cells below which nothing is explained: in all, and for each field that varies."""

UNTOLD = "no significant share"
NOISE = "noise"
"""Name of the row of noise."""
_TINY = 1e-6  # of the mean: variation below is rounding, since one image of ten thousand moves an accuracy by 1e-4


def noise_of(frame: pd.DataFrame) -> float:
    """Variance of a cell's mean over seeds that noise explains, effects of seeds aside; NaN below two seeds.

    Args:
        frame: see `tables.read`.
    """
    values = seed_means(read(frame).values)
    variance, freedom = two_way(values)
    return float(variance) / values.shape[1] if freedom > 0 else math.nan


def importance(cells: pd.DataFrame, fields: Sequence[str], *, noise: float = 0.0) -> pd.DataFrame:
    """Computes the share of the variance over cells that each field explains beside the others.

    No share is given if an F test at 5 % over all fields cannot separate it from 0. Interactions, and what noise
    is more than known, are the rest to 1.

    Args:
        cells: one row per cell; columns `value` and the fields. A field that does not exist in a cell is None or NaN.
        fields: names of columns. Numbers of many values are put into groups of equal size.
        noise: variance of a cell's value that is noise, see `noise_of`; NaN: not known.

    Returns:
        Rows `field`, `share` (NaN where nothing can be said) and `note` (why); largest shares first, then, where it is
        known and not 0, the share of `NOISE`.
    """
    cells = cells.dropna(subset=["value"])
    values, varied = cells["value"].to_numpy(float), [field for field in fields if _distinct(cells[field]) > 1]
    grid = _is_grid(cells, varied)
    result = pd.DataFrame({"field": list(fields), "share": math.nan, "note": "it takes one value"})
    rows, n, needed = result["field"].isin(varied), len(cells), max(LEAST, PER_FIELD * len(varied))
    if np.ptp(values) <= _TINY * np.abs(values).max() if n else True:
        result.loc[rows, "note"] = "the metric does not vary"
        return result
    groups = [_groups(cells[field], int(np.clip(n // (3 * len(varied)), 3, 10))) for field in varied]
    left, rank = _residual(values, groups)
    free = 1e9 if grid and not math.isnan(noise) else n - rank
    if free < 1 or not (grid or n >= needed):
        result.loc[rows, "note"] = f"{n} cells are too few, at least {max(needed, rank + 1)} are needed"
        return result
    error = noise if free == 1e9 else left / free
    total = float(((values - values.mean()) ** 2).sum()) + error
    shares = []
    for i in range(len(varied)):
        without, fewer = _residual(values, groups[:i] + groups[i + 1 :])
        alone, freedom = without - left, max(rank - fewer, 1)
        alone = alone if alone > _TINY**2 * float(values @ values) else 0.0  # a smaller difference is rounding
        chance = special.fdtrc(freedom, free, alone / freedom / max(error, 1e-300))
        significant = rank > fewer and chance <= 0.05 / len(varied)
        shares.append(max(alone - freedom * error, 0.0) / total if significant else math.nan)
    explained = float(np.nansum(shares))
    result.loc[rows, "share"] = np.array(shares) / max(explained, 1.0)
    result.loc[rows, "note"] = np.where(np.isnan(shares), UNTOLD, "")
    result = result.sort_values("share", ascending=False, ignore_index=True)
    if noise > 0:
        result.loc[len(result)] = [NOISE, min(noise * (n - 1) / total, max(1 - explained, 0.0)), ""]
    return result


def _residual(values: Floats, groups: Sequence[Floats]) -> tuple[float, int]:
    """Sum of squares that an additive model of groups leaves, and the model's rank."""
    design = np.hstack([np.ones((len(values), 1)), *groups])
    effects, _, rank, _ = np.linalg.lstsq(design, values)
    return float(((values - design @ effects) ** 2).sum()), int(rank)


def _groups(column: pd.Series, most: int) -> Floats:
    """Indicators [cells, groups] of a field's values; numbers of many values are grouped by rank."""
    numbers = column.map(lambda v: isinstance(v, int | float) and not isinstance(v, bool)).all()
    if numbers and column.nunique() > max(most, 6):
        column = np.ceil(column.rank(pct=True) * most)
    return pd.get_dummies(column.map(repr)).to_numpy(float)


def _is_grid(cells: pd.DataFrame, varied: Sequence[str]) -> bool:
    """True if every combination of the values of two fields or more has one cell."""
    size = math.prod(_distinct(cells[field]) for field in varied)
    return len(varied) > 1 and len(cells) == size and not cells[list(varied)].map(repr).duplicated().any()


def _distinct(column: pd.Series) -> int:
    """The number of values that a field takes; 1 and 1.0 are two, and a missing one counts."""
    return column.map(repr).nunique()
