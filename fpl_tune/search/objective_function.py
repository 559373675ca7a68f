"""A study's search as an objective for plain Optuna: `study.optimize(fpl_tune.objective("pfedmoap_search"))`."""

from __future__ import annotations

import math
import threading
from typing import Literal

import optuna
import torch
from optuna.terminator import report_cross_validation_scores
from optuna.trial import TrialState

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import cache_root
from fpl_tune.search.components import quiet
from fpl_tune.search.samplers import directions_of
from fpl_tune.search.search import Search
from fpl_tune.search.space import stored
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.results import figure
from fpl_tune.study.status import Status

_loading = threading.Lock()  # threads of `n_jobs` share towers and data, which are loaded once


class Objective:
    """Suggests a point of a study's search space, runs it, and returns the study's objectives.

    Values are means over seeds, equal to those of `fpl-tune study`, as are the trial's user attributes. Every trial
    reports its figures by seed to Optuna's terminators. A point that a complete trial has is not run again.

    Args:
        study: name or file of a study with a search.
        overrides: `key=value`, in the grammar of the command line.
        report: what Optuna's pruners receive as steps. "rounds": every evaluated round, as its mean over seeds, which
            run together; for `MedianPruner`, `HyperbandPruner` and others that compare curves. "seeds": every seed's
            value, one seed after the other; for `WilcoxonPruner`.

    Raises:
        ConfigError: the study has no search, several cells of axes, or a value that is refused.
    """

    def __init__(self, study: str, *overrides: str, report: Literal["rounds", "seeds"] = "rounds") -> None:
        if report not in ("rounds", "seeds"):
            raise ConfigError(f"report must be 'rounds' or 'seeds', but is {report!r}.")
        self.report = report
        self.spec = config.compose_study(study, overrides)
        search = Search.plan(self.spec)
        parts = search.parts if search is not None else []
        if len(parts) != 1:
            raise ConfigError(
                f"objective needs a study with one search, but {study} has {len(parts) or 'none'}. Write "
                "search.sampler=tpe, and give each axis one value."
            )
        self._part = part = parts[0]
        self.directions = directions_of(self.spec.search)
        """For `optuna.create_study`."""
        self.published = [stored(part.space.complete(p, part.node, part.varied)) for p in part.space.published]
        """Published settings, for `study.enqueue_trial`."""

    def __call__(self, trial: optuna.Trial) -> float | tuple[float, ...]:
        """Runs a trial.

        Raises:
            ConfigError: the study of Optuna has other directions.
            optuna.TrialPruned: the pruner stops it, training diverges, or the method refuses the combination.
        """
        if (given := trial.study.directions) != self.directions:
            raise ConfigError(
                f"The study of Optuna must {' and '.join(d.name.lower() for d in self.directions)} "
                f"{', '.join(self.spec.search.objectives)}, but is to {' and '.join(d.name.lower() for d in given)}. "
                "Write optuna.create_study(directions=search.directions), where search is this objective."
            )
        if trial.study.metric_names is None:
            with quiet():
                trial.study.set_metric_names(self.spec.search.objectives)  # for people, such as in optuna-dashboard
        part = self._part
        params = part.space.suggest(trial, part.node, part.varied)
        try:
            run = part.at(params)
        except ConfigError as problem:
            raise optuna.TrialPruned(str(problem)) from None
        key = config.identity(run)
        done = trial.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        verdict = next((t for t in done if t.user_attrs.get("cell") == key), None)
        if verdict is None:
            histories = self._histories(trial, run)
            verdict = part.verdict(key, {h[0]["seed"]: ({"status": Status.DONE}, h) for h in histories})
        for name, value in verdict.user_attrs.items():
            trial.set_user_attr(name, value)
        if verdict.values is None:
            return math.nan
        if len(verdict.values) > 1:
            return tuple(verdict.values)
        if verdict.user_attrs["n"] > 1:
            with quiet():
                scores = verdict.user_attrs["by_seed"][self.spec.search.objectives[0]]
                report_cross_validation_scores(trial, scores)
        return verdict.values[0]

    def _histories(self, trial: optuna.Trial, run: RunSpec) -> list[tuple[Record, ...]]:
        """Runs the seeds, reports to the pruner, and returns the history of each seed."""
        seeds = self.spec.seed_list()
        if self.report == "rounds":
            return self._simulate(trial, run, seeds)
        histories: list[tuple[Record, ...]] = []
        for seed in seeds:
            histories += self._simulate(trial, run, [seed])
            if len(self.spec.search.objectives) == 1:
                trial.report(figure(histories[-1], self.spec.search.objectives[0], self._part.rule), seed)
                if seed != seeds[-1] and trial.should_prune():
                    raise optuna.TrialPruned(f"pruned after seed {seed}")
        return histories

    def _simulate(self, trial: optuna.Trial, run: RunSpec, seeds: list[int]) -> list[tuple[Record, ...]]:
        """Runs seeds together; reports rounds where those are the steps."""
        execution, names = self.spec.execution, self.spec.search.objectives
        device = resolve(execution.device)
        torch.set_num_threads(execution.threads or threads_of(run, device))
        with _loading:
            simulation = Simulation(
                run,
                seeds,
                cache_dir=cache_root(),
                device=device,
                block=execution.block,
                graphs=None if execution.graphs == "auto" else execution.graphs,
            )
        rounds: list[list[Record]] = []
        while not simulation.done:
            try:
                rounds.append(simulation.step())
            except Diverged as problem:
                raise optuna.TrialPruned(str(problem)) from None
            if self.report == "rounds" and len(names) == 1 and names[0] in rounds[-1][0]:
                trial.report(math.fsum(record[names[0]] for record in rounds[-1]) / len(rounds[-1]), simulation.round)
                if not simulation.done and trial.should_prune():
                    raise optuna.TrialPruned(f"pruned after round {simulation.round}")
        return list(zip(*rounds, strict=True))


def objective(study: str, *overrides: str, report: Literal["rounds", "seeds"] = "rounds") -> Objective:
    """The search of a study as an objective for `optuna.Study.optimize`.

    Args:
        study: name or file of a study with a search.
        overrides: `key=value`, in the grammar of the command line.
        report: the steps that Optuna's pruners receive: evaluated rounds, or seeds (`WilcoxonPruner`).

    Raises:
        ConfigError: the study has no search, several cells of axes, or a value that is refused.

    Example:
        >>> search = fpl_tune.objective("pfedmoap_search", "seeds=1")
        >>> study = optuna.create_study(directions=search.directions, storage="sqlite:///search.db")
        >>> study.optimize(search, n_trials=20, n_jobs=2)
    """
    return Objective(study, *overrides, report=report)
