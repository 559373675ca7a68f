"""Pruning by rounds: validation accuracy decides, and its noise is taken into account.

`halving` is asynchronous successive halving (Li et al., 2020, https://arxiv.org/abs/1810.05934). Rungs are the rounds
`first_rung` · `reduction`^k. A cell that reaches a rung goes on if it is among the best 1 / `reduction` of those that
reached it so far; otherwise it is paused with a checkpoint and goes on when its rung has room for it. One change to the
paper: once no further cell can reach a rung, those that are behind its cutoff by at most `confidence` standard errors
of the difference go on too, where the error comes from seeds and clients. The rest is pruned. Cells are compared only
with those of the same data, partition and schedule, trials of a search with those of the same cell of the axes.

Pruners of Optuna stop trials of a search permanently.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from fpl_tune.config import PruneSpec, RunSpec, StudySpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.search import components
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import aggregate
from fpl_tune.study.selection import setting_of

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

    from fpl_tune.search.search import Search

HALVING = "halving"
METRIC = "val/acc_mean"


class Score(NamedTuple):
    """A validation figure of a cell and its standard error."""

    mean: float
    error: float


def make_pruner(spec: PruneSpec) -> BasePruner:
    """Builds the pruner of Optuna or of a plug-in that a study names; without one, or with halving, it prunes nothing.

    Raises:
        ConfigError: it is unknown, or refuses its arguments.
    """
    import optuna

    if spec.rule is None or spec.rule == HALVING:
        return optuna.pruners.NopPruner()
    found = components.find("pruners", spec.rule, "prune.rule", (HALVING,))
    wrapped = found.arguments.pop("wrapped_pruner", None)
    return found.build(wrapped_pruner=None if wrapped is None else make_pruner(replace(spec, rule=wrapped)))


def score(rounds: Sequence[Sequence[Record]]) -> Score | None:
    """Mean over the seeds of the last evaluated round, and its standard error; None before the first evaluation."""
    records = next((records for records in reversed(rounds) if METRIC in records[0]), None)
    if records is None:
        return None
    found = aggregate([record[METRIC] for record in records])
    return Score(found["mean"], standard_error(METRIC, found["sem"], [[record] for record in records]) or 0.0)


def standard_error(metric: str, over_seeds: float, histories: Sequence[Sequence[Record]]) -> float | None:
    """Standard error of a metric's mean over seeds; None where it cannot be estimated.

    For validation accuracy, the larger of two estimates: from the spread over seeds, and over each seed's clients.
    """
    found = [] if math.isnan(over_seeds) else [over_seeds]
    if metric == METRIC:
        clients = [aggregate([v for v in history[-1].get("clients/val", ()) if v is not None]) for history in histories]
        if variance := math.fsum(own["sem"] ** 2 for own in clients if own["n"] > 1):
            found.append(math.sqrt(variance) / len(histories))
    return max(found, default=None)


def check(study: StudySpec, runs: Collection[RunSpec]) -> None:
    """Refuses a rule that no run can follow.

    Args:
        study: the study.
        runs: its candidates.

    Raises:
        ConfigError: the rule is unknown, or it never compares: no run is validated before its last round, the rungs lie
            outside the rounds, or a pruner of Optuna has no search.
    """
    spec = study.prune
    if spec.rule is None:
        return
    make_pruner(spec)
    if spec.rule != HALVING and study.search.sampler is None:
        raise ConfigError(f"prune.rule={spec.rule} needs a search, but there is none. Use prune.rule=halving.")
    run = max(runs, key=lambda run: run.rounds, default=None)
    if run is None or run.rounds == 1:
        return
    every = min(run.protocol.eval_every for run in runs)
    if every >= run.rounds:
        raise ConfigError(
            f"prune.rule compares validation figures before the last round, but protocol.eval_every={every} of "
            f"{run.rounds} rounds gives none. Lower protocol.eval_every, or remove prune.rule."
        )
    if spec.rule == HALVING and not [r for r in rungs(spec, run.rounds - 1) if r >= every]:
        raise ConfigError(
            f"Rungs of prune.rule=halving must lie between the first validation, after round {every}, and the last "
            f"round, {run.rounds}, but prune.first_rung={spec.first_rung} with prune.reduction={spec.reduction} gives "
            f"{list(rungs(spec, 2 * max(run.rounds, spec.first_rung)))}. Set prune.first_rung={every}."
        )


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
    """

    def __init__(self, spec: PruneSpec, axes: Sequence[str] = (), search: Search | None = None) -> None:
        self.spec, self._axes, self._search = spec, tuple(axes), search
        self._rungs: dict[Rung, dict[str, Score]] = defaultdict(dict)
        self._passed: dict[Rung, set[str]] = defaultdict(set)
        self._groups: dict[str, str] = {}

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
            prune = self._search is not None and self._search.should_prune(cell, number, mine.mean)
            return Decision.STOP if prune and latest else Decision.CONTINUE
        if number not in rungs(self.spec, number):
            return Decision.CONTINUE
        key = self._group(cell), number
        self._rungs[key][cell.id] = mine
        if not latest or cell.id in self._passed[key] or cell.id in self._best(key):
            self._passed[key].add(cell.id)
            return Decision.CONTINUE
        return Decision.PAUSE

    def _group(self, cell: Cell) -> str:
        if cell.id not in self._groups:
            self._groups[cell.id] = peers(cell, self._axes)
        return self._groups[cell.id]

    def _rung(self, paused: Paused) -> Rung:
        return self._group(paused.cell), paused.round

    def _ranked(self, rung: Rung) -> list[str]:
        """Cells of a rung, the best first."""
        return sorted(self._rungs[rung], key=lambda name: -self._rungs[rung][name].mean)

    def _best(self, rung: Rung) -> list[str]:
        """The best 1 / `reduction` of a rung."""
        return self._ranked(rung)[: len(self._rungs[rung]) // self.spec.reduction]

    def _near_the_best(self, rung: Rung) -> list[str]:
        """Cells of a rung that are within the noise of its cutoff; at least one."""
        scores, ranked = self._rungs[rung], self._ranked(rung)
        cutoff = scores[ranked[max(1, len(ranked) // self.spec.reduction) - 1]]

        def noise(name: str) -> float:
            return self.spec.confidence * math.hypot(scores[name].error, cutoff.error)

        return [name for name in ranked if cutoff.mean - scores[name].mean <= noise(name)]

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
        promoted = self._take(due, self._near_the_best)
        return promoted, [p for p in due if p not in promoted]

    def _take(self, paused: Collection[Paused], chosen: Callable[[Rung], list[str]]) -> list[Paused]:
        """The paused cells among those that `chosen` gives of their rung, which they pass."""
        names = {rung: chosen(rung) for rung in set(map(self._rung, paused))}
        taken = [p for p in paused if p.cell.id in names[self._rung(p)]]
        for p in taken:
            self._passed[self._rung(p)].add(p.cell.id)
        return sorted(taken, key=lambda p: (-p.round, names[self._rung(p)].index(p.cell.id)))


def rungs(spec: PruneSpec, rounds: int) -> tuple[int, ...]:
    """Rounds after which `halving` compares cells, up to `rounds`; empty for other rules."""
    numbers = (spec.first_rung * spec.reduction**k for k in itertools.count())
    return tuple(itertools.takewhile(lambda n: n <= rounds, numbers)) if spec.rule == HALVING else ()


def peers(cell: Cell, axes: Sequence[str] = ()) -> str:
    """Cells with the same key may be compared: same data, partition and schedule, and trials of one search.

    Args:
        cell: the cell.
        axes: names of the study's axes, in each cell of which a search has its own budget. Trials of one search are
            compared whatever values of the searched fields they have.
    """
    inside = {name: cell.varied.get(name) for name in axes} if cell.role == "trial" else {}
    return json.dumps([inside, asdict(cell.run.clip), setting_of(cell, axes)], sort_keys=True)
