"""A cell with its results, and its state: what follows from the study's design and the stored results, without I/O.

A cell is run in legs. A leg is what a worker receives: seeds, and the round that they run to. A cell of a grid has one
leg, all seeds to the last round. A trial of a search with halving runs its first seed to each rung and to the end, then
its other seeds. If seeds are added until comparisons are decided, each look is a leg.

==========  ==============================================================================
state       meaning
==========  ==============================================================================
queued      a leg is left to run, or running
paused      it has reached a rung, with a checkpoint: halving decides whether it continues
done        all wanted seeds ran all rounds
pruned      paused in a study that has nothing left to run; a larger budget reopens it
diverged    a seed has diverged
failed      a seed has failed in spite of retries; the next start tries it again
==========  ==============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fpl_tune.core.metrics import metric as known_metric
from fpl_tune.core.metrics import violation
from fpl_tune.study.cells import Cell
from fpl_tune.study.design import Design
from fpl_tune.study.results import FAILURES, Run, Status, aggregate, at_pace

if TYPE_CHECKING:
    from fpl_tune.simulation.simulation import Record


class CellState(StrEnum):
    """The state of a cell. A member equals its string."""

    QUEUED = "queued"
    PAUSED = "paused"
    DONE = "done"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"


OVER = frozenset({CellState.DONE, CellState.PRUNED, CellState.DIVERGED, CellState.FAILED})


class Leg(NamedTuple):
    """Seeds, and the round that they run to."""

    seeds: tuple[int, ...]
    rounds: int
    rung: bool = False
    """True if halving compares trials at its end."""


class Standing(NamedTuple):
    """The state of a cell, and the legs that are left."""

    state: CellState
    left: tuple[Leg, ...] = ()
    """The next one first; for a paused cell, those that follow if it continues."""
    rung: int = 0
    """Rounds after which it is paused; 0 if it is not."""


@dataclass(frozen=True, eq=False)
class Row:
    """A cell with its stored runs, without those of another version of its method or data."""

    cell: Cell
    design: Design
    """What the study asks of it."""
    runs: Mapping[int, Run] = field(default_factory=dict)
    """Runs by seed, also of seeds that the study does not ask for."""
    passed: frozenset[int] = frozenset()
    """Rungs that the cell has passed: rounds or, with looks, numbers of seeds."""
    together: tuple[int, ...] = ()
    """Seeds that were started together last, and so may share a checkpoint."""
    stale: tuple[str, ...] = ()
    """Reasons why stored results were left out, such as "method source"."""
    rejected: str = ""
    """The error with which a method refused the configuration of a trial; see `table.StudyTable.rejected`."""
    complete: bool = False
    """True if the study has nothing left to run, so that a paused trial is pruned."""
    _values: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def standing(self) -> Standing:
        """The state of the cell while the study runs, and the legs that are left."""
        ends = [self.runs[seed].status for seed in self.wanted if seed in self.runs]
        bad = next((state for state in (CellState.FAILED, CellState.DIVERGED) if state.value in ends), None)
        if bad is not None and self.cell.role == "trial":  # one seed ends a trial, but not the others of a grid's cell
            return Standing(bad)
        way = legs(self)
        for i, leg in enumerate(way):
            if todo := tuple(s for s in leg.seeds if s not in self.runs or not self.runs[s].ended(leg.rounds)):
                left = (leg._replace(seeds=todo), *way[i + 1 :])
                before = way[i - 1] if i else None
                if before is not None and before.rung and before.rounds not in self.passed:
                    return Standing(CellState.PAUSED, left, before.rounds)
                return Standing(CellState.QUEUED, left)
        return Standing(bad or CellState.DONE)

    @property
    def state(self) -> CellState:
        """The state of the cell as it is shown."""
        state = self.standing.state
        return CellState.PRUNED if state is CellState.PAUSED and self.complete else state

    @cached_property
    def wanted(self) -> tuple[int, ...]:
        """The seeds that it should have. With looks: those of the first and of passed looks, and any with a result."""
        design = self.design
        if not design.looks:
            return design.seeds_of(self.cell)
        most = max((look for look in design.looks[1:] if look in self.passed), default=design.looks[0])
        return tuple(seed for seed in design.seeds if seed <= most or seed in self.runs)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The seeds over which means are taken: those of the study's seeds that completed all rounds.

        A trial that halving has paused, or that has not run beyond its first seed yet, has none.
        """
        own = self.design.seeds_of(self.cell)
        completed = tuple(seed for seed in own if seed in self.runs and self.runs[seed].status == Status.DONE)
        if self.design.halves(self.cell):
            state, first = self.standing.state, {*self.design.seeds[:1]}
            if state is CellState.PAUSED or (state is CellState.QUEUED and {*completed} <= first):
                return ()
        return completed

    @cached_property
    def rung_values(self) -> dict[int, tuple[float, ...]]:
        """The objectives of a trial at the rungs that its first seed has reached, by round."""
        design = self.design
        if not design.halves(self.cell):
            return {}
        ends = [*design.rungs(self.cell), *([self.cell.rounds] if len(design.seeds) > 1 else [])]
        values = {rung: self.objectives_after(rung) for rung in ends}
        return {rung: value for rung, value in values.items() if value is not None}

    def objectives_after(self, rounds: int) -> tuple[float, ...] | None:
        """The design's objectives of the first seed after a number of rounds, or at the last evaluation before.

        Running totals are those that all rounds of the cell come to at this pace, so that trials of different lengths
        are compared by what they will cost.

        Returns:
            None if the seed has not run so far, or an objective is missing or not finite.
        """
        run, names = self.runs.get(self.design.seeds[0]), self.design.objectives
        if run is None or run.rounds < rounds:
            return None
        values = self._after(rounds, names)
        return tuple(values[name] for name in names) if values.keys() == {*names} else None

    def violation_after(self, rounds: int) -> float:
        """By how much the first seed violates limits after a number of rounds: running totals by what they come to at
        this pace, other metrics after the last round only, since they still change."""
        limits, final = dict(self.design.limits), rounds >= self.cell.rounds
        names = [name for name in limits if final or known_metric(name).source == "total"]
        return violation(self._after(rounds, names), limits)

    def _after(self, rounds: int, names: Sequence[str]) -> dict[str, float]:
        """The metrics of the first seed that it has after a number of rounds, running totals at their pace."""
        run = self.runs[self.design.seeds[0]]
        values = {name: run.latest(name, rounds) for name in names}
        return {name: at_pace(name, value, rounds, self.cell.rounds)
                for name, value in values.items() if value is not None}  # fmt: skip

    # -- what is shown ---------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> dict[int, Run]:
        """The runs of the study's seeds."""
        own = self.design.seeds_of(self.cell)
        return {seed: run for seed, run in self.runs.items() if seed in own}

    @property
    def compared(self) -> bool:
        """True if the cell is compared with others, in choices, differences, group letters and claims.

        It must have results, and all of them must count: a mean over only the seeds that have not diverged, or over
        fewer rounds, does not describe the cell.
        """
        return bool(self.results) and self.results.keys() <= {*self.counts}

    def status(self, seed: int) -> str:
        """The status of a seed in tables: done if and only if it counts, else its failure or the cell's state."""
        if seed in self.counts:
            return Status.DONE.value
        status = self.runs[seed].status
        return status.value if status in FAILURES else self.state.value

    def history(self, seed: int) -> Sequence[Record]:
        """Records of a seed by round; empty if it has no result, or its file is damaged."""
        return self.results[seed].records() if seed in self.results else []

    def seeds(self, rule: str) -> list[int]:
        """The seeds over which means are shown under a reporting rule: those that count.

        For a cell without any, such as one that was pruned, all its seeds, if they ran the same number of rounds.
        """
        ran = {s: run for s, run in self.results.items() if rule in run.rules and run.status not in FAILURES}
        done = [seed for seed in ran if seed in self.counts]
        return done or (list(ran) if len({run.rounds for run in ran.values()}) == 1 else [])

    def values(self, metric: str, rule: str) -> dict[int, float]:
        """A metric by seed, for these seeds, those aside whose records lack it."""
        if (metric, rule) not in self._values:
            by_seed = {seed: self.results[seed].value(metric, rule) for seed in self.seeds(rule)}
            self._values[metric, rule] = {seed: value for seed, value in by_seed.items() if not math.isnan(value)}
        return self._values[metric, rule]

    def over_seeds(self, metric: str, rule: str) -> dict[str, float]:
        """Mean, std, sem, n, min and max of a metric over these seeds; see `results.aggregate`."""
        return aggregate([*self.values(metric, rule).values()], metric)

    def within(self, rule: str) -> bool:
        """True if its means are within the limits of the search. A metric that no record holds is not."""
        limits = dict(self.design.limits)
        return violation({name: self.over_seeds(name, rule)["mean"] for name in limits}, limits) == 0


def legs(row: Row) -> list[Leg]:
    """All legs of a cell, in order."""
    design, rounds = row.design, row.cell.rounds
    if not design.halves(row.cell):
        return [Leg(row.wanted, rounds)]
    first, rest = design.seeds[:1], design.seeds[1:]  # those of a trial
    way = [*(Leg(first, rung, True) for rung in design.rungs(row.cell)), Leg(first, rounds, bool(rest))]
    return [*way, Leg(rest, rounds)] if rest else way
