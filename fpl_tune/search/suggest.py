"""The search in one cell of the axes, as a study of Optuna: the next trial, and the results that the sampler receives.

A trial is suggested as soon as a slot is free, by a sampler that is seeded by the trial's number: a suggestion depends
only on the results before it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import GPSampler, PartialFixedSampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from fpl_tune import config
from fpl_tune.config import RunSpec, Study
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.files import digest
from fpl_tune.search.components import quiet
from fpl_tune.search.pruning import FULL_TRIALS, expected_cost, make_pruner, resolved, rungs
from fpl_tune.search.record import PAUSED, TrialJournal, is_over
from fpl_tune.search.samplers import SamplerFactory, directions_of
from fpl_tune.search.space import names_of, read_space
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of, label, variant
from fpl_tune.study.fingerprints import method_source
from fpl_tune.study.results import TEST, aggregate, figure
from fpl_tune.study.selection import selecting_rule
from fpl_tune.study.status import Status

Results = Mapping[int, tuple[Mapping[str, Any], Sequence[Record]]]
"""Seed -> (result, history)."""
REFUSED = "refused"
"""User attribute of a trial that the method refuses: why. It costs nothing and does not count."""
ROUNDS = "rounds"
"""User attribute of a trial: its rounds so far, summed over seeds."""


@dataclass
class CellSearch:
    """The search in one cell of the axes.

    Raises:
        ConfigError: the space has a field that the run lacks, or the sampler cannot search it.
    """

    spec: Study
    varied: dict[str, Any]
    """The cell of the axes."""
    run: RunSpec
    """The run of that cell, which the search varies."""
    numbers: range
    """Numbers of its cells in the study, by the numbers of the trials."""
    fits: Callable[[RunSpec], object] | None = None
    """Raises `ConfigError` for a run that cannot run."""

    def __post_init__(self) -> None:
        self.search, self.node = self.spec.search, config.as_dict(self.run)
        self.rule = selecting_rule(self.spec.report.rule)
        names = names_of(self.node["method"], self.varied.get("method"))
        self.space = read_space(names, self.search, list(axes_of(self.spec.axes)), self.node)
        for param in self.space.params:
            try:
                self.at({**{name: values[0] for name, values in param.when.items()}, param.name: param.nearest(None)})
            except ConfigError as problem:
                if "no field" in str(problem):
                    raise ConfigError(f"search.space.{param.name}: {problem}") from None
        points = (self.space.complete(point, self.node, self.varied) for point in self.space.published)
        self.points = list({repr(point): point for point in points}.values())
        """The published points, which are tried first."""
        self.prune, seeds = resolved(self.spec), len(self.spec.seed_list())
        self._full = seeds * self.run.rounds
        self._cost = expected_cost(self.prune, self.run, seeds) * self._full
        """Rounds of all seeds of a full trial, and those that a trial is expected to take."""
        self.samplers = SamplerFactory(self.search, self.space)
        self.samplers.check(self.node, self.varied)

    def at(self, point: Mapping[str, Any]) -> RunSpec:
        """The run of a point. Raises `ConfigError` where the method refuses it."""
        return variant(self.spec.node, {**self.varied, **point})

    @cached_property
    def key(self) -> str:
        """Digest of what is fixed within one search, ranges left out; seeds the sampler."""
        fixed = {
            "record": 2,
            "source": method_source(self.run),
            "sampler": self.samplers.name,
            "seed": self.search.seed,
            "objectives": self.search.objectives,
            "choices": {
                p.name: [repr(c) for c in p.distribution.choices]
                for p in self.space.params
                if isinstance(p.distribution, CategoricalDistribution)
            },
        }
        return f"{config.identity(self.run)}-{digest(json.dumps(fixed, sort_keys=True), 4)}"

    @property
    def name(self) -> str:
        """Name of the study of Optuna."""
        return f"{label(self.varied) if self.varied else self.node['method']['name']} ({self.key})"

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is a trial of this search."""
        return cell.role == "trial" and all(cell.varied.get(name) == value for name, value in self.varied.items())

    @property
    def published(self) -> set[str]:
        """Ids of the cells of the published points that can run."""
        found = set[str]()
        for point in self.points:
            try:
                found.add(config.identity(self._run(point)))
            except ConfigError:
                continue
        return found

    def _run(self, point: Mapping[str, Any]) -> RunSpec:
        """The run of a point. Raises `ConfigError` where it cannot run."""
        run = self.at(point)
        if self.fits is not None:
            self.fits(run)
        return run

    # -- suggestions -----------------------------------------------------------------------------------------

    def open(self, storage: TrialJournal) -> list[Cell]:
        """Opens the study of Optuna. Returns the cells of the trials that are not refused."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._storage = storage
        with quiet():
            self.study = optuna.create_study(
                storage=storage,
                study_name=self.name,
                directions=directions_of(self.search),
                load_if_exists=True,
                pruner=make_pruner(self.prune),
            )
            self.study.set_metric_names(list(self.search.objectives))
        if self.space.outside and not self.trials():
            points = "; ".join(map(label, self.space.outside))
            warnings.warn(f"Published points outside search.space are not tried: {points}", Notice, stacklevel=2)
        cells = []
        for trial in self.trials():
            if "cell" not in trial.user_attrs and not is_over(trial):  # killed while it was suggested
                trial = self._choose(self._trial(trial.number))
            if REFUSED not in trial.user_attrs:
                cells.append(self._cell(trial))
        return cells

    def trials(self) -> list[FrozenTrial]:
        """All trials by number, as samplers receive them; not copied."""
        return self.study.get_trials(deepcopy=False)

    @property
    def suggested(self) -> int:
        """Trials suggested so far."""
        return sum(REFUSED not in trial.user_attrs for trial in self.trials())

    @property
    def remaining(self) -> int:
        """Trials that may still be suggested; with a budget, the number that what is left of it is expected to pay."""
        if self.search.trials:
            return max(0, self.search.trials - self.suggested)
        # A trial takes at least the rounds up to the first rung; a failed one counts as whole.
        least = (*rungs(self.prune, self.run), self._full)[0]
        spent = sum(
            self._full if trial.state == TrialState.FAIL else max(least, trial.user_attrs.get(ROUNDS, 0))
            for trial in self.trials()
            if REFUSED not in trial.user_attrs
        )
        return max(0, math.ceil(((self.search.budget or FULL_TRIALS) * self._full - spent) / self._cost))

    @property
    def unfinished(self) -> int:
        """Trials that are not over."""
        return self.remaining + sum(not is_over(trial) for trial in self.trials())

    def suggest(self) -> Cell | None:
        """Suggests the next trial; None after the last one.

        Raises:
            ConfigError: the method refuses nearly every combination.
        """
        while self.remaining:
            trial = self._suggest()
            if REFUSED not in trial.user_attrs:
                return self._cell(trial)
            if trial.number > 100 + 10 * self.suggested + len(self.points):
                raise ConfigError(
                    f"The method refuses nearly every combination of {', '.join(p.name for p in self.space.params)}: "
                    f"{trial.user_attrs[REFUSED]} Narrow search.space."
                )
        return None

    def _suggest(self) -> FrozenTrial:
        """Adds a trial: the next published point, or one that the sampler suggests."""
        self._set_sampler(len(self.trials()))
        with quiet():
            trial = self.study.ask()
        return self._choose(trial)

    def _set_sampler(self, number: int) -> None:
        """Sets the sampler of a trial; published points are fixed."""
        if number >= len(self.points):
            self.study.sampler = self.samplers.make(number, self.key)
        else:
            with quiet():
                self.study.sampler = PartialFixedSampler(self.points[number], RandomSampler())
        gp = isinstance(self.study.sampler, GPSampler)
        self._storage.at_rung = TrialState.COMPLETE if gp else TrialState.PRUNED

    def _choose(self, trial: Trial) -> FrozenTrial:
        """Chooses the parameters that a trial lacks. As its sampler is seeded by its number, a kill changes nothing."""
        with quiet():
            params = self.space.suggest(trial, self.node, self.varied)
        try:
            run = self._run(params)
        except ConfigError as problem:
            if trial.number < len(self.points):
                warnings.warn(f"{label(params)} cannot run and is not tried: {problem}", Notice, stacklevel=2)
            trial.set_user_attr(REFUSED, str(problem))
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_user_attr("cell", config.identity(run))
        return self.trials()[trial.number]

    def _trial(self, number: int) -> Trial:
        """A trial that is not over."""
        self._set_sampler(number)
        study_id = self._storage.get_study_id_from_name(self.name)
        return Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _cell(self, trial: FrozenTrial) -> Cell:
        """The cell of a trial that is not refused."""
        varied, run = {**self.varied, **trial.params}, self.at(trial.params)
        return Cell(config.identity(run), self.numbers[trial.number], label(varied), "trial", varied, run)

    # -- results ---------------------------------------------------------------------------------------------

    def waiting(self, cell: Cell) -> list[FrozenTrial]:
        """The trials of a cell that are not over."""
        return [trial for trial in self.trials() if trial.user_attrs.get("cell") == cell.id and not is_over(trial)]

    def should_prune(self, cell: Cell, step: int, value: float) -> list[bool]:
        """Reports a round of a cell and asks the pruner of Optuna, for each of its trials."""
        found = []
        for known in self.waiting(cell):
            trial, new = self._trial(known.number), step not in known.intermediate_values
            if new:
                trial.report(value, step)
            found.append(new and trial.should_prune())
        return found

    def pause(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> None:
        """Pauses the trials of a cell at its rung: the sampler receives their values so far.

        Args:
            cell: the cell.
            rounds: its records so far, one per seed in each round.
        """
        for known in self.waiting(cell):
            trial = self._report_rounds(known, self._by_round(rounds))
            trial.set_user_attr(PAUSED, len(rounds))
            trial.set_user_attr(ROUNDS, sum(map(len, rounds)))

    def report(self, cell: Cell, results: Results) -> None:
        """Tells the sampler the result of the trials of a cell."""
        waiting = self.waiting(cell)
        if not waiting:
            return
        verdict = self.verdict(cell.id, results)
        for known in waiting:
            trial = self._report_rounds(known, verdict.intermediate_values)
            for key, value in verdict.user_attrs.items():
                trial.set_user_attr(key, value)
            with quiet():
                self.study.tell(trial, verdict.values, verdict.state)

    def _report_rounds(self, known: FrozenTrial, values: Mapping[int, float]) -> Trial:
        """Reports the rounds of a trial that are not known yet."""
        trial = self._trial(known.number)
        for step in sorted(values.keys() - known.intermediate_values):
            trial.report(values[step], step)
        return trial

    def verdict(self, cell: str, results: Results) -> FrozenTrial:
        """What the sampler receives of a cell, as a trial without parameters: figures of the round of the rule.

        Its user attributes also hold test accuracy, for people: samplers read values.
        """
        objectives = self.search.objectives
        states = {Status(result["status"]) for result, _ in results.values()}
        kept = [history for _, history in results.values() if history]
        names = [*objectives, TEST] if all(TEST in history[-1] for history in kept) else objectives
        by_seed = {name: [float(figure(history, name, self.rule)) for history in kept] for name in names}
        means = {name: aggregate(figures) for name, figures in by_seed.items()}
        attrs = {
            "cell": cell,
            "seconds": math.fsum(float(history[-1]["time/seconds"]) for history in kept),
            "seeds": sorted(seed for seed, (_, history) in results.items() if history),
            "n": len(kept),
            ROUNDS: sum(map(len, kept)),
            "by_seed": by_seed,
            "sem": {name: None if len(kept) < 2 else means[name]["sem"] for name in objectives},
        }
        if TEST in names:
            attrs[TEST] = means[TEST]["mean"]
        values = [means[name]["mean"] for name in objectives]
        if Status.FAILED in states or any(map(math.isnan, values)):
            return create_trial(state=TrialState.FAIL, user_attrs=attrs)
        rounds = self._by_round(list(zip(*kept, strict=False)))
        if not states & {Status.PRUNED, Status.DIVERGED}:
            return create_trial(values=values, intermediate_values=rounds, user_attrs=attrs)
        if len(objectives) == 1:  # Optuna takes the last round's value for the trial's
            rounds[min(map(len, kept))] = values[0]
        return create_trial(state=TrialState.PRUNED, intermediate_values=rounds, user_attrs=attrs)

    def _by_round(self, rounds: Sequence[Sequence[Record]]) -> dict[int, float]:
        """Mean over seeds after each round that has the objective; empty where there are several objectives."""
        name, *others = self.search.objectives
        whole = [records for records in rounds if all(math.isfinite(record.get(name, math.nan)) for record in records)]
        return {} if others else {int(records[0]["round"]): fmean(r[name] for r in records) for records in whole}
