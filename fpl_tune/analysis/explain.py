"""Importance of hyper-parameters.

A complete grid allows exact shares: the variance of the metric over its cells is split into main effects by averaging
(functional ANOVA, Sobol 1993), and noise of known size is taken off. Cells that were drawn
allow estimates only: omega squared (Hays 1963) of groups of values, and none at all below `LEAST` cells in all or
`PER_FIELD` cells for each field that varies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from fpl_tune.analysis.intervals import interval
from fpl_tune.analysis.tables import Floats

UNTOLD = "its share is not told from noise"
"""Note of a field whose share may as well be 0."""

LEAST, PER_FIELD = 10, 3
"""Drawn cells below which nothing is explained: in all, and for each field that varies."""

_TINY = 1e-6  # of the mean: variation below is rounding, since one image of ten thousand moves an accuracy by 1e-4


def one_way(cells: pd.DataFrame, fields: Sequence[str], *, noise: float = 0.0) -> pd.DataFrame:
    """Share of the variance over cells that each field explains alone, where it is told from 0.

    Shares of a grid are of the whole variance, of which interactions and noise are the rest.

    Args:
        cells: one row per cell; columns `value` and the fields. A field is missing (None or NaN) where it does not
            exist: it is judged where it exists.
        fields: names of columns.
        noise: variance of a cell's value that is noise, such as the squared standard error over seeds.

    Returns:
        Rows `field`, `share` (NaN where nothing can be said), `cells`, `spread` (standard deviation over them), `kind`
        (`exact` for complete grids, `estimate`, or `none`), `note`; largest shares first.
    """
    needed = max(LEAST, PER_FIELD * sum(_distinct(cells[field]) > 1 for field in fields))
    rows = []
    for field in fields:
        here = cells.dropna(subset=[field, "value"])
        kind, share, note = _explained(here, field, fields, noise, needed)
        rows.append((field, share, len(here), here["value"].std(), kind, note))
    found = pd.DataFrame(rows, columns=["field", "share", "cells", "spread", "kind", "note"])
    return found.sort_values("share", ascending=False, ignore_index=True)


def _explained(
    cells: pd.DataFrame, field: str, fields: Sequence[str], noise: float, needed: int
) -> tuple[str, float, str]:
    """Kind, share and note of a field."""
    values = cells["value"].to_numpy(float)
    if _distinct(cells[field]) < 2:
        return "none", math.nan, "it takes one value"
    if constant(values):
        return "none", math.nan, "the metric does not vary"
    if (grid := full_grid(cells, fields)) is not None:
        share = _shares(cells, grid, noise)[field]
        return ("none", share, UNTOLD) if math.isnan(share) else ("exact", share, "")
    if len(cells) < needed:
        return "none", math.nan, f"{len(cells)} cells are too few, at least {needed} are needed"
    groups = _grouped(cells[field].tolist(), _bins(len(values)))
    share = omega_squared(cells[field].tolist(), values)
    if math.isnan(share):
        return "none", share, "too few cells per value"
    return ("estimate", share, "") if _differ(groups, values, len(fields)) else ("none", math.nan, UNTOLD)


def partial_dependence(frame: pd.DataFrame, field: str, *, level: float = 0.95) -> pd.DataFrame:
    """Mean value by the values of a field, over all else that varies, with a band over seeds.

    Args:
        frame: rows with `cell`, `seed`, `value` and the field. In a grid the other fields are balanced; among drawn
            cells their influence is averaged as it was drawn.
        field: name of the column. More than twelve numbers are put into groups, named by their mean.
        level: of the band.

    Returns:
        Rows `place` (value or mean of the group), `mean`, `low`, `high` (Student's interval over seeds; NaN below two),
        `cells`, `seeds`.
    """
    here = frame.dropna(subset=[field, "value"])
    values = here[field].tolist()
    groups = pd.Series(_grouped(values, 12), index=here.index)
    rows = []
    for _, part in here.groupby(groups, sort=False):
        seeds: Any = part.groupby("seed")["value"].mean()
        found = interval(seeds.to_numpy()[:, None], level=level)
        place = part[field].iloc[0] if _distinct(part[field]) == 1 else float(part[field].astype(float).mean())
        rows.append((place, found.mean, found.low, found.high, int(part["cell"].nunique()), found.seeds))
    found = pd.DataFrame(rows, columns=["place", "mean", "low", "high", "cells", "seeds"])
    return found.sort_values("place", ignore_index=True) if _numeric(values) else found


def omega_squared(values: Sequence[Any], metric: Sequence[float] | Floats) -> float:
    """Omega squared in [0, 1] of a metric by the values of a field.

    Numbers of many values are put into groups of equal size, the more the more cells there are.

    Returns:
        The share; NaN where the metric does not vary or no group has two cells.
    """
    figures = np.asarray(metric, float)
    groups = _grouped(values, _bins(len(figures)))
    k, n = len(set(groups)), len(figures)
    if k < 2 or n <= k or constant(figures):
        return math.nan
    total = float(((figures - figures.mean()) ** 2).sum())
    means = pd.Series(figures).groupby(groups).agg(["mean", "size"])
    between = float((means["size"] * (means["mean"] - figures.mean()) ** 2).sum())
    within = (total - between) / (n - k)
    return float(np.clip((between - (k - 1) * within) / (total + within), 0.0, 1.0))


def constant(values: Sequence[float] | Floats) -> bool:
    """Whether values are equal up to rounding."""
    seen = np.asarray(values, float)
    return len(seen) < 2 or float(np.ptp(seen)) <= _TINY * max(1e-12, float(np.abs(seen).max()))


def full_grid(cells: pd.DataFrame, fields: Sequence[str]) -> list[str] | None:
    """Fields that vary, two at least, where every combination of their values has one cell; None for anything else."""
    varied = [field for field in fields if _distinct(cells[field]) > 1]
    size = math.prod(_distinct(cells[field]) for field in varied)
    if cells[list(fields)].isna().to_numpy().any() or len(varied) < 2 or len(cells) != size:
        return None
    return None if cells[varied].map(repr).duplicated().any() else varied


def _shares(cells: pd.DataFrame, varied: Sequence[str], noise: float) -> dict[str, float]:
    """Shares of single fields in the variance over a complete grid, `noise` taken off."""
    codes = {field: pd.factorize(cells[field].map(repr))[0] for field in varied}
    sizes = {field: int(codes[field].max()) + 1 for field in varied}
    values = cells["value"].to_numpy(float)
    values = values - values.mean()
    n = len(values)
    total = float((values**2).mean())  # noise is a share of it as well, so that shares sum to at most 1
    single = {f: np.bincount(codes[f], values) * sizes[f] / n for f in varied}
    found: dict[str, float] = {}
    for f in varied:
        between, free = float((single[f] ** 2).mean()), sizes[f] - 1
        told = noise == 0 or special.chdtrc(free, between * n / noise) <= 0.05 / len(varied)
        found[f] = max(between - noise * free / n, 0.0) / total if told else math.nan
    return found


def _differ(groups: Sequence[Any], metric: Floats, fields: int) -> bool:
    """Whether the means of groups differ by an F test at 5 % over all fields."""
    k, n = len(set(groups)), len(metric)
    means = pd.Series(metric).groupby(list(groups)).transform("mean").to_numpy()
    between, within = float(((means - metric.mean()) ** 2).sum()), float(((metric - means) ** 2).sum())
    ratio = between / (k - 1) / max(within / (n - k), 1e-300)
    return float(special.fdtrc(k - 1, n - k, ratio)) <= 0.05 / fields


def _bins(cells: int) -> int:
    """How many groups the numbers of a field are put into: the more, the more cells there are."""
    return int(np.clip(math.sqrt(cells) / 1.5, 4, 20))


def _distinct(column: pd.Series) -> int:
    """How many values a field takes; 1 and 1.0 are two."""
    return column.map(repr).nunique()


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float | np.number) and not isinstance(v, bool) for v in values)


def _grouped(values: Sequence[Any], bins: int) -> list[Any]:
    """Groups of a field's values: numbers of many values by rank, all else as it is."""
    if _numeric(values) and len(set(values)) > max(bins, 6):
        ranks = pd.Series(list(values), dtype=float).rank(pct=True).to_numpy()
        return np.ceil(ranks * bins).clip(1, bins).tolist()
    return [repr(v) for v in values]
