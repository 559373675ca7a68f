"""A study's search as an objective for plain Optuna: `study.optimize(fpl_tune.objective("pfedmoap_search"))`."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, Literal

import optuna
import torch
from optuna.trial import TrialState

from fpl_tune import config
from fpl_tune.config import RunSpec
from fpl_tune.core.device import resolve
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.paths import cache_root
from fpl_tune.search.ask import figures_of
from fpl_tune.search.components import quiet
from fpl_tune.search.compose import compose
from fpl_tune.search.limits import rejection
from fpl_tune.search.samplers import directions_of
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.simulation.worlds import threads_of
from fpl_tune.study.cells import changed_parts
from fpl_tune.study.fingerprints import fingerprints
from fpl_tune.study.results import value_of

_loading = threading.Lock()  # threads of `n_jobs` share towers and data, which are loaded once


class Objective:
    """Suggests a point of a study's search space, runs it, and returns the study's objectives.

    Values are means over seeds, equal to those of `fpl-tune study`. So are the trial's user attributes, which include
    metrics by seed and fingerprints. A point of a complete trial does not run again, unless seeds, objectives,
    reporting rule, method, data or weights have changed.

    Args:
        study: name or file of a study with a search.
        overrides: a mapping of dotted field names to Python values, as in `fpl_tune.run`; or strings `"key=value"`, in
            the syntax of the command line.
        report: the steps that Optuna's pruners receive. "rounds": the mean over seeds after every evaluated round, with
            seeds that run together; for `MedianPruner`, `HyperbandPruner` and others that compare curves. "seeds": the
            value of every seed, one seed after another; for `WilcoxonPruner`.

    Raises:
        ConfigError: the study has no search, several cells of axes, or an invalid value.

    Example:
        >>> import fpl_tune, optuna
        >>> search = fpl_tune.objective("pfedmoap_search", {"seeds": 1, "protocol": "quick"})
        >>> study = optuna.create_study(directions=search.directions, storage="sqlite:///search.db")
        >>> study.optimize(search, n_trials=2)
        >>> [trial.state.name for trial in study.trials]
        ['COMPLETE', 'COMPLETE']
    """

    def __init__(
        self, study: str, *overrides: str | Mapping[str, Any], report: Literal["rounds", "seeds"] = "rounds"
    ) -> None:
        if report not in ("rounds", "seeds"):
            raise ConfigError(f"report must be 'rounds' or 'seeds', but is {report!r}.")
        self.report = report
        composed = compose(study, overrides)
        self.spec = composed.spec
        searches = composed.search.parts if composed.search is not None else []
        if len(searches) != 1:
            raise ConfigError(
                f"objective needs a study with one search, but {study} has {len(searches) or 'none'}. Write "
                "search.sampler=auto, and give each axis one value."
            )
        self._search = searches[0]
        self.directions = directions_of(self.spec.search)
        """Directions for `optuna.create_study`."""
        self.published = self._search.points
        """Published points, for `study.enqueue_trial`."""

    def __call__(self, trial: optuna.Trial) -> float | tuple[float, ...]:
        """Runs a trial.

        Raises:
            ConfigError: the study of Optuna has other directions.
            optuna.TrialPruned: the pruner stops it, training diverges, or the method rejects the combination.
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
        search = self._search
        params = search.space.suggest(trial, search.node, search.varied)
        try:
            run = search.at(params)
            rejection(self.spec.search.limits)(run)
        except ConfigError as problem:
            raise optuna.TrialPruned(str(problem)) from None
        key, prints = config.identity(run), fingerprints(run)
        names = [*self.spec.search.objectives]
        asked = {"cell": key, "seeds": sorted(self.spec.seed_list()), "objectives": names, "rule": search.rule}
        asked |= {"limits": dict(limits)} if (limits := self.spec.search.limits) else {}
        done = trial.study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        same = (t for t in done if asked.items() <= t.user_attrs.items())
        earlier = next((t for t in same if not changed_parts(t.user_attrs.get("fingerprints", {}), prints)), None)
        if earlier is None:
            histories = self._histories(trial, run)
            by_seed = {history[0]["seed"]: history for history in histories}
            figures = figures_of(self.spec.search, search.rule, key, by_seed, run.rounds, whole=True)
            values, attrs = figures.values, {**figures.attrs, **asked, "fingerprints": prints}
            excess = figures.excess
        else:
            values, attrs, excess = earlier.values, earlier.user_attrs, earlier.constraints
        for name, value in attrs.items():
            trial.set_user_attr(name, value)
        for name, over in excess.items():
            trial.set_constraint(name, over)
        if values is None:
            return math.nan
        return tuple(values) if len(values) > 1 else values[0]

    def _histories(self, trial: optuna.Trial, run: RunSpec) -> list[tuple[Record, ...]]:
        """Runs the seeds, reports to the pruner, and returns the history of each seed."""
        execution, names, seeds = self.spec.execution, self.spec.search.objectives, self.spec.seed_list()
        by_seed = self.report == "seeds"
        device = resolve(execution.device)
        torch.set_num_threads(execution.threads or threads_of(run, device))
        histories: list[tuple[Record, ...]] = []
        for group in [[seed] for seed in seeds] if by_seed else [seeds]:
            with _loading:
                simulation = Simulation(
                    run,
                    group,
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
                if not by_seed and len(names) == 1 and names[0] in rounds[-1][0]:
                    value = math.fsum(record[names[0]] for record in rounds[-1]) / len(seeds)
                    _report(trial, value, simulation.round, last=simulation.done)
            histories += zip(*rounds, strict=True)
            if by_seed and len(names) == 1:
                value = value_of(histories[-1], names[0], self._search.rule)
                _report(trial, value, group[0], last=group[0] == seeds[-1])
        return histories


def _report(trial: optuna.Trial, value: float, step: int, *, last: bool) -> None:
    """Reports a step. Raises `optuna.TrialPruned` if the pruner stops the trial before its last step."""
    trial.report(value, step)
    if not last and trial.should_prune():
        raise optuna.TrialPruned(f"pruned after step {step}")


objective = Objective
