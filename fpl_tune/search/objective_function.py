"""A study's search as an objective for plain Optuna: `study.optimize(fpl_tune.objective("pfedmoap_search"))`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import optuna
import torch

from fpl_tune import config
from fpl_tune.device import resolve
from fpl_tune.divergence import Diverged
from fpl_tune.errors import ConfigError
from fpl_tune.paths import cache_root
from fpl_tune.search.samplers import directions_of
from fpl_tune.search.search import Search
from fpl_tune.search.space import stored
from fpl_tune.study.results import aggregate, figure
from fpl_tune.trial import Record, Trial
from fpl_tune.worlds import threads_of

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
        if search is None:
            raise ConfigError(f"objective needs a study with a search, but {study} has none. Write search.sampler=tpe.")
        if len(search.parts) != 1:
            raise ConfigError(
                f"objective searches one cell of the axes, but {study} has {len(search.parts)}. Give each axis one "
                "value."
            )
        self._part = part = search.parts[0]
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
        torch.set_num_threads(execution.threads or threads_of(run))
        with _loading:
            device = resolve(execution.device)
            graphs = None if execution.graphs == "auto" else execution.graphs
            simulation = Trial(run, seeds, cache_dir=cache_root(), device=device, block=execution.block, graphs=graphs)
        histories: list[list[Record]] = [[] for _ in seeds]
        while not simulation.done:
            try:
                records = simulation.step()
            except Diverged as problem:
                raise optuna.TrialPruned(str(problem)) from None
            for history, record in zip(histories, records, strict=True):
                history.append(record)
            if len(names) == 1 and names[0] in records[0]:
                trial.report(_mean([record[names[0]] for record in records]), simulation.round)
                if not simulation.done and trial.should_prune():
                    raise optuna.TrialPruned(f"pruned after round {simulation.round}")
        values = tuple(_mean([figure(history, name, part.rule) for history in histories]) for name in names)
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


def _mean(values: Sequence[Any]) -> float:
    return float(aggregate(values)["mean"])
