"""Comparison of methods over several data sets: ranks, pairwise matrix, and aggregates that few runs allow.

Frames have the columns `dataset`, `cell`, `value` and, where runs were repeated, `seed`. Larger values are better.
Bands are 95 % percentile intervals of a bootstrap that is stratified by data set (Agarwal et al. 2021); they describe
the data sets at hand, and with fewer than about ten seeds they are too narrow.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fpl_tune.analysis.significance import holm
from fpl_tune.analysis.tables import Floats

_RESAMPLES = 2000


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


def multiple_comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Compares all pairs of cells over data sets (multiple comparison matrix, Ismail-Fawaz et al. 2023).

    Returns:
        Rows `a`, `b`, `difference` (mean over data sets of a - b), `wins`, `ties`, `losses` (data sets), `p` (Wilcoxon
        signed-rank, Holm) and `p_least` (the smallest that this number of data sets can reach before correction).
    """
    from scipy import stats

    table, note = _means(frame)
    rows = []
    for a, b in itertools.combinations(table, 2):
        gap = (table[a] - table[b]).to_numpy()
        away = gap[gap != 0]
        p = math.nan if len(gap) < 2 else 1.0
        if len(away) > 1:
            exact = len(np.unique(np.abs(away))) == len(away) <= 50
            tested: Any = stats.wilcoxon(away, method="exact" if exact else "asymptotic")
            p = float(tested.pvalue)
        signs = (int((gap > 0).sum()), int((gap == 0).sum()), int((gap < 0).sum()))
        rows.append((a, b, float(gap.mean()), *signs, p, 2.0 ** (1 - len(gap))))
    columns = ["a", "b", "difference", "wins", "ties", "losses", "p", "p_least"]
    found = pd.DataFrame(rows, columns=columns)
    found["p"] = holm(found["p"].to_numpy(float))
    found.attrs["note"] = note
    return found


def performance_profile(frame: pd.DataFrame, thresholds: Floats | None = None, *, seed: int = 0) -> pd.DataFrame:
    """Share of runs (data set, seed) of each cell above a threshold (Dolan & More 2002; Agarwal et al. 2021).

    Returns:
        Rows `cell`, `threshold`, `share`, `low`, `high`.
    """
    levels = np.linspace(frame["value"].min(), frame["value"].max(), 50) if thresholds is None else thresholds
    rows = []
    for cell, runs in _runs(frame).items():
        drawn = _stratified(runs, np.random.default_rng(seed))
        above = (drawn[..., None, :] > levels[:, None]).mean(-1)  # [resamples, thresholds]
        low, high = np.quantile(above, [0.025, 0.975], axis=0)
        share = (np.concatenate(runs) > levels[:, None]).mean(1)
        rows.append(pd.DataFrame({"cell": cell, "threshold": levels, "share": share, "low": low, "high": high}))
    return pd.concat(rows, ignore_index=True)


def iqm(frame: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Interquartile mean over runs (data set, seed) with a stratified bootstrap interval.

    Returns:
        Index `cell`; columns `iqm`, `low`, `high`, `runs`.
    """
    rows = {}
    for cell, runs in _runs(frame).items():
        low, high = np.quantile(_trimmed(_stratified(runs, np.random.default_rng(seed))), [0.025, 0.975])
        whole = np.concatenate(runs)
        rows[cell] = {"iqm": float(_trimmed(whole)), "low": float(low), "high": float(high), "runs": len(whole)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("cell")


def improvement(frame: pd.DataFrame, a: str, b: str, *, seed: int = 0) -> tuple[float, float, float]:
    """Probability that a run of `a` is better than one of `b` on the same data set, averaged over data sets.

    Returns:
        The probability (ties count half) and its interval; NaN where the cells share no data set.
    """
    ours, theirs = (_by_dataset(frame.loc[frame["cell"] == cell]) for cell in (a, b))
    common = [name for name in ours if name in theirs]
    if not common:
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(seed)
    drawn = np.zeros(_RESAMPLES)
    plain = 0.0
    for name in common:
        x, y = ours[name], theirs[name]
        plain += _better(x, y)
        xs, ys = (v[rng.integers(len(v), size=(_RESAMPLES, len(v)))] for v in (x, y))
        drawn += _better(xs, ys)
    low, high = np.quantile(drawn / len(common), [0.025, 0.975])
    return float(plain / len(common)), float(low), float(high)


def _better(x: Floats, y: Floats) -> Floats:
    gap = np.sign(x[..., :, None] - y[..., None, :])
    return (1 + gap.mean((-2, -1))) / 2


def _means(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Means over seeds [datasets, cells] of the cells that all data sets have."""
    table = frame.pivot_table(index="dataset", columns="cell", values="value", aggfunc="mean", sort=False)
    whole = table.dropna(axis=1)
    lost = [str(cell) for cell in table if cell not in whole]
    return whole, f"not on every data set, left out: {', '.join(lost)}" if lost else ""


def _by_dataset(frame: pd.DataFrame) -> dict[str, Floats]:
    kept = frame.dropna(subset=["value"])
    return {str(name): rows["value"].to_numpy(float) for name, rows in kept.groupby("dataset", sort=False)}


def _runs(frame: pd.DataFrame) -> dict[str, list[Floats]]:
    kept = frame.dropna(subset=["value"])
    return {str(cell): list(_by_dataset(rows).values()) for cell, rows in kept.groupby("cell", sort=False)}


def _stratified(runs: list[Floats], rng: np.random.Generator) -> Floats:
    """[resamples, runs]: runs of every data set drawn with replacement among its own."""
    return np.concatenate([v[rng.integers(len(v), size=(_RESAMPLES, len(v)))] for v in runs], axis=1)


def _trimmed(values: Floats) -> Floats:
    """Mean of the middle half along the last axis; the runs at its borders count with the share that lies inside."""
    n = values.shape[-1]
    place = np.arange(n)
    weight = np.clip(np.minimum(place + 1, 0.75 * n) - np.maximum(place, 0.25 * n), 0, None)
    return (np.sort(values, axis=-1) * weight).sum(-1) / weight.sum()
