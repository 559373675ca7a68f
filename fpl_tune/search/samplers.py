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
from fpl_tune.search.components import quiet
from fpl_tune.search.space import Space

_UNCONDITIONAL = (GPSampler, CmaEsSampler, QMCSampler)
"""Samplers that model only the fields which all trials have."""
_STARTUP = 6
"""Trials, published points included, that are drawn before a model of the results proposes; chosen on the tables of
`bench.py search`."""
_PROBED = 14  # trials of a probe: more than the random ones that Optuna's samplers start with


class SamplerFactory:
    """Makes the sampler of each trial.

    A trial's sampler is seeded by the trial's number, so that a suggestion depends only on the results that were
    reported before it, not on the state of a process.

    Raises:
        ConfigError: the sampler or an argument is unknown.
    """

    def __init__(self, search: SearchSpec) -> None:
        self.search = search
        self.component = components.find("samplers", search.sampler, "search.sampler")
        self.make(1, "check")

    def make(self, number: int, key: str) -> Any:
        """The sampler of a trial.

        Args:
            number: of the trial within its search, from 0.
            key: name of the search in the database.
        """
        # A sequence of QMC is scrambled once: all its trials share the seed.
        part = 0 if issubclass(self.component.kind, QMCSampler) else number
        defaults: dict[str, Any] = {"seed": derive("search", self.search.seed, key, part) % 2**32}
        if issubclass(self.component.kind, (TPESampler, GPSampler)):
            defaults["n_startup_trials"] = _STARTUP
        if issubclass(self.component.kind, TPESampler):
            defaults |= {"multivariate": True, "group": True, "constant_liar": True}
        else:
            defaults["warn_independent_sampling"] = False
        with quiet():
            return self.component.build(**defaults)

    def check(self, space: Space, node: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Runs the sampler on simulated results.

        Raises:
            ConfigError: it does not support the objectives or conditions, fails on the space, or lacks a package.
        """
        names, where = {param.name for param in space.params}, f"search.sampler={self.component.name}"
        conditional = next((param for param in space.params if names & param.when.keys()), None)
        if conditional is not None and issubclass(self.component.kind, _UNCONDITIONAL):
            raise ConfigError(
                f"{where} cannot do conditions, but {conditional.name} is searched only where "
                f"{', '.join(conditional.when)} has certain values. Use sampler=tpe, or search.only without it."
            )
        if issubclass(self.component.kind, (RandomSampler, QMCSampler, BruteForceSampler, TPESampler)):
            return

        def probe(trial: optuna.Trial) -> list[float]:
            space.suggest(trial, node, given)
            return [(trial.number * 7 + i) % 11 / 11 for i in range(len(self.search.objectives))]

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(directions=directions_of(self.search), sampler=self.make(1, "check"))
        try:
            with quiet():
                study.optimize(probe, n_trials=_PROBED)
        except Exception as problem:  # a third-party sampler may raise anything
            said = " ".join(str(problem).split())
            raise ConfigError(
                f"{where} cannot do search.objectives={list(self.search.objectives)} over this space: {said} "
                "Use sampler=tpe or random."
            ) from problem


def directions_of(search: SearchSpec) -> list[StudyDirection]:
    """The directions of a search's objectives, for `optuna.create_study`."""
    return [StudyDirection.MAXIMIZE if metric(n).maximize else StudyDirection.MINIMIZE for n in search.objectives]
