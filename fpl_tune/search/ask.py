"""Asks a sampler of Optuna for the next trial, with an in-memory study that is built from the trials' rows each time.

A trial's sampler is seeded by the trial's number, so a suggestion depends only on the results before it.
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

from fpl_tune.core import metrics
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import TEST
from fpl_tune.method import derive
from fpl_tune.search.components import quiet
from fpl_tune.search.limits import OutsideLimits
from fpl_tune.search.samplers import directions_of
from fpl_tune.study.cells import Suggestion
from fpl_tune.study.design import Design
from fpl_tune.study.results import aggregate, at_pace, value_of
from fpl_tune.study.standing import CellState, Row

if TYPE_CHECKING:
    from fpl_tune.config import SearchSpec
    from fpl_tune.search.cell_search import CellSearch
    from fpl_tune.simulation.simulation import Record
    from fpl_tune.study.cells import Cell

CELL = "cell"
"""User attribute of a trial: the id of its cell."""
_REPEATS = 30  # repeated suggestions after which a search has no new point
_REJECTED = 10  # rejected suggestions after which a search ends; as many more for each valid one
_OUTSIDE = 1000  # suggestions for one trial whose costs are outside of the limits, after which a search ends
_MODELLED = 10  # such suggestions of the sampler, after which points are drawn at random
_RARE = 100  # further ones if a trial has run, so that valid points exist


def ask(search: CellSearch, design: Design, rows: Sequence[Row]) -> Cell | None:
    """Suggests the next trial of a search: one that other settings have, a published point that was not tried, or one
    of the sampler.

    Args:
        search: the search.
        design: the study's design.
        rows: its trials so far, those in other settings too if they are shared, and those that were rejected.

    Returns:
        The cell of the trial; None if the sampler suggests nothing new.

    Raises:
        ConfigError: the method rejects the first `_REJECTED` suggestions, or nearly all.
    """
    number, tried = 1 + max((row.cell.trial_number for row in rows), default=-1), {row.cell.id for row in rows}
    if repeated := search.to_repeat(rows):
        return search.trial(repeated[0])
    for key, point in search.published.items():
        if key not in tried:
            return search.trial(Suggestion(number, point, design.seeds))
    valid = [row for row in rows if not row.rejected]
    hedge, suggested = search.prune.hedge, sum(not row.cell.published for row in valid)
    hedged = isinstance(hedge, int) and suggested % hedge == hedge - 1
    storage = InMemoryStorage()
    study = study_of(search, rows, storage, search.samplers.make(number, search.stream))
    reasons, repeated, outside = [row.rejected for row in rows if row.rejected], 0, 0
    most = _REJECTED * len(valid) + (_RARE if any(row.runs for row in valid) else _REJECTED)
    while repeated < _REPEATS:
        if len(reasons) >= most:
            names = ", ".join(param.name for param in search.space.params)
            raise ConfigError(
                f"{len(reasons)} of {len(reasons) + len(valid)} suggestions for {names} are rejected. The last one: "
                f"{reasons[-1]} Narrow search.space."
            )
        with quiet():
            trial = study.ask()
            params = search.space.suggest(trial, search.node, search.varied)
        asked = study.get_trials(deepcopy=False)[trial.number]
        attrs = {"trial": dict(asked.system_attrs), "study": dict(storage.get_study_system_attrs(0))}
        try:
            cell = search.trial(Suggestion(number, params, design.seeds, hedged, attrs))
            if cell.id not in tried:
                return cell
            repeated += 1
        except OutsideLimits as problem:
            outside += 1
            if outside == _OUTSIDE and valid:
                return None
            if outside == _OUTSIDE:
                raise ConfigError(f"{_OUTSIDE} suggestions of {search.name} are rejected. The last one: {problem} "
                                  "Raise search.limits, or narrow search.space.") from None  # fmt: skip
            if outside % _MODELLED == 0:  # the model may insist
                drawn = derive("outside", search.search.seed, search.stream, number, outside)
                study.sampler = RandomSampler(drawn % 2**32)
            continue
        except ConfigError as problem:
            reasons.append(str(problem))
        number += 1
        if repeated:
            study.sampler = RandomSampler(derive("repeat", search.search.seed, search.stream, number) % 2**32)
        else:
            study.sampler = search.samplers.make(number, search.stream)
    return None


def study_of(search: CellSearch, rows: Sequence[Row], storage: InMemoryStorage, sampler: BaseSampler) -> optuna.Study:
    """Builds the study of Optuna with a search's trials, the only one in the storage, for a sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with quiet():
        study = optuna.create_study(storage=storage, directions=directions_of(search.search), sampler=sampler)
    whole = isinstance(sampler, GPSampler) or len(search.search.objectives) > 1
    trials = trials_of(search, rows, partial_as_complete=whole)
    for trial in trials:
        storage.create_new_trial(0, trial)
    last = max(rows, key=lambda row: row.cell.trial_number, default=None)
    if (
        last is not None
        and last.cell.suggestion is not None
        and len({row.cell.trial_number for row in rows}) == sum(CELL in trial.user_attrs for trial in trials)
    ):
        for name, value in last.cell.suggestion.attrs.get("study", {}).items():
            storage.set_study_system_attr(0, name, value)
    return study


class _SharedTrial(FrozenTrial):
    """A trial that is never changed, so a shallow copy is enough: the deep copy of the storage takes longer than a
    suggestion."""

    def __deepcopy__(self, memo: Any) -> FrozenTrial:
        return copy.copy(self)


_frozen: WeakKeyDictionary[Row, tuple[Any, _SharedTrial]] = WeakKeyDictionary()


def trials_of(
    search: CellSearch, rows: Sequence[Row], *, partial_as_complete: bool = False, diverged_as_worst: bool = True
) -> list[FrozenTrial]:
    """The trials of a search by number, as samplers receive them.

    A trial that has not completed has its last values: as a pruned trial, which TPE counts as a start-up trial, or as a
    complete one for a Gaussian process, which ignores pruned trials, and with several objectives, of which TPE takes
    pruned trials by age. Running totals are those of all rounds at the pace so far. One that diverged has the worst
    values so far, so samplers avoid its surroundings. Numbers without a trial, and trials outside the present space,
    become failed trials without parameters.

    Args:
        search: the search.
        rows: its trials.
        partial_as_complete: True to give trials that have not completed as complete ones.
        diverged_as_worst: True to give trials that diverged the worst values, as samplers need; else they have failed,
            and totals are those so far.
    """
    partial = TrialState.COMPLETE if partial_as_complete else TrialState.PRUNED
    together: dict[int, list[Row]] = {}
    for row in rows:
        together.setdefault(row.cell.trial_number, []).append(row)
    by_number = {number: _joint(search, mine) for number, mine in together.items()}
    seen = [figures for _, state, figures in by_number.values() if figures.expected and state is not CellState.DIVERGED]
    worst = _worst(search, seen) if seen and diverged_as_worst else None
    trials = list[FrozenTrial]()
    for number in range(1 + max(by_number, default=-1)):
        row, state, figures = by_number.get(number, (None, CellState.FAILED, Figures()))
        if diverged_as_worst:
            figures = figures._replace(values=figures.expected)
        told = figures.values, figures.excess
        key = number, state, told, partial, worst if state is CellState.DIVERGED else None, search.space
        if row is not None and row in _frozen and _frozen[row][0] == key:
            trials.append(_frozen[row][1])
            continue
        trial = _trial(search, row, state, figures, worst, partial)
        if row is not None:
            _frozen[row] = key, trial
        trials.append(trial)
    return trials


def _worst(search: CellSearch, seen: Sequence[Figures]) -> Figures:
    """The worst values and violations that were seen."""
    ends = [min if direction.name == "MAXIMIZE" else max for direction in directions_of(search.search)]
    values = zip(*(figures.expected for figures in seen if figures.expected), strict=True)
    excess = {name: max(figures.excess[name] for figures in seen) for name in seen[0].excess}
    return Figures([end(own) for end, own in zip(ends, values, strict=True)], excess=excess)


def _trial(
    search: CellSearch,
    row: Row | None,
    state: CellState,
    figures: Figures,
    worst: Figures | None,
    partial: TrialState,
) -> _SharedTrial:
    """A trial as samplers receive it; see `trials_of`."""
    asked = row.cell.suggestion if row is not None else None
    params = asked.params if asked is not None else {}
    space = {param.name: param for param in search.space.params}
    inside = row is not None and row.cell.inside
    values, steps, excess, called = figures.values, figures.steps, figures.excess, TrialState.FAIL
    if not inside or state is CellState.FAILED:
        pass
    elif state is CellState.DIVERGED:
        called, steps = TrialState.COMPLETE if worst else TrialState.FAIL, {}
        values, excess = (worst.values, worst.excess) if worst else (None, {})
    elif state is CellState.DONE or figures.whole:
        called = TrialState.COMPLETE if values else TrialState.FAIL
    else:
        called = partial if values else TrialState.RUNNING
    trial = _SharedTrial(
        number=0,
        trial_id=0,
        state=called,
        value=None,
        values=values if called in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        datetime_start=None,
        datetime_complete=None,
        params=dict(params) if inside else {},
        distributions={name: space[name].distribution for name in params} if inside else {},
        user_attrs=dict(figures.attrs) if inside else {},
        system_attrs=dict(asked.attrs.get("trial", {})) if inside and asked is not None else {},
        intermediate_values=dict(steps) if inside else {},
    )
    for name, over in excess.items() if trial.values is not None else ():
        trial.set_constraint(name, over)
    return trial


# -- figures of trials ---------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """The figures of a trial so far."""

    values: list[float] | None = None
    """The objectives; None before the first evaluation, or if one of them, or a limited metric, is NaN."""
    steps: Mapping[int, float] = {}
    """The objective by round; empty with several objectives."""
    excess: Mapping[str, float] = {}
    """By how much limits are violated, by metric; see `core.metrics.excess`."""
    attrs: Mapping[str, Any] = {}
    """User attributes, with test accuracy for people to read: samplers only read `values`."""
    expected: list[float] | None = None
    """The objectives with running totals as all rounds come to at the pace so far."""
    whole: bool = False
    """True if all rounds and seeds that were asked for have completed, even if the study asks for more today."""


def _joint(search: CellSearch, rows: Sequence[Row]) -> tuple[Row, CellState, Figures]:
    """The state and figures of a trial; if settings share it, those of its rows in all of them: the mean, once all are
    done."""
    states = [CellState.FAILED if row.rejected else row.standing.state for row in rows]
    outcomes = [_outcome(search, row) for row in rows]
    if not search.settings:
        return rows[0], states[0], outcomes[0]
    bad = next((bad for bad in (CellState.FAILED, CellState.DIVERGED) if bad in states), None)
    if bad is not None or len(rows) < len(search.settings) or {*states} != {CellState.DONE}:
        return rows[0], bad or CellState.QUEUED, Figures(attrs={CELL: rows[0].cell.id})
    values = [figures.values for figures in outcomes if figures.values is not None]
    mean = [fmean(numbers) for numbers in zip(*values, strict=True)] if len(values) == len(rows) else None
    excess = {name: max(figures.excess[name] for figures in outcomes) for name in outcomes[0].excess} if mean else {}
    attrs = {CELL: rows[0].cell.id}
    return rows[0], CellState.DONE, Figures(mean, excess=excess, attrs=attrs, expected=mean, whole=True)


_outcomes: WeakKeyDictionary[Row, tuple[Any, Figures]] = WeakKeyDictionary()


def _outcome(search: CellSearch, row: Row) -> Figures:
    """The figures of a trial, over the seeds that count or, if there are none, over all that have started."""
    cached = _outcomes.get(row)
    key = row.design, tuple(search.search.objectives), search.search.limits, search.rule
    if cached is None or cached[0] != key:
        counting = row.counts
        seeds = counting or [seed for seed in row.design.seeds if seed in row.runs]
        histories = {seed: history for seed in seeds if (history := row.runs[seed].history)}
        whole = bool(counting) and row.standing.state in (CellState.QUEUED, CellState.DONE)
        figures = figures_of(search.search, search.rule, row.cell.id, histories, row.cell.rounds, whole=whole)
        cached = _outcomes[row] = key, figures
    return cached[1]


def figures_of(
    search: SearchSpec, rule: str, cell: str, histories: Mapping[int, Sequence[Record]], rounds: int, *, whole: bool
) -> Figures:
    """Computes the figures of a trial at the round that the reporting rule chooses.

    Args:
        search: the objectives and limits.
        rule: the reporting rule.
        cell: id of the trial's cell.
        histories: seed -> records by round.
        rounds: number of all rounds.
        whole: see `Figures`.
    """
    if not histories:
        return Figures(attrs={CELL: cell}, whole=whole)
    objectives = search.objectives
    names = [*objectives, TEST] if all(TEST in history[-1] for history in histories.values()) else objectives
    names = list(dict.fromkeys([*names, *search.limits]))
    by_seed = {name: [float(value_of(history, name, rule)) for history in histories.values()] for name in names}
    means = {name: aggregate(numbers) for name, numbers in by_seed.items()}
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
    ran = list(map(len, histories.values()))
    paced = {
        name: fmean(at_pace(name, value, number, rounds) for value, number in zip(by_seed[name], ran, strict=True))
        for name in (*objectives, *search.limits)
    }
    expected = values if whole else [paced[name] for name in objectives]
    excess = {name: metrics.excess(name, paced[name], limit) for name, limit in search.limits.items()}
    if any(map(math.isnan, [*values, *excess.values()])):
        return Figures(attrs=attrs, whole=whole)
    steps = {}
    if len(objectives) == 1:
        steps = _by_round(objectives[0], list(zip(*histories.values(), strict=False)))
        if not whole:  # Optuna takes the value of the last step as the trial's value
            steps[min(ran)] = values[0]
    return Figures(values, steps, excess, attrs, expected, whole)


def _by_round(name: str, rounds: Sequence[Sequence[Record]]) -> dict[int, float]:
    """The mean over seeds after each round that has the objective."""
    evaluated = [records for records in rounds if all(math.isfinite(r.get(name, math.nan)) for r in records)]
    return {int(records[0]["round"]): fmean(r[name] for r in records) for records in evaluated}
