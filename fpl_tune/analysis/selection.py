"""Selection among cells with noisy means, by validation values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, special

from fpl_tune.analysis.tables import Floats, present, read, seed_means

RULES = ("mean", "lower_bound", "one_standard_error")
"""`mean`: the highest mean; `lower_bound`: the highest mean minus three standard errors; `one_standard_error`: the
preferred cell among those whose mean lies within one standard error of the highest (Breiman et al. 1984)."""

_WIDTH = 3.0  # standard errors of the lower bound


def scores(frame: pd.DataFrame) -> pd.DataFrame:
    """Computes what the rules choose by.

    Effects of seeds that all cells share are removed first. A cell's variance over seeds is moderated towards that of
    all cells (empirical Bayes, Smyth 2004), since two or three seeds say little about it.

    Args:
        frame: see `tables.read`.

    Returns:
        Index `cell`; columns `mean`, `error` (standard error of the mean; NaN where no cell has two seeds),
        `lower_bound`, `seeds`.
    """
    table = read(frame)
    return scores_of(seed_means(table.values), table.cells)


def scores_of(values: Floats, cells: Sequence[str]) -> pd.DataFrame:
    """Computes `scores` from values [cells, seeds]."""
    count = present(values).sum(axis=1)
    mean = np.array([v[present(v)].mean() if n else math.nan for v, n in zip(values, count, strict=True)])
    error = _errors(values, count)
    bound = mean - _WIDTH * np.where(np.isnan(error), 0.0, error)
    index = pd.Index(cells, name="cell")
    return pd.DataFrame({"mean": mean, "error": error, "lower_bound": bound, "seeds": count}, index=index)


def select(frame: pd.DataFrame, rule: str = "mean", *, preferred: Sequence[str] = ()) -> str:
    """Chooses a cell by validation values.

    Args:
        frame: validation values, see `tables.read`.
        rule: one of `RULES`.
        preferred: cells from the most to the least preferred one, for instance the published configuration first, then
            by cost; decides `one_standard_error` and ties. Cells that are not listed follow in the frame's order.

    Returns:
        The chosen cell. Where no cell has two seeds all rules choose by the mean.

    Raises:
        ValueError: the rule is unknown, or no cell has a value.
    """
    return select_by(scores(frame), rule, preferred)


def select_by(found: pd.DataFrame, rule: str, preferred: Sequence[str] = ()) -> str:
    """Chooses a cell from the table of `scores`; see `select`."""
    ranked = ranking(found, rule)
    if ranked.empty:
        raise ValueError("No cell has a validation value to choose by.")
    order = dict.fromkeys([*preferred, *map(str, ranked.index)])
    return str(ranked.loc[[cell for cell in order if cell in ranked.index]].idxmax())


def ranking(found: pd.DataFrame, rule: str) -> pd.Series:
    """What a rule maximises, by cell; the first of equals is chosen.

    Args:
        found: the table of `scores`. Cells without a mean are left out.
        rule: one of `RULES`.

    Raises:
        ValueError: the rule is unknown.
    """
    if rule not in RULES:
        raise ValueError(f"The selection rule must be one of {', '.join(RULES)}, but is {rule!r}.")
    found = found.dropna(subset=["mean"])
    if rule != "one_standard_error" or found.empty:
        return found["lower_bound" if rule == "lower_bound" else "mean"]
    top = found.loc[found["mean"].idxmax()]
    within = found["mean"] >= top["mean"] - np.nan_to_num(top["error"])
    return found["mean"].mask(within, top["mean"])


def _errors(values: Floats, count: Floats) -> Floats:
    """Moderated standard error [cells] of the means of values [cells, seeds]."""
    many = count > 1
    if many.sum() < 1:
        return np.full(len(values), math.nan)
    rest = values[:, np.asarray(present(values).any(axis=0))]  # a copy
    for _ in range(20):  # a seed's effect is its median over cells, so that an unstable cell does not move the others
        rest -= _nanmean(rest, 1)[:, None]
        if len(values) > 2:
            rest -= np.nanmedian(rest, axis=0)
    rest -= _nanmean(rest, 1)[:, None]
    share = (len(values) - 1) / len(values) if len(values) > 2 else 1.0  # degrees that the seeds' effects take
    freedom = (count[many] - 1) * share
    variance = np.nansum(rest[many] ** 2, axis=1) / freedom
    prior, typical = _prior(variance, freedom)
    moderated = np.full(len(values), typical)
    weight = 1.0 if math.isinf(prior) else prior / (prior + freedom)
    moderated[many] = weight * typical + (1 - weight) * variance
    return np.sqrt(moderated / np.maximum(count, 1))


def _prior(variance: Floats, freedom: Floats) -> tuple[float, float]:
    """Degrees of freedom and scale of the cells' common variance, by the moments of its logarithm (Smyth 2004)."""
    pooled = float((variance * freedom).sum() / freedom.sum())
    seen = variance > 1e-12 * max(pooled, 1e-300)
    if seen.sum() < 3 or pooled <= 1e-24:
        return math.inf, pooled
    half = freedom[seen] / 2
    logs = np.log(variance[seen]) - special.digamma(half) + np.log(half)
    excess = float(logs.var(ddof=1) - special.polygamma(1, half).mean())
    if excess <= 1e-8:
        return math.inf, pooled
    # Trigamma falls from infinity to 0, so that it takes the value once.
    root: Any = optimize.brentq(lambda x: float(special.polygamma(1, x)) - excess, 1e-9, 1e9)
    prior = 2 * float(root)
    return prior, float(np.exp(logs.mean() + special.digamma(prior / 2) - np.log(prior / 2)))


def _nanmean(values: Floats, axis: int) -> Floats:
    known = present(values)
    return np.where(known, values, 0.0).sum(axis) / np.maximum(known.sum(axis=axis), 1)
