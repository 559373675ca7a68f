"""A Tuner of your own in Ray Tune, with its scheduler: a trial is a federated simulation, a step one round of it."""

from ray import tune
from ray.tune.schedulers import ASHAScheduler

import fpl_tune

tuner = tune.Tuner(
    fpl_tune.FederatedTrainable,
    param_space={"method": "pfedmoap", "method.lam": tune.uniform(0, 5), "protocol": "quick", "seeds": 2},
    tune_config=tune.TuneConfig(
        metric="val/acc_mean",
        mode="max",
        num_samples=3,
        scheduler=ASHAScheduler(max_t=3),  # the rounds of protocol=quick
        reuse_actors=True,
    ),
)
best = tuner.fit().get_best_result()
fields, figures = best.config or {}, best.metrics or {}
print(fields["method.lam"], figures["val/acc_mean"], figures["test/acc_mean"])
