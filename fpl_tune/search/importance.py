"""Importance of hyper-parameters by Optuna's models of the whole search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances


def optuna_importance(
    cells: pd.DataFrame, fields: Sequence[str], searched: Mapping[str, BaseDistribution]
) -> pd.DataFrame:
    """Fits fANOVA (Hutter et al. 2014) and PED-ANOVA (Watanabe et al. 2023) to cells.

    Args:
        cells: one row per cell, columns `value` and the fields, without missing values.
        fields: names of columns.
        searched: the distributions of the search by field. A value outside, such as a published one, widens its
            distribution; a field without one takes the range or the choices of its values.

    Returns:
        Rows `field`, `fanova`, `ped_anova`: shares that sum to 1 over the fields.
    """
    columns = {field: cells[field].tolist() for field in fields if cells[field].map(repr).nunique() > 1}
    distributions = {field: _distribution(values, searched.get(field)) for field, values in columns.items()}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            optuna.create_trial(
                params={field: values[i] for field, values in columns.items()}, distributions=distributions, value=value
            )
            for i, value in enumerate(cells["value"].astype(float).tolist())
        ]
    )
    found = {
        "fanova": get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0)),
        "ped_anova": get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()),
    }
    return pd.DataFrame({"field": list(columns), **{n: [v[f] for f in columns] for n, v in found.items()}})


def _distribution(values: Sequence[Any], known: BaseDistribution | None) -> BaseDistribution:
    if isinstance(known, FloatDistribution):
        return FloatDistribution(min(known.low, *values), max(known.high, *values), log=known.log)
    if isinstance(known, IntDistribution) and all(isinstance(value, int) for value in values):
        return IntDistribution(min(known.low, *values), max(known.high, *values), log=known.log)
    if isinstance(known, CategoricalDistribution) and set(values) <= set(known.choices):
        return known
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        low, high = float(min(values)), float(max(values))
        return FloatDistribution(low, high, log=low > 0 and high / low >= 50)
    return CategoricalDistribution(list(dict.fromkeys(values)))
