"""Selection among cells with noisy means, by validation values alone, and the bias that it adds to the best one's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, special

from fpl_tune.analysis.tables import Floats, by_seed, present, seed_means

RULES = ("mean", "lower_bound")
"""`mean`: the highest mean; `lower_bound`: the highest mean minus three standard errors."""

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
    return scores_of(by_seed(frame))


def scores_of(values: pd.DataFrame) -> pd.DataFrame:
    """Computes `scores` from values [cells, seeds]."""
    count = values.count(axis=1)
    mean = pd.Series(seed_means(values.to_numpy()), values.index)
    error = pd.Series(_errors(values.to_numpy(), count.to_numpy()), values.index)
    bound = mean - _WIDTH * error.fillna(0.0)
    return pd.DataFrame({"mean": mean, "error": error, "lower_bound": bound, "seeds": count})


def select(frame: pd.DataFrame, rule: str = "mean", *, preferred: Sequence[str] = ()) -> str:
    """Chooses a cell by validation values.

    Args:
        frame: validation values, see `tables.read`.
        rule: one of `RULES`.
        preferred: cells from the most to the least preferred one, for instance the published configuration first, then
            by cost; decides ties. Cells that are not listed follow in the frame's order.

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
    return found[rule]


def _errors(values: Floats, count: Floats) -> Floats:
    """Moderated standard error [cells] of the means of values [cells, seeds]."""
    many = count > 1
    if many.sum() < 1:
        return np.full(len(values), math.nan)
    rest = values[:, np.asarray(present(values).any(axis=0))]  # a copy
    for _ in range(20):  # a seed's effect is its median over cells, so that an unstable cell does not move the others
        rest -= seed_means(rest)[:, None]
        if len(values) > 2:
            rest -= np.nanmedian(rest, axis=0)
    rest -= seed_means(rest)[:, None]
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


@dataclass(frozen=True)
class Overtuning:
    """The validation winner on the test set."""

    winner: str
    validation: float
    """Mean validation value of the winner: optimistic, since it was chosen by it."""
    test: float
    """Mean test value of the winner."""
    best: str
    """Cell of the highest mean test value, for comparison only: test values select nothing."""
    loss: float
    """Test value that the winner loses against `best`; too large by the noise that made `best` the best."""
    corrected: float
    """Test value of the winner corrected for selection: for every seed, the winner by the validation values of the
    other seeds is tested on that seed (nested selection). NaN below two seeds."""
    cells: int
    seeds: int
    note: str = ""


def overtuning(validation: pd.DataFrame, test: pd.DataFrame, *, rule: str = "mean") -> Overtuning:
    """Measures what selection by validation costs and how optimistic the winner's test value is.

    A seed shares its noise between validation and test values of a cell (one trained model gives both), so that even
    the test value of the winner is optimistic; the nested estimate is not, and is a little pessimistic instead, since
    it selects by one seed less.

    Args:
        validation: see `tables.read`.
        test: likewise. Cells that lack a seed of the others are left out.
        rule: of selection, one of `RULES`.

    Returns:
        The figures.

    Raises:
        ValueError: no cell has validation and test values of all seeds.
    """
    val, out = by_seed(validation), by_seed(test)
    cells, seeds = ([name for name in mine if name in theirs] for mine, theirs in zip(val.axes, out.axes, strict=True))
    both = (val + out).loc[cells, seeds].dropna(axis=1, how="all")
    whole = both.dropna()
    if whole.empty:
        raise ValueError("No cell has validation and test values of all seeds.")
    lost = len(cells) - len(whole)
    notes = [f"{lost} of {len(cells)} cells left out: seeds missing"] if lost else []
    val, out = (table.loc[whole.index, whole.columns] for table in (val, out))
    winner = _winner(val, rule)
    validated, means = (pd.Series(table.to_numpy().mean(1), table.index).to_dict() for table in (val, out))
    nested = [out.loc[_winner(val.drop(columns=seed), rule), seed] for seed in out] if len(out.columns) > 1 else []
    if not nested:
        notes.append("1 seed: no correction")
    best = max(means, key=lambda cell: means[cell])
    return Overtuning(
        winner, float(validated[winner]), float(means[winner]), best, float(means[best] - means[winner]),
        float(np.mean(nested)) if nested else math.nan, len(out), len(out.columns), "; ".join(notes),
    )  # fmt: skip


def _winner(values: pd.DataFrame, rule: str) -> str:
    return select_by(scores_of(values), rule)
