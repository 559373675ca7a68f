"""The sampler of a study: one instance per trial, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.samplers import BruteForceSampler, CmaEsSampler, GPSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection

from fpl_tune.config import SearchSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import metric
from fpl_tune.method import derive
from fpl_tune.search import components
from fpl_tune.search.components import Component, quiet
from fpl_tune.search.space import Param, Space

_UNCONDITIONAL = (GPSampler, CmaEsSampler, QMCSampler)
"""Samplers that only model fields that all trials have."""
AUTO = "auto"
_FIELDS, _MODELLED = 3, 250
"""Maximum numbers of fields and trials for which `auto` is a Gaussian process: its time grows with the cube of the
number of trials."""
_STARTUP = 6
"""Number of random trials, including published points, before the sampler models the results; chosen on the tables of
`bench.py search`."""
_PROBED = 14  # trials of a probe: more than the random ones with which Optuna's samplers start


class SamplerFactory:
    """Makes the sampler of each trial.

    A trial's sampler is seeded by the trial's number, so a suggestion depends only on the results before it, not on the
    state of a process.

    Raises:
        ConfigError: the sampler or an argument is unknown.
    """

    def __init__(self, search: SearchSpec, space: Space) -> None:
        self.search, self.space = search, space
        self.name = auto_sampler(search, space) if search.sampler == AUTO else search.sampler
        self.component = named(self.name)
        self.make(1, "check")

    def make(self, number: int, stream: str) -> Any:
        """The sampler of a trial.

        Args:
            number: number of the trial within its search, from 0.
            stream: identifies the search, so that searches have different random numbers.
        """
        component = self.component
        if self.search.sampler == AUTO and number >= _MODELLED:
            component = named("tpe")
        # A QMC sequence is scrambled once, so all its trials share the seed.
        index = 0 if issubclass(component.kind, QMCSampler) else number
        defaults: dict[str, Any] = {"seed": derive("search", self.search.seed, stream, index) % 2**32}
        if issubclass(component.kind, (TPESampler, GPSampler)):
            defaults["n_startup_trials"] = _STARTUP
        if issubclass(component.kind, TPESampler):
            defaults |= {"multivariate": True, "group": True, "constant_liar": True}
        else:
            defaults["warn_independent_sampling"] = False
        with quiet():
            return component.build(**defaults)

    def check(self, node: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Runs the sampler on simulated results.

        Raises:
            ConfigError: it does not support the objectives or conditions, fails on the space, or lacks a package.
        """
        where, conditional = f"search.sampler={self.component.name}", conditional_in(self.space)
        if conditional is not None and issubclass(self.component.kind, _UNCONDITIONAL):
            raise ConfigError(
                f"{where} models only fields that all trials have, and draws others at random, but {conditional.name} "
                f"is searched only where {', '.join(conditional.when)} has certain values. Use sampler=auto, or "
                "search.only without it."
            )
        tested = issubclass(self.component.kind, (RandomSampler, QMCSampler, BruteForceSampler, TPESampler))
        if tested or self.search.sampler == AUTO:
            return

        def probe(trial: optuna.Trial) -> list[float]:
            self.space.suggest(trial, node, given)
            return [(trial.number * 7 + i) % 11 / 11 for i in range(len(self.search.objectives))]

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(directions=directions_of(self.search), sampler=self.make(1, "check"))
        try:
            with quiet():
                study.optimize(probe, n_trials=_PROBED)
        except ImportError as problem:  # such as cmaes for cma_es
            raise ConfigError(f"{where} needs a package: pip install {problem.name}.") from None
        except Exception as problem:  # a third-party sampler may raise anything
            reason = " ".join(str(problem).split())
            raise ConfigError(
                f"{where} does not support search.objectives={list(self.search.objectives)} over this space: {reason} "
                "Use sampler=auto or random."
            ) from problem


def named(sampler: Any) -> Component:
    """The component of `search.sampler`; TPE if that is `auto`.

    Raises:
        ConfigError: it is unknown.
    """
    return components.find("tpe" if sampler == AUTO else sampler, AUTO)


def auto_sampler(search: SearchSpec, space: Space) -> str:
    """The sampler that `auto` stands for: a Gaussian process for one objective over a few fields without conditions.

    On the tables of `bench.py search`, it finds the best point of two fields at two thirds of TPE's cost, but is worse
    than TPE with five and six fields.
    """
    few = len(space.params) <= _FIELDS and len(search.objectives) == 1 and conditional_in(space) is None
    return "gp" if few else "tpe"


def conditional_in(space: Space) -> Param | None:
    """A field that is searched only where another one has certain values."""
    names = {param.name for param in space.params}
    return next((param for param in space.params if names & param.when.keys()), None)


def directions_of(search: SearchSpec) -> list[StudyDirection]:
    """The directions of a search's objectives, for `optuna.create_study`."""
    return [StudyDirection.MAXIMIZE if metric(n).maximize else StudyDirection.MINIMIZE for n in search.objectives]
