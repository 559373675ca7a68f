"""The search in one cell of the axes, as a study of Optuna: the next trial, and the results that the sampler receives.

A trial is suggested as soon as a slot is free, by a sampler that is seeded by the trial's number: a suggestion depends
only on the results before it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import GPSampler, PartialFixedSampler, RandomSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from fpl_tune import config
from fpl_tune.config import GROUPS, RunSpec, Study
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.files import digest
from fpl_tune.method import derive
from fpl_tune.search.components import quiet
from fpl_tune.search.pruning import FULL_TRIALS, expected_cost, make_pruner, resolved, rungs
from fpl_tune.search.record import CELL, Outcome, TrialJournal, is_told
from fpl_tune.search.samplers import SamplerFactory, directions_of
from fpl_tune.search.space import names_of, read_space
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of, fields_of, label, variant
from fpl_tune.study.fingerprints import method_source
from fpl_tune.study.results import TEST, aggregate, figure
from fpl_tune.study.selection import selecting_rule
from fpl_tune.study.trial import State

Histories = Mapping[int, Sequence[Record]]
"""Records by round, by seed."""
REFUSED = "refused"
"""User attribute of a trial that the method refuses: why. It costs nothing and does not count."""
_REPEATS = 30  # trials in a row whose cells are known, after which a budget counts as spent


class _AskTell(optuna.Study):
    """A study of Optuna whose samplers may stop it; Optuna's own raises where its loop does not run."""

    exhausted = False
    """Whether the sampler has nothing left to suggest."""

    def stop(self) -> None:
        self.exhausted = True


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
        bundled = [name for name in fields_of(self.varied) if name not in GROUPS]
        self.space = read_space(names, self.search, [*axes_of(self.spec.axes), *bundled], self.node)
        for param in self.space.params:
            for value in param.ends:
                try:
                    self.at({**{name: values[0] for name, values in param.when.items()}, param.name: value})
                except ConfigError as problem:  # one that the method refuses beside other values costs a trial nothing
                    own = (f"{param.name} ", f"There is no {param.name} ")
                    if str(problem).startswith(own) or "no field" in str(problem):
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
        return replace(variant(self.spec.node, {**self.varied, **point}), data=self.run.data)

    @cached_property
    def key(self) -> str:
        """Digest of what is fixed within one search, ranges left out; names the study of Optuna."""
        return f"{self.stream}-{method_source(self.run)[:8]}"

    @cached_property
    def stream(self) -> str:
        """As `key`, whatever the method's source: seeds the sampler, so that an edited method is searched alike."""
        fixed = {
            "record": 2,
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

    @cached_property
    def first(self) -> RunSpec:
        """A run of the space, by which the search is checked before it begins: the first published one that can run."""
        for point in self.points:
            try:
                return self._run(point)
            except ConfigError:
                continue
        return self.run

    def holds(self, cell: Cell) -> bool:
        """Whether a cell is a trial of this search."""
        return cell.role == "trial" and all(cell.varied.get(name) == value for name, value in self.varied.items())

    def hedged(self, cell: Cell) -> bool:
        """Whether a cell is a trial of this search that passes all rungs of rounds."""
        return cell.role == "trial" and cell.number in self.numbers and self._hedges(self.numbers.index(cell.number))

    def _hedges(self, number: int) -> bool:
        """Whether a trial passes all rungs of rounds, by its number alone, so that every start decides alike.

        Published points are not among them: one of them reaches the end in any case.
        """
        hedge, place = self.prune.hedge, number - len(self.points)
        return isinstance(hedge, int) and place >= 0 and place % hedge == hedge - 1

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
            optuna.create_study(
                storage=storage, study_name=self.name, directions=directions_of(self.search), load_if_exists=True
            )
            self.study = _AskTell(self.name, storage, pruner=make_pruner(self.prune))
            self.study.set_metric_names(list(self.search.objectives))
        if self.space.outside and not self.trials():
            points = "; ".join(map(label, self.space.outside))
            warnings.warn(f"Published points outside search.space are not tried: {points}", Notice, stacklevel=2)
        for trial in list(self._journal()):
            if CELL not in trial.user_attrs and not is_told(trial):  # a disk that was full cut the suggestion off
                self._choose(self._trial(trial.number))
        return [self._cell(trial) for trial in self._asked()]

    def trials(self) -> list[FrozenTrial]:
        """All trials by number, as samplers receive them; not copied."""
        return self.study.get_trials(deepcopy=False)

    def _journal(self) -> list[FrozenTrial]:
        """All trials by number, as they were asked."""
        return self._storage.asked(self._storage.get_study_id_from_name(self.name))

    def _asked(self) -> list[FrozenTrial]:
        """The trials that are not refused, as they were asked."""
        return [trial for trial in self._journal() if CELL in trial.user_attrs]

    @property
    def suggested(self) -> int:
        """Trials suggested so far."""
        return len(self._asked())

    @property
    def remaining(self) -> int:
        """Trials that may still be suggested; with a budget, the number that what is left of it is expected to pay.

        A cell costs once, however often it is suggested: the rounds that ran, and at least those up to the first rung
        that may stop it, so that a search in which all trials fail or diverge has an end.
        """
        if self.study.exhausted:
            return 0
        if self.search.trials:
            return max(0, self.search.trials - self.suggested)
        if self._repeated(len(self._journal())) >= _REPEATS:
            return 0
        asked = {trial.user_attrs[CELL]: trial.number for trial in reversed(self._asked())}
        spent = math.fsum(self._spent(cell, number) for cell, number in asked.items())
        return max(0, math.ceil(((self.search.budget or FULL_TRIALS) * self._full - spent) / self._cost))

    def _spent(self, cell: str, number: int) -> float:
        """Rounds that a cell has cost, of all seeds; `number` is that of its first trial."""
        outcome, ends = self._storage.outcomes.get(cell, Outcome(State.QUEUED)), rungs(self.prune, self.run)
        first = ends[0] if ends else self._full
        if ends and not outcome.over and self._hedges(number):
            first = self.run.rounds
        return outcome.rounds if outcome.state is State.PRUNED else max(first, outcome.rounds)

    def _repeated(self, number: int) -> int:
        """Trials in a row before one of this number whose cells were known before."""
        cells = [trial.user_attrs[CELL] for trial in self._asked() if trial.number < number]
        first = {cell: place for place, cell in reversed(list(enumerate(cells)))}
        return len(cells) - 1 - max(first.values(), default=-1)

    @property
    def unfinished(self) -> int:
        """Trials that are not over."""
        cells = {trial.user_attrs[CELL] for trial in self._asked()}
        known = self._storage.outcomes
        return self.remaining + sum(cell not in known or not known[cell].over for cell in cells)

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
        self._set_sampler(len(self._journal()))
        with self._storage.together():  # a kill leaves the whole suggestion, or none of it
            with quiet():
                trial = self.study.ask()
            self._choose(trial)
        return self._journal()[trial.number]

    def _set_sampler(self, number: int) -> None:
        """Sets the sampler of a trial. Published points are fixed; after a repeated cell, a budget draws at random."""
        if number < len(self.points):
            with quiet():
                self.study.sampler = PartialFixedSampler(self.points[number], RandomSampler())
        elif not self.search.trials and self._repeated(number):
            self.study.sampler = RandomSampler(derive("repeat", self.search.seed, self.stream, number) % 2**32)
        else:
            self.study.sampler = self.samplers.make(number, self.stream)
        gp = isinstance(self.study.sampler, GPSampler)
        self._storage.partial = TrialState.COMPLETE if gp else TrialState.PRUNED

    def _choose(self, trial: Trial) -> None:
        """Chooses the parameters that a trial lacks."""
        with quiet():
            params = self.space.suggest(trial, self.node, self.varied)
        try:
            run = self._run(params)
        except ConfigError as problem:
            if trial.number < len(self.points):
                warnings.warn(f"{label(params)} cannot run and is not tried: {problem}", Notice, stacklevel=2)
            trial.set_user_attr(REFUSED, str(problem))
            with quiet():
                self.study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_user_attr(CELL, config.identity(run))

    def _trial(self, number: int) -> Trial:
        """A trial that the journal holds no end of."""
        self._set_sampler(number)
        study_id = self._storage.get_study_id_from_name(self.name)
        return Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _cell(self, trial: FrozenTrial) -> Cell:
        """The cell of a trial that is not refused."""
        varied, run = {**self.varied, **trial.params}, self.at(trial.params)
        return Cell(config.identity(run), self.numbers[trial.number], label(varied), "trial", varied, run)

    # -- results ---------------------------------------------------------------------------------------------

    def tell(self, cell: str) -> None:
        """Writes the end of a cell's trials to the journal, if they are over and it lacks them."""
        outcome = self._storage.outcomes.get(cell)
        if outcome is None or not outcome.over:
            return
        state = TrialState.FAIL if outcome.fails else _TOLD[outcome.state]
        for known in self._of(cell):
            trial = self._trial(known.number)
            for step in sorted(outcome.steps.keys() - known.intermediate_values):
                trial.report(outcome.steps[step], step)
            for key, value in outcome.attrs.items():
                trial.set_user_attr(key, value)
            with quiet():
                self.study.tell(trial, outcome.values if state == TrialState.COMPLETE else None, state)

    def _of(self, cell: str) -> list[FrozenTrial]:
        """The trials of a cell of which the journal holds no end."""
        return [trial for trial in self._asked() if trial.user_attrs[CELL] == cell and not is_told(trial)]

    def should_prune(self, cell: Cell, step: int, value: float) -> list[bool]:
        """Reports a round of a cell and asks the pruner of Optuna, for each of its trials."""
        found = []
        for known in self._of(cell.id):
            trial, new = self._trial(known.number), step not in known.intermediate_values
            if new:
                trial.report(value, step)
            found.append(new and trial.should_prune())
        return found

    def outcome(self, cell: str, state: State, histories: Histories) -> Outcome:
        """What samplers receive of a cell: figures of the round of the rule.

        The user attributes also hold test accuracy, for people: samplers read values.

        Args:
            cell: its id.
            state: of its trial.
            histories: what ran, of the seeds that count or, where there are none, of those that began.
        """
        objectives, kept = self.search.objectives, {s: h for s, h in histories.items() if h}
        ran = sum(map(len, kept.values()))
        if not kept:
            return Outcome(state)
        names = [*objectives, TEST] if all(TEST in history[-1] for history in kept.values()) else objectives
        by_seed = {name: [float(figure(history, name, self.rule)) for history in kept.values()] for name in names}
        means = {name: aggregate(figures) for name, figures in by_seed.items()}
        attrs = {
            CELL: cell,
            "seconds": math.fsum(float(history[-1]["time/seconds"]) for history in kept.values()),
            "seeds": sorted(kept),
            "n": len(kept),
            "rounds": ran,
            "by_seed": by_seed,
            "sem": {name: None if len(kept) < 2 else means[name]["sem"] for name in objectives},
        }
        if TEST in names:
            attrs[TEST] = means[TEST]["mean"]
        values = [means[name]["mean"] for name in objectives]
        if any(map(math.isnan, values)):
            return Outcome(state, None, {}, attrs, ran)
        steps = self._by_round(list(zip(*kept.values(), strict=False)))
        if len(objectives) == 1 and state is not State.DONE:  # Optuna takes the last round's value for the trial's
            steps[min(map(len, kept.values()))] = values[0]
        return Outcome(state, values, steps, attrs, ran)

    def _by_round(self, rounds: Sequence[Sequence[Record]]) -> dict[int, float]:
        """Mean over seeds after each round that has the objective; empty where there are several objectives."""
        name, *others = self.search.objectives
        whole = [records for records in rounds if all(math.isfinite(record.get(name, math.nan)) for record in records)]
        return {} if others else {int(records[0]["round"]): fmean(r[name] for r in records) for records in whole}


_TOLD = {
    State.DONE: TrialState.COMPLETE,
    State.PRUNED: TrialState.PRUNED,
    State.DIVERGED: TrialState.PRUNED,
}
"""What the journal calls a trial that is over."""
