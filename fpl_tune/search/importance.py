"""Importance of hyper-parameters by Optuna's models of the whole search space."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import optuna
import pandas as pd
from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from fpl_tune.search.components import quiet
from fpl_tune.search.record import FILE
from fpl_tune.study.results import VAL


def optuna_importance(folder: Path, cells: Collection[str]) -> pd.DataFrame:
    """Fits fANOVA (Hutter et al. 2014) and PED-ANOVA (Watanabe et al. 2023) to the trials of a study's searches.

    Fields have the ranges that were searched, as Optuna recorded them.

    Args:
        folder: the study's.
        cells: ids of cells; trials of others are left out.

    Returns:
        Rows `field`, `fanova`, `ped_anova`: shares of the validation accuracy's variance that sum to 1 over the fields
        that all trials have; no row where nothing can be fitted.
    """
    trials: list[FrozenTrial] = []
    if (folder / FILE).is_file():
        storage = JournalStorage(JournalFileBackend(str(folder / FILE)))  # only read: the study may be running
        for study in (optuna.load_study(study_name=n, storage=storage) for n in optuna.get_all_study_names(storage)):
            if VAL in (study.metric_names or ()):
                at = (study.metric_names or []).index(VAL)
                done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
                trials += [
                    optuna.create_trial(params=t.params, distributions=t.distributions, value=t.values[at])
                    for t in done
                    if t.user_attrs.get("cell") in cells
                ]
    if len(trials) < 2 or len({trial.value for trial in trials}) < 2:
        return pd.DataFrame(columns=["field", "fanova", "ped_anova"])
    pooled = optuna.create_study(direction="maximize")
    pooled.add_trials(trials)
    with quiet():
        fanova = get_param_importances(pooled, evaluator=FanovaImportanceEvaluator(seed=0))
        ped_anova = get_param_importances(pooled, evaluator=PedAnovaImportanceEvaluator())
    rows = [{"field": field, "fanova": fanova[field], "ped_anova": ped_anova[field]} for field in fanova]
    return pd.DataFrame(rows, columns=["field", "fanova", "ped_anova"])
