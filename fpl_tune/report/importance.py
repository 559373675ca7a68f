"""Importance of searched fields by Optuna's evaluators, over all trials of a search at equal cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import BaseDistribution
from optuna.importance import BaseImportanceEvaluator, FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

from fpl_tune.search.components import quiet
from fpl_tune.study.cells import Cell

if TYPE_CHECKING:
    from fpl_tune.search.space import Space

LEAST, PER_FIELD = 10, 3
"""Minimum number of trials: in all, and for each field that varies."""
MOST = 300
"""Trials from which fANOVA and chance are computed, drawn if there are more: a thousand would take half a minute."""
_DRAWS = 40  # permutations of the values, for what chance gives


def importance(
    cells: Sequence[Cell], values: Mapping[str, float], space: Space, *, higher: bool = True
) -> pd.DataFrame:
    """Computes what searched fields explain, by PED-ANOVA (Watanabe et al. 2023) and fANOVA (Hutter et al. 2014).

    PED-ANOVA says how much a field decides whether a trial is among the best tenth, fANOVA its share of the variance of
    all trials. Shares of either sum to 1.

    Args:
        cells: trials of one search.
        values: the objective by the cell's id, of equal rounds and seeds; trials without one are left out.
        space: the search's space.
        higher: larger values are better.

    Returns:
        Index: dotted field, the most important first by PED-ANOVA; columns `ped_anova`, `fanova` and `chance`, the
        share by PED-ANOVA that a field without effect exceeds once in 20 times. Empty where trials are too few, where
        their values do not vary, or with fewer than two fields that all trials have.
    """
    params = {param.name: param for param in space.params}
    valued = [cell for cell in cells if cell.id in values and all(
        params[name].holds(cell.varied[name]) for name in params if name in cell.varied)]  # fmt: skip
    fields = [name for name in params if all(name in cell.varied for cell in valued)
              and len({repr(cell.varied[name]) for cell in valued}) > 1]  # fmt: skip
    result = pd.DataFrame(columns=["ped_anova", "fanova", "chance"], dtype=float)
    y = np.array([values[cell.id] for cell in valued])
    if len(fields) < 2 or len(valued) < max(LEAST, PER_FIELD * len(fields)) or np.ptp(y) <= 1e-9:
        return result
    distributions: dict[str, BaseDistribution] = {name: params[name].distribution for name in fields}

    def shares(evaluator: BaseImportanceEvaluator, cells: Sequence[Cell], numbers: np.ndarray) -> dict[str, float]:
        study = optuna.create_study(direction="maximize" if higher else "minimize")
        study.add_trials([
            optuna.trial.create_trial(
                params={name: cell.varied[name] for name in fields}, distributions=distributions, value=float(number)
            )
            for cell, number in zip(cells, numbers, strict=True)
        ])  # fmt: skip
        return {
            n: float(share) for n, share in optuna.importance.get_param_importances(study, evaluator=evaluator).items()
        }

    rng, verbosity = np.random.default_rng(0), optuna.logging.get_verbosity()
    drawn = np.sort(rng.permutation(len(valued))[:MOST])
    some = [valued[i] for i in drawn]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with quiet():
            ped, fanova = PedAnovaImportanceEvaluator(), FanovaImportanceEvaluator(seed=0)
            result["ped_anova"] = pd.Series(shares(ped, valued, y), fields)
            result["fanova"] = pd.Series(shares(fanova, some, y[drawn]), fields)
            chance = pd.DataFrame([shares(ped, some, rng.permutation(y[drawn])) for _ in range(_DRAWS)])
    finally:
        optuna.logging.set_verbosity(verbosity)
    result["chance"] = chance.quantile(0.95)
    return result.sort_values("ped_anova", ascending=False)
