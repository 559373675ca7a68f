"""The bias that selection by noisy validation values adds to the value of the best cell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fpl_tune.analysis.tables import by_seed


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
    left_out: int
    """Cells that lack a seed of the others."""


def overtuning(validation: pd.DataFrame, test: pd.DataFrame) -> Overtuning:
    """Measures what selection by the validation mean costs and how optimistic the winner's test value is.

    A seed shares its noise between validation and test values of a cell (one trained model gives both), so that even
    the test value of the winner is optimistic; the nested estimate is not, and is a little pessimistic instead, since
    it selects by one seed less.

    Args:
        validation: see `tables.read`.
        test: likewise.

    Raises:
        ValueError: no cell has validation and test values of all seeds.
    """
    val, out = by_seed(validation).align(by_seed(test), join="inner")
    whole = (val + out).dropna(axis=1, how="all").dropna()
    if whole.empty:
        raise ValueError("No cell has validation and test values of all seeds.")
    lost = len(val) - len(whole)
    val, out = (table.loc[whole.index, whole.columns] for table in (val, out))
    validated, tested = val.mean(axis=1), out.mean(axis=1)
    winner, best = validated.idxmax(), tested.idxmax()
    nested = [out.at[val.drop(columns=seed).mean(axis=1).idxmax(), seed] for seed in out if len(out.columns) > 1]
    corrected = float(np.mean(nested)) if nested else math.nan
    return Overtuning(
        str(winner), float(validated[winner]), float(tested[winner]), str(best), float(tested[best] - tested[winner]),
        corrected, len(out), len(out.columns), lost,
    )  # fmt: skip
