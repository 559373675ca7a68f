"""Searchers of other packages, replayed on the tables; those that are not installed are left out.

python -m venv peers && peers/bin/pip install -e . cmaes syne-tune DEHB smac
peers/bin/python benchmarks/bench.py search
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import datetime
import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from bench_replay import Exhausted, Replay, Searcher
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler

from fpl_tune.core.pareto import layers, spread

REDUCTION = 3
"""Reduction factor of all: the default of each package."""


def syne_tune_search(name: str, replay: Replay, order: int) -> None:
    """Searches with a scheduler of Syne Tune, which stops trials at its rungs; published points come first."""
    from syne_tune import config_space as cs
    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer import baselines

    table, space = replay.table, dict[str, Any]()
    for field, d in table.space.items():
        if isinstance(d, CategoricalDistribution):
            space[field] = cs.choice(list(d.choices))
        else:
            assert isinstance(d, FloatDistribution)
            space[field] = cs.loguniform(d.low, d.high) if d.log else cs.uniform(d.low, d.high)
    halving = {"time_attr": "round", "max_t": replay.last, "grace_period": int(table.rounds[0])}
    scheduler = getattr(baselines, name)(
        space,
        metric="accuracy",
        do_minimize=False,
        random_seed=order,
        points_to_evaluate=[dict(point) for point in table.points[: table.published]],
        **(halving | {"reduction_factor": REDUCTION} if name.startswith("ASHA") or name == "BOHB" else {}),
    )
    values, number = table.val.mean((1, 3)), 0
    try:
        while (suggested := scheduler.suggest()) is not None:
            trial = Trial(number, suggested.config, datetime.datetime.now())
            number += 1
            scheduler.on_trial_add(trial)
            index, before = replay.take(trial.config), 0
            for step, value in zip(map(int, table.rounds), values[index], strict=True):
                replay.pay(step - before, replay.seeds)
                before, result = step, {"accuracy": float(value), "round": step}
                if math.isnan(value):
                    scheduler.on_trial_error(trial)
                    break
                if step == replay.last:
                    replay.complete(index)
                    scheduler.on_trial_complete(trial, result)
                elif name in ("BORE", "CQR"):
                    continue  # of one fidelity
                elif scheduler.on_trial_result(trial, result) == "STOP":
                    scheduler.on_trial_remove(trial)
                    break
    except Exhausted:
        return


def mo_asha_search(replay: Replay, order: int) -> None:
    """Searches with the rule of Syne Tune's MO-ASHA (Schmucker et al., 2021, https://arxiv.org/abs/2106.12639) and
    random suggestions; published points come first. It stands in where the package is missing.

    Rungs are the first evaluated round and its multiples by powers of the reduction factor. A trial that reaches a rung
    continues if it is among the best share of the trials that have reached it, itself included, or the first of them;
    otherwise it is stopped for good. Trials are ranked by fronts, and within a front by an ε-net.
    """
    table, sampler = replay.table, RandomSampler(seed=order)
    study = optuna.create_study(directions=["maximize", *("minimize" for _ in table.costs)], sampler=sampler)
    for point in table.points[: table.published]:
        study.enqueue_trial(point)
    rungs = {int(table.rounds[0]) * REDUCTION**k: list[tuple[float, ...]]() for k in range(10)}
    values = table.val.mean((1, 3))
    try:
        while True:
            trial = study.ask(table.space)
            index, before = replay.take(trial.params), 0
            costs = [-float(costs[index]) for costs in table.costs.values()]
            for step, value in zip(map(int, table.rounds), values[index], strict=True):
                replay.pay(step - before, replay.seeds)
                before = step
                if math.isnan(value):
                    break
                if step == replay.last:
                    replay.complete(index)
                elif step in rungs:
                    reached = rungs[step]
                    reached.append((float(value), *costs))
                    if len(reached) > 1 and ranked(reached).index(len(reached) - 1) + 1 > len(reached) / REDUCTION:
                        break
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    except Exhausted:
        return


def ranked(points: Sequence[Sequence[float]]) -> list[int]:
    """The places of points from the best to the worst, by fronts and within a front by an ε-net."""
    return [front[place] for front in layers(points) for place in spread([points[i] for i in front])]


class Resumed:
    """Configurations that a package asks for at one budget after another: rounds that are paid once continue."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._taken: dict[tuple[Any, ...], tuple[int, int]] = {}

    def value(self, point: dict[str, Any], budget: float) -> float:
        """Mean validation accuracy after the last evaluation that the budget reaches, at least the first.

        0 for a configuration that diverges until then, so that searchers without a word for it turn away.
        """
        replay, table = self.replay, self.replay.table
        key = tuple(point[name] for name in table.space)
        index, paid = self._taken.get(key) or (replay.take(point), 0)
        column = max(0, int((table.rounds <= round(budget)).sum()) - 1)
        broken = np.flatnonzero(np.isnan(table.val[index, :, : column + 1].mean((0, 2))))
        until = int(table.rounds[broken[0] if len(broken) else column])
        if until > paid:
            replay.pay(until - paid, replay.seeds)
            if until == replay.last and not len(broken):
                replay.complete(index)
        self._taken[key] = index, max(paid, until)
        return 0.0 if len(broken) else float(table.val[index, :, column].mean())


def _configuration_space(replay: Replay, order: int) -> Any:
    from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, UniformFloatHyperparameter

    space = ConfigurationSpace(seed=order)
    for name, d in replay.table.space.items():
        if isinstance(d, CategoricalDistribution):
            space.add(CategoricalHyperparameter(name, list(d.choices)))
        else:
            assert isinstance(d, FloatDistribution | IntDistribution)
            space.add(UniformFloatHyperparameter(name, d.low, d.high, log=d.log))
    return space


def _plain(configuration: Any) -> dict[str, Any]:
    """Values of a configuration as Python's own types."""
    return {name: value.item() if hasattr(value, "item") else value for name, value in dict(configuration).items()}


def dehb_search(replay: Replay, order: int) -> None:
    """Searches with DEHB, which takes no published points."""
    from dehb import DEHB

    resumed = Resumed(replay)
    with tempfile.TemporaryDirectory() as folder:
        search = DEHB(
            cs=_configuration_space(replay, order),
            min_fidelity=int(replay.table.rounds[0]),
            max_fidelity=replay.last,
            eta=REDUCTION,
            seed=order,
            n_workers=1,
            output_path=folder,
            save_freq=None,
            log_level="ERROR",
        )
        try:
            while True:
                job = search.ask()
                point = _plain(
                    search.vector_to_configspace(job["config"]) if hasattr(job["config"], "shape") else job["config"]
                )
                fitness = -resumed.value(point, job["fidelity"])
                search.tell(job, {"fitness": fitness, "cost": job["fidelity"]})
        except Exhausted:
            return


def _never_called(config: Any, seed: int = 0, budget: float = 0) -> float:
    """Stands for the target function, whose arguments SMAC checks: this module asks and tells."""
    raise NotImplementedError


def smac_search(facade: str, replay: Replay, order: int) -> None:
    """Searches with a facade of SMAC; published points are configurations of its initial design."""
    import smac
    from ConfigSpace import Configuration
    from smac.runhistory.dataclasses import TrialValue

    table, space = replay.table, _configuration_space(replay, order)
    kind = getattr(smac, facade)
    with tempfile.TemporaryDirectory() as folder:
        fidelity = {"min_budget": int(table.rounds[0]), "max_budget": replay.last} if "Multi" in facade else {}
        scenario = smac.Scenario(
            space, n_trials=10_000, seed=order, deterministic=True, output_directory=Path(folder), **fidelity
        )
        published = [Configuration(space, values=point) for point in table.points[: table.published]]
        design = kind.get_initial_design(scenario, n_configs=10, additional_configs=published)
        search = kind(scenario, _never_called, initial_design=design, overwrite=True, logging_level=False)
        resumed = Resumed(replay)
        try:
            while True:
                info = search.ask()
                value = resumed.value(_plain(info.config), info.budget or replay.last)
                search.tell(info, TrialValue(cost=1 - value), save=False)
        except Exhausted:
            return


_KNOWN: dict[str, tuple[str, Callable[..., None]]] = {
    "Syne Tune ASHA": ("syne_tune", partial(syne_tune_search, "ASHA")),
    "Syne Tune ASHA + BORE": ("syne_tune", partial(syne_tune_search, "ASHABORE")),
    "Syne Tune ASHA + CQR": ("syne_tune", partial(syne_tune_search, "ASHACQR")),
    "Syne Tune BOHB": ("syne_tune", partial(syne_tune_search, "BOHB")),
    "SMAC, Hyperband": ("smac", partial(smac_search, "MultiFidelityFacade")),
    "SMAC": ("smac", partial(smac_search, "HyperparameterOptimizationFacade")),
    "DEHB": ("dehb", dehb_search),
}
PEERS: dict[str, Searcher] = {name: run for name, (module, run) in _KNOWN.items() if importlib.util.find_spec(module)}
