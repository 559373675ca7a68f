"""The sampler of a study: one instance per trial, checked before anything starts; and TPE over a finished table."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler, BruteForceSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from fpl_tune.config import SearchSpec
from fpl_tune.errors import ConfigError
from fpl_tune.method import derive
from fpl_tune.search import components
from fpl_tune.search.components import Component
from fpl_tune.search.space import Space, outward
from fpl_tune.study.results import MAXIMISED

NAMED_CONSTRAINTS = hasattr(optuna.trial.Trial, "set_constraint")  # since Optuna 5; before, a function of the trial
_BLIND = (RandomSampler, QMCSampler, BruteForceSampler)
"""Samplers that do not read results: objectives and constraints do not affect them."""
_PROBED = 14  # trials of a probe: more than the random ones that Optuna's samplers start with


class SamplerFactory:
    """Makes the sampler of each trial.

    A trial's sampler is seeded by the trial's number, so that a suggestion depends only on the results that were
    reported before it, not on the state of a process.

    Raises:
        ConfigError: the sampler or an argument is unknown, or it does not support the objectives or constraints.
    """

    def __init__(self, search: SearchSpec) -> None:
        self.search = search
        value = "random" if search.sampler == "grid" else search.sampler
        self.component: Component = components.find("samplers", value, "search.sampler", ("grid",))
        blind = issubclass(self.component.kind, _BLIND)
        if search.constraints and not blind and not self.component.accepts("constraints_func"):
            raise ConfigError(
                f"search.sampler={self.component.name} cannot do constraints, but search.constraints is "
                f"{list(search.constraints)}. Use sampler=tpe, gp or nsgaii, or remove the constraints."
            )
        self.make(1, "check")

    def make(self, number: int, key: str) -> BaseSampler:
        """The sampler of a trial.

        Args:
            number: of the trial within its search, from 0.
            key: name of the search in the database.
        """
        # A sequence of QMC is scrambled once: all its trials share the seed.
        part = 0 if issubclass(self.component.kind, QMCSampler) else number
        defaults: dict[str, Any] = {
            "seed": derive("search", self.search.seed, key, part) % 2**32,
            "warn_independent_sampling": False,
        }
        if self.component.default("n_startup_trials") == 10:
            # A third of the budget, at most ten trials, is drawn at random before the model is fitted.
            defaults["n_startup_trials"] = min(10, max(4, self.search.trials // 3))
        if issubclass(self.component.kind, TPESampler):
            defaults |= {"multivariate": True, "group": True, "constant_liar": True}
            defaults.pop("warn_independent_sampling")
        if self.search.constraints and not NAMED_CONSTRAINTS:
            defaults["constraints_func"] = _excesses
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self.component.build(**defaults)

    @property
    def directions(self) -> list[StudyDirection]:
        way = StudyDirection
        return [way.MAXIMIZE if name in MAXIMISED else way.MINIMIZE for name in self.search.objectives]

    def probe(self, space: Space, node: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Runs the sampler on simulated results.

        Raises:
            ConfigError: it does not support the objectives, or fails on the space.
        """
        if issubclass(self.component.kind, (*_BLIND, TPESampler)):
            return
        study = in_memory(self.directions)
        for number in range(_PROBED):
            try:
                study.sampler = self.make(number, "check")
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    trial = study.ask()
                    space.suggest(trial, node, given)
                    study.tell(trial, [((number * 7 + i) % 11) / 11 for i in range(len(self.directions))])
            except ConfigError:
                raise
            except ImportError as problem:
                raise ConfigError(
                    f"search.sampler={self.component.name} needs a package that is missing ({problem}). Install it."
                ) from None
            except Exception as problem:  # a third-party sampler may raise anything
                what = f"search.objectives={list(self.search.objectives)}" if len(self.directions) > 1 else "this space"
                said = " ".join(str(problem).split())
                raise ConfigError(
                    f"search.sampler={self.component.name} cannot do {what}: {said} Use sampler=tpe or random."
                ) from problem


def in_memory(directions: Sequence[StudyDirection]) -> optuna.Study:
    """An Optuna study that leaves nothing behind."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(directions=list(directions), sampler=RandomSampler())


def _excesses(trial: optuna.trial.FrozenTrial) -> Sequence[float]:
    """The violation of each constraint by a trial; 0 if unknown."""
    return trial.user_attrs.get("excess", [0.0])


def draw_from_table(points: Sequence[Mapping[str, Any]], values: Sequence[float], *, seed: int) -> list[int]:
    """The order in which TPE goes through a table of results.

    Suggestions that are not in the table, or repeat a point, are not counted. Points that TPE never suggests come last.

    Args:
        points: mappings with equal keys (fields).
        values: what to maximise, one per point.
        seed: of the sampler.

    Returns:
        Indices of `points`, each once.
    """
    places = {_name_of(point): i for i, point in enumerate(points)}
    choices = {name: list(dict.fromkeys(outward(point[name]) for point in points)) for name in points[0]}
    study = in_memory([StudyDirection.MAXIMIZE])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.sampler = TPESampler(n_startup_trials=min(10, max(2, len(points) // 4)), multivariate=True, seed=seed)
    order: list[int] = []
    for _ in range(10 * len(points)):
        trial = study.ask()
        place = places.get(_name_of({n: trial.suggest_categorical(n, shown) for n, shown in choices.items()}))
        if place is None:
            study.tell(trial, state=TrialState.FAIL)
            continue
        study.tell(trial, values[place])
        if place not in order:
            order.append(place)
        if len(order) == len(points):
            break
    return [*order, *(i for i in range(len(points)) if i not in order)]


def _name_of(point: Mapping[str, Any]) -> str:
    return json.dumps({name: outward(value) for name, value in point.items()}, sort_keys=True)
