"""A study's search as an objective for plain Optuna: `study.optimize(fpl_tune.objective("pfedmoap_search"))`."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import optuna
import torch

from fpl_tune import config
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import cache_root
from fpl_tune.search.samplers import directions_of
from fpl_tune.search.search import Search
from fpl_tune.search.space import stored
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.results import aggregate, figure

_loading = threading.Lock()  # threads of `n_jobs` share towers and data, which are loaded once


class Objective:
    """Suggests a point of a study's search space, runs it, and returns the study's objectives.

    Every evaluated round reports the validation figure, so that Optuna's pruners work. All seeds of a trial run
    together, and figures are means over them, equal to those of `fpl-tune study`.

    Args:
        study: name or file of a study with a search.
        overrides: `key=value`, in the grammar of the command line.

    Raises:
        ConfigError: the study has no search, several cells of axes, or a value that is refused.
    """

    def __init__(self, study: str, *overrides: str) -> None:
        self.spec, node = config.compose_study(study, overrides)
        search = Search.plan(self.spec, node)
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
            optuna.TrialPruned: the pruner stops it, training diverges, or the method refuses the combination.
        """
        part, names = self._part, self.spec.search.objectives
        params = part.space.suggest(trial, part.node, part.varied)
        try:
            run = part.composer.at({**part.varied, **params})
        except ConfigError as problem:
            raise optuna.TrialPruned(str(problem)) from None
        execution, seeds = self.spec.execution, self.spec.seed_list()
        trial.set_user_attr("cell", config.identity(run))
        trial.set_user_attr("seeds", seeds)
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
            if len(names) == 1 and names[0] in rounds[-1][0]:
                trial.report(_mean(record[names[0]] for record in rounds[-1]), simulation.round)
                if not simulation.done and trial.should_prune():
                    raise optuna.TrialPruned(f"pruned after round {simulation.round}")
        histories = list(zip(*rounds, strict=True))
        values = tuple(_mean(figure(history, name, part.rule) for history in histories) for name in names)
        return values[0] if len(values) == 1 else values


def objective(study: str, *overrides: str) -> Objective:
    """The search of a study as an objective for `optuna.Study.optimize`.

    Args:
        study: name or file of a study with a search.
        overrides: `key=value`, in the grammar of the command line.

    Raises:
        ConfigError: the study has no search, several cells of axes, or a value that is refused.

    Example:
        >>> search = fpl_tune.objective("pfedmoap_search", "seeds=1")
        >>> study = optuna.create_study(directions=search.directions, storage="sqlite:///search.db")
        >>> study.optimize(search, n_trials=20, n_jobs=2)
    """
    return Objective(study, *overrides)


def _mean(values: Iterable[Any]) -> float:
    return float(aggregate(list(values))["mean"])
