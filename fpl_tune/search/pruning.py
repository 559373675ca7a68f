"""Pruning by rounds: validation accuracy decides.

`halving` is asynchronous successive halving (Li et al., 2020, https://arxiv.org/abs/1810.05934). Rungs are the first
validated rounds from `first_rung` · `reduction`^k on. By default the first is a third of the rounds: in tables of three
methods, validation after a sixth ranked configurations by how fast they learn, and lost one method's best. A cell
that reaches a rung goes on if it is among the best 1 / `reduction` of those that reached it so far; otherwise it is
paused with a checkpoint and goes on when its rung has room for it. A trial of a search runs its first seed alone: its
last round is the rung that its other seeds wait for. Once no further cell can reach a rung, the rest is pruned. Cells
are compared only with those of the same data, partition and schedule, trials of a search with those of the same cell of
the axes.

Pruners of Optuna stop trials of a search permanently.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from enum import Enum
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from fpl_tune.config import PruneSpec, RunSpec, StudySpec
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.search import components
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.selection import setting_of

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

    from fpl_tune.search.search import Search

HALVING, AUTO = "halving", "auto"
FULL_TRIALS = 20
"""Full trials of a search that states neither trials nor a budget."""
METRIC = "val/acc_mean"


def resolved(study: StudySpec) -> PruneSpec:
    """The study's `prune` with the rule that `auto` stands for: halving for samplers with which it was measured."""
    spec, search = study.prune, study.search
    if spec.rule != AUTO:
        return spec
    if search.sampler is None or search.objectives != [METRIC]:
        return replace(spec, rule=None)
    from optuna.samplers import GPSampler, QMCSampler, RandomSampler, TPESampler

    from fpl_tune.search.samplers import named

    kind = named(search.sampler).kind
    return replace(spec, rule=HALVING if issubclass(kind, (GPSampler, QMCSampler, RandomSampler, TPESampler)) else None)


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


def score(rounds: Sequence[Sequence[Record]]) -> float | None:
    """Validation accuracy of the last evaluated round, the mean over seeds; None before the first evaluation."""
    records = next((records for records in reversed(rounds) if METRIC in records[0]), None)
    return None if records is None else fmean(record[METRIC] for record in records)


def check(study: StudySpec, runs: Collection[RunSpec]) -> None:
    """Refuses a rule that no run can follow; where `auto` cannot prune, it says so.

    Args:
        study: the study.
        runs: its candidates.

    Raises:
        ConfigError: the rule is unknown, or it never compares: no run is validated before its last round, the rungs lie
            outside the rounds, or a pruner of Optuna has no search.
    """
    spec = resolved(study)
    if spec.rule is None:
        return
    make_pruner(spec)
    if spec.rule != HALVING and study.search.sampler is None:
        raise ConfigError(f"prune.rule={spec.rule} needs a search, but there is none. Use prune.rule=halving.")
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
    if study.prune.rule != AUTO:
        raise ConfigError(problem)
    warnings.warn(f"Every trial runs to its end: {problem}", Notice, stacklevel=2)


def planned_trials(study: StudySpec, run: RunSpec) -> int:
    """Trials of the search of a run: those that the study states, or that its budget is expected to pay."""
    search, cost = study.search, expected_cost(resolved(study), run, len(study.seed_list()))
    return search.trials or math.ceil((search.budget or FULL_TRIALS) / cost)


class Decision(Enum):
    """The decision on a cell after a round."""

    CONTINUE = "continue"
    PAUSE = "pause"
    """It stops with a checkpoint and may resume."""
    STOP = "stop"


class Paused(NamedTuple):
    """A cell that is paused at a rung."""

    cell: Cell
    round: int


Rung = tuple[str, int]
"""A group of cells that may be compared, and a round."""


class Pruner:
    """Decides after each round whether a cell goes on. References always do.

    Args:
        spec: the study's `prune`.
        axes: names of the study's axes, in each cell of which a search has its own budget.
        search: the study's search, whose trials a pruner of Optuna compares.
        seeds: the study's, of which halving runs the first one of a trial alone; empty: all together.
    """

    def __init__(
        self, spec: PruneSpec, axes: Sequence[str] = (), search: Search | None = None, seeds: Sequence[int] = ()
    ) -> None:
        self.spec, self._axes, self._search, self._seeds = spec, tuple(axes), search, tuple(seeds)
        self._rungs: dict[Rung, dict[str, float]] = defaultdict(dict)
        self._passed: dict[Rung, set[str]] = defaultdict(set)
        self._groups: dict[str, str] = {}

    def first_seeds(self, cell: Cell) -> tuple[int, ...]:
        """Seeds of a cell that run first: one of a trial that halving may stop, else all."""
        return self._seeds[:1] if cell.role == "trial" and rungs(self.spec, cell.run) else self._seeds

    def decide(self, cell: Cell, rounds: Sequence[Sequence[Record]], *, latest: bool = True) -> Decision:
        """Whether a cell goes on.

        Args:
            cell: the cell.
            rounds: its rounds so far, one record per seed in each.
            latest: False for a round before the cell's last one.
        """
        number = len(rounds)
        if self.spec.rule is None or not cell.candidate or number >= cell.run.rounds:
            return Decision.CONTINUE
        if (mine := score(rounds)) is None:
            return Decision.CONTINUE
        if self.spec.rule != HALVING:
            prune = self._search is not None and self._search.should_prune(cell, number, mine)
            return Decision.STOP if prune and latest else Decision.CONTINUE
        first = self.first_seeds(cell)
        if number not in rungs(self.spec, cell.run) or (first and rounds[0][0]["seed"] not in first):
            return Decision.CONTINUE
        return Decision.CONTINUE if self._passes((self._group(cell), number), cell, mine, latest) else Decision.PAUSE

    def allows_seeds(self, cell: Cell, rounds: Sequence[Sequence[Record]]) -> bool:
        """Whether a trial is among the best 1 / `reduction` by all rounds of its first seed: its other seeds run."""
        mine = score(rounds)
        return mine is None or self._passes((self._group(cell), cell.run.rounds), cell, mine, latest=True)

    def restore(self, cell: Cell, rounds: Sequence[Sequence[Record]], *, passed: bool) -> None:
        """Enters a cell at the rungs that it had reached before a restart; nothing is decided anew.

        Args:
            cell: the cell.
            rounds: its rounds so far, of the seeds that run first. It has passed all rungs before the last one.
            passed: whether it has passed the rung of the last round, too.
        """
        for number in (*rungs(self.spec, cell.run), cell.run.rounds) if cell.candidate else ():
            if number <= len(rounds) and (mine := score(rounds[:number])) is not None:
                rung = self._group(cell), number
                self._rungs[rung][cell.id] = mine
                if passed or number < len(rounds):
                    self._passed[rung].add(cell.id)

    def _passes(self, rung: Rung, cell: Cell, mine: float, latest: bool) -> bool:
        """Whether a cell that reaches a rung passes it now."""
        self._rungs[rung][cell.id] = mine
        passes = not latest or cell.id in self._passed[rung] or cell.id in self._best(rung)
        if passes:
            self._passed[rung].add(cell.id)
        return passes

    def _group(self, cell: Cell) -> str:
        if cell.id not in self._groups:
            self._groups[cell.id] = peers(cell, self._axes)
        return self._groups[cell.id]

    def _rung(self, paused: Paused) -> Rung:
        return self._group(paused.cell), paused.round

    def _ranked(self, rung: Rung) -> list[str]:
        """Cells of a rung, the best first."""
        return sorted(self._rungs[rung], key=lambda name: -self._rungs[rung][name])

    def _best(self, rung: Rung) -> list[str]:
        """The best 1 / `reduction` of a rung."""
        return self._ranked(rung)[: len(self._rungs[rung]) // self.spec.reduction]

    def _last(self, rung: Rung) -> list[str]:
        """The best of a rung that no other cell can reach: at least one, and one published point.

        A published point reaches the end, so that the gain over it is known.
        """
        ranked = self._ranked(rung)
        chosen = self._best(rung) or ranked[:1]
        known = [name for name in ranked if self._search is not None and name in self._search.published]
        return [*chosen, *known[:1]] if self._passed[rung].isdisjoint(known) else chosen

    def promote(self, paused: Collection[Paused]) -> list[Paused]:
        """Selects the paused cells that may resume, the furthest and best first."""
        return self._take(paused, self._best)

    def settle(self, paused: Collection[Paused], running: Iterable[Paused]) -> tuple[list[Paused], list[Paused]]:
        """Resumes or prunes the cells paused at rungs that no other cell can reach.

        Valid only while no cell is queued and no trial is left to suggest.

        Args:
            paused: cells that wait.
            running: other cells and the rounds that they have done.

        Returns:
            Cells that go on, and cells that are pruned.
        """
        lowest: dict[str, int] = {}
        for cell, number in [*running, *paused]:
            group = self._group(cell)
            lowest[group] = min(number, lowest.get(group, number))
        due = [p for p in paused if p.round == lowest[self._group(p.cell)]]
        promoted = self._take(due, self._last)
        return promoted, [p for p in due if p not in promoted]

    def _take(self, paused: Collection[Paused], chosen: Callable[[Rung], list[str]]) -> list[Paused]:
        """The paused cells among those that `chosen` gives of their rung, which they pass."""
        names = {rung: chosen(rung) for rung in set(map(self._rung, paused))}
        taken = [p for p in paused if p.cell.id in names[self._rung(p)]]
        for p in taken:
            self._passed[self._rung(p)].add(p.cell.id)
        return sorted(taken, key=lambda p: (-p.round, names[self._rung(p)].index(p.cell.id)))


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
    shares = [spec.reduction**-k for k in range(len(ends) + 1)]
    first = math.fsum(share * (end - begin) for share, begin, end in zip(shares, (0, *ends), ends, strict=False))
    return (first + shares[-1] * (seeds - 1) * run.rounds) / (seeds * run.rounds)


def peers(cell: Cell, axes: Sequence[str] = ()) -> str:
    """Cells with the same key may be compared: same data, partition and schedule, and trials of one search.

    Args:
        cell: the cell.
        axes: names of the study's axes, in each cell of which a search has its own budget. Trials of one search are
            compared whatever values of the searched fields they have.
    """
    inside = {name: cell.varied.get(name) for name in axes} if cell.role == "trial" else {}
    return json.dumps([inside, asdict(cell.run.clip), setting_of(cell, axes)], sort_keys=True)
