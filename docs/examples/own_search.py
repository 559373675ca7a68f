"""A search of your own in Optuna: the space, seeds and objective of a study, with a pruner that studies do not have."""

import optuna

import fpl_tune

objective = fpl_tune.objective("pfedmoap_search", {"protocol": "quick", "seeds": 1})
search = optuna.create_study(
    study_name="median",
    storage="sqlite:///median.db",
    load_if_exists=True,  # the same command continues
    directions=objective.directions,
    sampler=optuna.samplers.TPESampler(seed=1),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1),  # a step is an evaluated round
)
for point in objective.published:
    search.enqueue_trial(point, skip_if_exists=True)  # the paper's settings first
search.optimize(objective, n_trials=4)  # n_jobs=2 runs two trials at once
print(search.best_params, search.best_value)
