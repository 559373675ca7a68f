"""One question to a sampler of Optuna: which trial next? Its study is made of the trials' rows each time, in memory.

A trial's sampler is seeded by the trial's number, so that a suggestion depends on the results before it alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import optuna
from optuna.samplers import BaseSampler, GPSampler, RandomSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import TEST
from fpl_tune.method import derive
from fpl_tune.search.components import quiet
from fpl_tune.search.samplers import directions_of
from fpl_tune.study.cells import Suggestion
from fpl_tune.study.results import aggregate, figure
from fpl_tune.study.standing import Design, Row, State, counts, standing

if TYPE_CHECKING:
    from fpl_tune.search.cell_search import CellSearch
    from fpl_tune.simulation.simulation import Record
    from fpl_tune.study.cells import Cell

CELL = "cell"
"""User attribute of a trial: the cell that it stands for."""
_REPEATS = 30  # repeated suggestions in a row, after which a search has no new point


def ask(search: CellSearch, design: Design, rows: Sequence[Row]) -> Cell | None:
    """Suggests the next trial of a search: a published point that was not tried, or one of the sampler.

    Args:
        search: the search.
        design: of the study.
        rows: its trials so far.

    Returns:
        Its cell; None where the sampler suggests nothing new.

    Raises:
        ConfigError: the method rejects nearly every combination.
    """
    number, known = 1 + max((row.cell.trial for row in rows), default=-1), {row.cell.id for row in rows}
    for key, point in search.published.items():
        if key not in known:
            return search.trial(Suggestion(number, point, published=True))
    hedge, suggested = search.prune.hedge, sum(not row.cell.published for row in rows)
    hedged = isinstance(hedge, int) and suggested % hedge == hedge - 1
    storage = InMemoryStorage()
    study = study_of(search, design, rows, storage, search.samplers.make(number, search.stream))
    repeated = rejected = 0
    while repeated < _REPEATS:
        with quiet():
            trial = study.ask()
            params = search.space.suggest(trial, search.node, search.varied)
        asked = study.get_trials(deepcopy=False)[trial.number]
        attrs = {"trial": dict(asked.system_attrs), "study": dict(storage.get_study_system_attrs(0))}
        try:
            cell = search.trial(Suggestion(number, params, hedged=hedged, attrs=attrs))
            if cell.id not in known:
                return cell
            repeated += 1
        except ConfigError as problem:
            rejected += 1
            if rejected > 100 + 10 * len(rows):
                raise ConfigError(
                    f"The method rejects nearly every combination of "
                    f"{', '.join(param.name for param in search.space.params)}: {problem} Narrow search.space."
                ) from None
        number += 1
        if repeated:
            study.sampler = RandomSampler(derive("repeat", search.search.seed, search.stream, number) % 2**32)
        else:
            study.sampler = search.samplers.make(number, search.stream)
    return None


def study_of(
    search: CellSearch, design: Design, rows: Sequence[Row], storage: InMemoryStorage, sampler: BaseSampler
) -> optuna.Study:
    """The trials of a search as the one study of Optuna in a storage in memory, for a sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with quiet():
        study = optuna.create_study(storage=storage, directions=directions_of(search.search), sampler=sampler)
    found = trials_of(search, design, rows, gp=isinstance(sampler, GPSampler))
    for trial in found:
        storage.create_new_trial(0, trial)
    last = max(rows, key=lambda row: row.cell.trial, default=None)
    if last is not None and last.cell.suggestion is not None and len(rows) == sum(CELL in t.user_attrs for t in found):
        for name, value in last.cell.suggestion.attrs.get("study", {}).items():
            storage.set_study_system_attr(0, name, value)
    return study


class _Told(FrozenTrial):
    """A trial that is never changed. The storage copies what it is given, which takes longer than a suggestion."""

    def __deepcopy__(self, memo: Any) -> FrozenTrial:
        return copy.copy(self)


_told: WeakKeyDictionary[Row, tuple[Any, _Told]] = WeakKeyDictionary()


def trials_of(
    search: CellSearch, design: Design, rows: Sequence[Row], *, gp: bool = False, diverged_as_worst: bool = True
) -> list[FrozenTrial]:
    """The trials of a search by number, as samplers receive them.

    A trial that is not completed has its last value: as a pruned trial, which TPE counts towards its start-up, or as a
    complete one for a Gaussian process, which leaves pruned trials out. One that diverged has the worst values that
    were seen, so that samplers turn away from there. Numbers that are no trial, and trials outside of the present
    space, are failed ones without parameters.

    Args:
        search: the search.
        design: of the study.
        rows: its trials.
        gp: whether a Gaussian process receives them.
        diverged_as_worst: whether trials that diverged have the worst values, as for samplers; else they have failed.
    """
    partial = TrialState.COMPLETE if gp else TrialState.PRUNED
    by_number = {row.cell.trial: (row, standing(design, row).state, _outcome(search, design, row)) for row in rows}
    seen = [found.values for _, state, found in by_number.values() if found.values and state is not State.DIVERGED]
    ends = [min if direction.name == "MAXIMIZE" else max for direction in directions_of(search.search)]
    worst = [end(values) for end, values in zip(ends, zip(*seen, strict=True), strict=True)] if seen else None
    worst = worst if diverged_as_worst else None
    trials = list[FrozenTrial]()
    for number in range(1 + max(by_number, default=-1)):
        row, state, found = by_number.get(number, (None, State.FAILED, Figures()))
        key = number, state, partial, worst if state is State.DIVERGED else None, search.space
        if row is not None and row in _told and _told[row][0] == key:
            trials.append(_told[row][1])
            continue
        trial = _trial(search, row, state, found, worst, partial)
        if row is not None:
            _told[row] = key, trial
        trials.append(trial)
    return trials


def _trial(
    search: CellSearch, row: Row | None, state: State, found: Figures, worst: list[float] | None, partial: TrialState
) -> _Told:
    """A trial as samplers receive it; see `trials_of`."""
    asked = row.cell.suggestion if row is not None else None
    params = asked.params if asked is not None else {}
    space = {param.name: param for param in search.space.params}
    inside = asked is not None and all(name in space and space[name].holds(value) for name, value in params.items())
    values, steps, called = found.values, found.steps, TrialState.FAIL
    if not inside or state is State.FAILED:
        pass
    elif state is State.DIVERGED:
        called, values, steps = (TrialState.COMPLETE, worst, {}) if worst else (TrialState.FAIL, None, {})
    elif state is State.DONE or found.whole:
        called = TrialState.COMPLETE if values else TrialState.FAIL
    else:
        called = partial if values else TrialState.RUNNING
    return _Told(
        number=0,
        trial_id=0,
        state=called,
        value=None,
        values=values if called in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        datetime_start=None,
        datetime_complete=None,
        params=dict(params) if inside else {},
        distributions={name: space[name].distribution for name in params} if inside else {},
        user_attrs=dict(found.attrs) if inside else {},
        system_attrs=dict(asked.attrs.get("trial", {})) if inside and asked is not None else {},
        intermediate_values=dict(steps) if inside else {},
    )


# -- figures of trials ---------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """The figures of a trial so far."""

    values: list[float] | None = None
    """The objectives; None before the first evaluation, and where one of them is NaN."""
    steps: Mapping[int, float] = {}
    """The objective by round; empty where there are several."""
    attrs: Mapping[str, Any] = {}
    """User attributes, which also hold test accuracy, for people: samplers read values."""
    whole: bool = False
    """True if it has completed all rounds and seeds that it was asked for, even if they are fewer than today."""


_outcomes: WeakKeyDictionary[Row, tuple[Any, Figures]] = WeakKeyDictionary()


def _outcome(search: CellSearch, design: Design, row: Row) -> Figures:
    """The figures of a trial: of the seeds that count or, where there are none, of all that began."""
    known = _outcomes.get(row)
    key = design, tuple(search.search.objectives), search.rule
    if known is None or known[0] != key:
        counting = counts(design, row)
        seeds = counting or [seed for seed in design.seeds if seed in row.runs]
        histories = {seed: history for seed in seeds if (history := row.runs[seed].history)}
        whole = bool(counting) and standing(design, row).state in (State.QUEUED, State.DONE)
        found = figures_of(search.search.objectives, search.rule, row.cell.id, histories, whole=whole)
        known = _outcomes[row] = key, found
    return known[1]


def figures_of(
    objectives: Sequence[str], rule: str, cell: str, histories: Mapping[int, Sequence[Record]], *, whole: bool
) -> Figures:
    """The figures of a trial, of the round of the rule.

    Args:
        objectives: metrics that the search optimises.
        rule: the reporting rule.
        cell: id of its cell.
        histories: records by round, by seed.
        whole: see `Figures`.
    """
    if not histories:
        return Figures(attrs={CELL: cell}, whole=whole)
    names = [*objectives, TEST] if all(TEST in history[-1] for history in histories.values()) else objectives
    by_seed = {name: [float(figure(history, name, rule)) for history in histories.values()] for name in names}
    means = {name: aggregate(found) for name, found in by_seed.items()}
    attrs = {
        CELL: cell,
        "seconds": math.fsum(float(history[-1]["time/seconds"]) for history in histories.values()),
        "seeds": sorted(histories),
        "n": len(histories),
        "rounds": sum(map(len, histories.values())),
        "by_seed": by_seed,
        "sem": {name: None if len(histories) < 2 else means[name]["sem"] for name in objectives},
    }
    if TEST in names:
        attrs[TEST] = means[TEST]["mean"]
    values = [means[name]["mean"] for name in objectives]
    if any(map(math.isnan, values)):
        return Figures(None, {}, attrs, whole)
    steps = {}
    if len(objectives) == 1:
        steps = _by_round(objectives[0], list(zip(*histories.values(), strict=False)))
        if not whole:  # Optuna takes the last round's value for the trial's
            steps[min(map(len, histories.values()))] = values[0]
    return Figures(values, steps, attrs, whole)


def _by_round(name: str, rounds: Sequence[Sequence[Record]]) -> dict[int, float]:
    """The mean over seeds after each round that has the objective."""
    evaluated = [records for records in rounds if all(math.isfinite(r.get(name, math.nan)) for r in records)]
    return {int(records[0]["round"]): fmean(r[name] for r in records) for records in evaluated}
