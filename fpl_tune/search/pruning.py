"""Pruning by rounds: the search's objective decides, in a grid validation accuracy.

`halving` is asynchronous successive halving (Li et al., 2020, https://arxiv.org/abs/1810.05934). Rungs are the first
validated rounds from `first_rung` · `reduction`^k on. By default the first is a third of the rounds: in tables of three
methods, validation after a sixth ranked configurations by how fast they learn, and lost one method's best. A cell
that reaches a rung goes on if it is among the best 1 / `reduction` of those that reached it so far; otherwise it is
paused with a checkpoint and goes on when its rung has room for it. A trial of a search runs its first seed alone: its
last round is the rung that its other seeds wait for. Once no further cell can reach a rung, the rest is pruned. Cells
are compared only with those of the same data, partition and schedule, trials of a search with those of the same cell of
the axes. A rung is no table of its own: it is read from the trials, which hold their values at the rungs they reached.

Where learning curves cross, early rounds rank configurations the wrong way round, and the best one is always stopped.
As a hedge, every third trial of a search passes the rungs of rounds whatever its value there. It is ranked there with
the others, and stopped at the rung of seeds like them. These trials also say how well a rung foresees the end.

Pruners of Optuna stop trials of a search permanently.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fpl_tune.config import PruneSpec, RunSpec, StudySpec
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.metrics import metric
from fpl_tune.search import components
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import TOTAL_BYTES
from fpl_tune.study.selection import setting_of
from fpl_tune.study.trial import State, Trial

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

HALVING, AUTO = "halving", "auto"
HEDGE = 3
"""Of so many suggested trials one is hedged. With one in three, a search of a table whose curves cross costs about what
it costs TPE, which prunes nothing; with one in four, half as much again. Of three simulated tables, one in three costs
two and a half full trials on one, and one in four nothing on any."""
FULL_TRIALS = 20
"""Full trials of a search that states neither trials nor a budget."""
METRIC = "val/acc_mean"


def resolved(study: StudySpec) -> PruneSpec:
    """The study's `prune` with what `auto` stands for: halving for samplers with which it was measured, and a hedge in
    a search with halving."""
    rule = _rule(study)
    hedge = study.prune.hedge if rule == HALVING and study.search.sampler is not None else None
    return replace(study.prune, rule=rule, hedge=HEDGE if hedge == AUTO else hedge)


def _rule(study: StudySpec) -> Any:
    """The rule of pruning."""
    search = study.search
    if study.prune.rule != AUTO:
        return study.prune.rule
    if search.sampler is None or search.objectives != [METRIC]:
        return None
    from optuna.samplers import GPSampler, QMCSampler, RandomSampler, TPESampler

    from fpl_tune.search.samplers import named

    kind = named(search.sampler).kind
    return HALVING if issubclass(kind, (GPSampler, QMCSampler, RandomSampler, TPESampler)) else None


def make_pruner(spec: PruneSpec) -> BasePruner:
    """Builds the pruner of Optuna or of a plug-in that a study names; without one, or with halving, it prunes nothing.

    Raises:
        ConfigError: it is unknown, or refuses its arguments.
    """
    import optuna

    if spec.rule in (None, AUTO, HALVING):
        return optuna.pruners.NopPruner()
    found = components.find("pruners", spec.rule, "prune.rule", (HALVING,))
    wrapped = found.arguments.pop("wrapped_pruner", None)
    return found.build(wrapped_pruner=None if wrapped is None else make_pruner(replace(spec, rule=wrapped)))


def objective_of(study: StudySpec) -> str:
    """The metric by which trials are compared: the first objective of a search, else validation accuracy."""
    return study.search.objectives[0] if study.search.sampler is not None else METRIC


def score(rounds: Sequence[Sequence[Record]], name: str = METRIC) -> float | None:
    """A metric in the last round that has it, the mean over seeds; None before the first one, and where it is NaN.

    Args:
        rounds: records by round, one per seed in each.
        name: the metric. Accuracies are in evaluated rounds alone, costs are totals so far.
    """
    parts = ("comm/up_bytes", "comm/down_bytes") if name == TOTAL_BYTES else (name,)
    for records in reversed(rounds):
        if all(part in record for record in records for part in parts):
            value = fmean(sum(float(record[part]) for part in parts) for record in records)
            return value if math.isfinite(value) else None
    return None


def check(study: StudySpec, runs: Collection[RunSpec]) -> None:
    """Refuses a rule that no run can follow; where `auto` cannot prune, it says so.

    Args:
        study: the study.
        runs: its candidates.

    Raises:
        ConfigError: the rule is unknown, or it never compares: no run is validated before its last round, the rungs lie
            outside the rounds, or a pruner of Optuna has no search. Or a hedge has no search or no rung.
    """
    spec = resolved(study)
    if spec.rule is None:
        return
    make_pruner(spec)
    hedged = isinstance(study.prune.hedge, int) and spec.rule == HALVING
    if hedged and study.search.sampler is None:
        raise ConfigError(f"prune.hedge={study.prune.hedge} needs a search, but there is none. Set prune.hedge=auto.")
    if spec.rule != HALVING and study.search.sampler is None:
        raise ConfigError(f"prune.rule={spec.rule} needs a search, but there is none. Use prune.rule=halving.")
    if study.search.sampler is not None and len(study.search.objectives) > 1:
        raise ConfigError(
            f"prune.rule={spec.rule} compares trials by one objective, but search.objectives has "
            f"{', '.join(study.search.objectives)}. Set prune.rule=null, or search for one of them."
        )
    last = max((run.rounds for run in runs), default=1)
    compares = (rungs(spec, run) if spec.rule == HALVING else run.protocol.eval_every < run.rounds for run in runs)
    if last == 1 or any(compares):
        return
    every = min(run.protocol.eval_every for run in runs)
    rung = f" with prune.first_rung={spec.first_rung}" if spec.first_rung else ""
    problem = (
        f"prune.rule compares validation figures before the last round, but protocol.eval_every={every} of {last} "
        f"rounds gives none{rung}. Lower them, or set prune.rule=null."
    )
    if hedged:
        problem = (
            f"prune.hedge={spec.hedge} lets trials pass rungs of rounds, but prune.reduction={spec.reduction} with "
            f"protocol.eval_every={every} of {last} rounds leaves none{rung}. Lower them, or set prune.hedge=auto."
        )
    if study.prune.rule != AUTO or hedged:
        raise ConfigError(problem)
    warnings.warn(f"Every trial runs to its end: {problem}", Notice, stacklevel=2)


def planned_trials(study: StudySpec, run: RunSpec) -> int:
    """Trials of the search of a run: those that the study states, or that its budget is expected to pay."""
    search, cost = study.search, expected_cost(resolved(study), run, len(study.seed_list()))
    return search.trials or math.ceil((search.budget or FULL_TRIALS) / cost)


class Halving:
    """Decides at the ends of legs which trials go on. References always do.

    Args:
        study: the study; its `prune` gives the reduction, its axes the cells in each of which a search has its budget.
        cells: by id.
        trials: by the ids of their cells.
        published: gives the ids of the cells of published points, of which one reaches the end, so that the gain over
            it is known.
        hedged: whether a cell's trial passes the rungs of rounds in any case; None: none does.
    """

    def __init__(
        self,
        study: StudySpec,
        cells: Mapping[str, Cell],
        trials: Mapping[str, Trial],
        published: Callable[[], Collection[str]] = set[str],
        hedged: Callable[[Cell], bool] | None = None,
    ) -> None:
        self._prune, self._axes = resolved(study), tuple(axes_of(study.axes))
        self._published, self._is_hedged = published, hedged
        self._cells, self._trials = cells, trials
        self._sign = 1.0 if metric(objective_of(study)).maximize else -1.0
        self._groups: dict[str, str] = {}

    def passes(self, cell: str) -> bool:
        """Whether a trial that has reached the rung at the end of its leg goes on at once."""
        rung = self._trials[cell].present.rounds
        known = rung in self._trials[cell].values
        return not known or self._hedges(cell, rung) or cell in self._best(self._ranked(cell, rung), rung)

    def rank(self, cell: str, rung: int) -> int:
        """Place of a trial among those that reached a rung, from 0; their number for one without a value there."""
        ranked = self._ranked(cell, rung)
        return ranked.index(cell) if cell in ranked else len(ranked)

    def promote(self, waiting: Collection[str]) -> list[str]:
        """Selects the waiting trials that may go on, the furthest and best first."""
        return self._chosen(waiting, self._best)

    def settle(self, waiting: Collection[str], running: Iterable[str]) -> tuple[list[str], list[str]]:
        """Selects what goes on and what is pruned at rungs that no other trial can reach.

        Valid only while no trial is queued and none is left to suggest.

        Args:
            waiting: cells of the trials that wait.
            running: cells of those that run.

        Returns:
            Cells whose trials go on, and those whose trials are pruned.
        """
        lowest: dict[str, float] = defaultdict(lambda: math.inf)
        for cell in [*running, *waiting]:
            trial, group = self._trials[cell], self._group(cell)
            on_its_way = trial.state is State.RUNNING and trial.present.decides
            lowest[group] = min(lowest[group], trial.present.rounds - 0.5 * on_its_way)
        due = [cell for cell in waiting if self._trials[cell].present.rounds == lowest[self._group(cell)]]
        promoted = self._chosen(due, self._last)
        return promoted, [cell for cell in due if cell not in promoted]

    def _hedges(self, cell: str, rung: int) -> bool:
        """Whether a trial passes a rung of rounds in any case."""
        return rung < self._cells[cell].run.rounds and self._hedged(cell)

    def _hedged(self, cell: str) -> bool:
        return self._is_hedged is not None and self._is_hedged(self._cells[cell])

    def _group(self, cell: str) -> str:
        """Key of the cells that may be compared with one."""
        if cell not in self._groups:
            self._groups[cell] = peers(self._cells[cell], self._axes)
        return self._groups[cell]

    def _ranked(self, cell: str, rung: int) -> list[str]:
        """The cells at a rung of a cell's group, the best first."""
        group = self._group(cell)
        there = [
            key
            for key, trial in self._trials.items()
            if rung in trial.values and self._cells[key].candidate and self._group(key) == group
        ]
        return sorted(there, key=lambda key: -self._sign * self._trials[key].values[rung])

    def _best(self, ranked: list[str], rung: int) -> list[str]:
        """The best 1 / `reduction`.

        Hedged trials passed the rungs before unasked. Of as many others, one in `reduction` would have passed each, and
        so they count: else bad ones would make room for others that are no better.
        """
        if not ranked:
            return []
        hedged = sum(map(self._hedged, ranked))
        share = self._prune.reduction ** sum(n < rung for n in rungs(self._prune, self._cells[ranked[0]].run))
        return ranked[: ((len(ranked) - hedged) * share + hedged) // (share * self._prune.reduction)]

    def _last(self, ranked: list[str], rung: int) -> list[str]:
        """The best of a rung that no other trial can reach: at least one, and one published point."""
        known = [key for key in ranked if key in self._published()]
        passed = any(self._trials[key].passed(rung) for key in known)
        return [*(self._best(ranked, rung) or ranked[:1]), *([] if passed else known[:1])]

    def _chosen(self, waiting: Collection[str], chosen: Callable[[list[str], int], list[str]]) -> list[str]:
        """The waiting trials among those that `chosen` gives of their rung's ranking, the furthest and best first.

        Hedged ones are among them, which wait only if they came to their rung before the study had a hedge.
        """
        places: dict[str, tuple[int, int]] = {}
        known: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
        for cell in waiting:
            rung = self._trials[cell].present.rounds
            key = self._group(cell), rung
            if key not in known:
                ranked = self._ranked(cell, rung)
                known[key] = ranked, chosen(ranked, rung)
            ranked, going = known[key]
            if cell in going or self._hedges(cell, rung):
                places[cell] = -rung, ranked.index(cell)
        return sorted(places, key=places.__getitem__)


def rungs(spec: PruneSpec, run: RunSpec) -> tuple[int, ...]:
    """Rounds after which `halving` compares cells: validated ones before the last; empty for other rules."""
    every, found = run.protocol.eval_every, list[int]()
    number = spec.first_rung or math.ceil(run.rounds / spec.reduction)
    while spec.rule == HALVING and (validated := math.ceil(number / every) * every) < run.rounds:
        found.append(validated)
        number *= spec.reduction
    return tuple(dict.fromkeys(found))


def expected_cost(spec: PruneSpec, run: RunSpec, seeds: int) -> float:
    """Expected cost of a trial in full ones, of all rounds and seeds, if one in `reduction` passes each rung."""
    ends = (*rungs(spec, run), run.rounds)
    if len(ends) == 1:
        return 1.0
    *shares, others = leg_shares(spec, run)
    first = math.fsum(share * (end - begin) for share, begin, end in zip(shares, (0, *ends), ends, strict=False))
    return (first + others * (seeds - 1) * run.rounds) / (seeds * run.rounds)


def leg_shares(spec: PruneSpec, run: RunSpec) -> list[float]:
    """The shares of trials that are expected to begin each leg: one for each rung and the last round, and one for the
    other seeds. At each rung, one in `reduction` passes, and at those of rounds what is hedged."""
    hedged, number = 1 / spec.hedge if isinstance(spec.hedge, int) else 0.0, len(rungs(spec, run))
    passed = [spec.reduction**-k for k in range(number + 2)]
    return [1.0, *(hedged + (1 - hedged) * share for share in passed[1:-1]), passed[-1]]


def peers(cell: Cell, axes: Sequence[str] = ()) -> str:
    """Cells with the same key may be compared: same data, partition and schedule, and trials of one search.

    Args:
        cell: the cell.
        axes: names of the study's axes, in each cell of which a search has its own budget. Trials of one search are
            compared whatever values of the searched fields they have.
    """
    inside = {name: cell.varied.get(name) for name in axes} if cell.role == "trial" else {}
    return json.dumps([inside, asdict(cell.run.clip), setting_of(cell, axes)], sort_keys=True)
