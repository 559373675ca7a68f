"""Where a cell stands: functions of the study's design and of what is stored of the cell. Nothing here reads or writes.

A cell is run in legs. A leg is what a worker receives: seeds, and the round that they run to. A cell of a grid has one
leg, all seeds to the last round. A trial of a search with halving runs its first seed to each rung and to the end, then
its other seeds. Where seeds are added until comparisons are decided, each look is a leg.

==========  ==============================================================================
state       meaning
==========  ==============================================================================
queued      a leg is to run, or under way
paused      it has reached a rung, with a checkpoint: halving decides whether it goes on
done        all wanted seeds ran all rounds
pruned      paused in a study that has nothing left to run; a larger budget reopens it
diverged    a seed has diverged
failed      a seed has failed, and was retried; the next start tries it again
==========  ==============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.core.metrics import TOTAL_BYTES, VAL
from fpl_tune.study.cells import Cell
from fpl_tune.study.status import FAILURES, Status

if TYPE_CHECKING:
    from fpl_tune.simulation.simulation import Record


class State(StrEnum):
    """Where a cell stands. A member equals its string."""

    QUEUED = "queued"
    PAUSED = "paused"
    DONE = "done"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"


OVER = frozenset({State.DONE, State.PRUNED, State.DIVERGED, State.FAILED})


class Leg(NamedTuple):
    """Seeds, and the round that they run to."""

    seeds: tuple[int, ...]
    rounds: int
    rung: bool = False
    """Whether halving compares trials at its end."""


@dataclass(frozen=True)
class Design:
    """What a study asks for of each cell: seeds, looks and halving."""

    seeds: tuple[int, ...]
    """All of them; of a study with looks those of the last one."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
    objective: str = VAL
    """By which halving compares trials."""
    reduction: int | None = None
    """Of halving; None: no trial is stopped early."""
    first_rung: int | None = None

    @classmethod
    def of(cls, study: Any, *, halved: bool) -> Design:
        """The design of a study, as it is composed or as it is stored; `halved`: whether its trials are."""
        searched, prune = study.search.sampler is not None and study.search.objectives, study.prune
        return cls(
            tuple(study.seed_list()),
            tuple(study.declared_looks()),
            study.search.objectives[0] if searched else VAL,
            prune.reduction if halved else None,
            prune.first_rung if halved else None,
        )

    def halves(self, cell: Cell) -> bool:
        """Whether halving may stop a cell. A trial that is a reference too runs whole."""
        return self.reduction is not None and cell.role == "trial" and not cell.reference and bool(self.rungs(cell))

    def rungs(self, cell: Cell) -> tuple[int, ...]:
        """Rounds after which halving compares trials; see `rungs_of`."""
        if self.reduction is None:
            return ()
        return rungs_of(self.reduction, self.first_rung, cell.eval_every, cell.rounds)


@cache
def rungs_of(reduction: int, first_rung: int | None, eval_every: int, rounds: int) -> tuple[int, ...]:
    """The first evaluated rounds from `first_rung` · `reduction`^k on, before the last one."""
    found, number = list[int](), first_rung or math.ceil(rounds / reduction)
    while (evaluated := math.ceil(number / eval_every) * eval_every) < rounds:
        found.append(evaluated)
        number *= reduction
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, eq=False)
class Run:
    """What a seed of a cell has left."""

    status: Status
    rounds: int
    records: Callable[[], Sequence[Record]] = field(default=list, repr=False)
    """Reads its history."""
    _values: dict[tuple[str, int], float | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def history(self) -> Sequence[Record]:
        """Records by round."""
        return self.records()

    def ended(self, rounds: int) -> bool:
        """Whether it has run so many rounds, or ends before them for good."""
        return self.rounds >= rounds or self.status in FAILURES

    def value(self, metric: str, rounds: int) -> float | None:
        """A metric after a number of rounds, or in the last evaluated round before; None where it is missing or NaN."""
        if (metric, rounds) not in self._values:
            self._values[metric, rounds] = latest(self.history[:rounds], metric)
        return self._values[metric, rounds]


def latest(history: Sequence[Record], metric: str) -> float | None:
    """A metric in the last record that holds it; None where none does, or where it is no finite number."""
    parts = ("comm/up_bytes", "comm/down_bytes") if metric == TOTAL_BYTES else (metric,)
    for record in reversed(history):
        if all(part in record for part in parts):
            value = math.fsum(float(record[part]) for part in parts)
            return value if math.isfinite(value) else None
    return None


@dataclass(frozen=True, eq=False)
class Row:
    """A cell with what is stored of it. Results of another version of its method or data are left out."""

    cell: Cell
    runs: Mapping[int, Run] = field(default_factory=dict)
    """By seed."""
    passed: frozenset[int] = frozenset()
    """Rungs that it was let pass: rounds or, of looks, numbers of seeds."""
    together: tuple[int, ...] = ()
    """Seeds that were started together last, and so may have a checkpoint."""
    stale: tuple[str, ...] = ()
    """What differs from the versions with which the results that are left out were made, in words."""
    standings: dict[Design, Standing] = field(default_factory=dict, init=False, repr=False)
    """Where it stands, by design; see `standing`, which computes it once: a row never changes."""


class Standing(NamedTuple):
    """The state of a cell, and the legs that are left."""

    state: State
    left: tuple[Leg, ...] = ()
    """The next one first; of a paused cell those that follow if it goes on."""
    rung: int = 0
    """Rounds after which it is paused."""


def legs(design: Design, row: Row) -> list[Leg]:
    """The way of a cell through the study."""
    rounds = row.cell.rounds
    if not design.halves(row.cell):
        return [Leg(wanted(design, row), rounds)]
    first, rest = design.seeds[:1], design.seeds[1:]
    way = [*(Leg(first, rung, True) for rung in design.rungs(row.cell)), Leg(first, rounds, bool(rest))]
    return [*way, Leg(rest, rounds)] if rest else way


def wanted(design: Design, row: Row) -> tuple[int, ...]:
    """The seeds that a cell is to have. With looks: those of the first one, of those passed, and any with a result."""
    if not design.looks:
        return design.seeds
    most = max((look for look in design.looks[1:] if look in row.passed), default=design.looks[0])
    return tuple(seed for seed in design.seeds if seed <= most or seed in row.runs)


def standing(design: Design, row: Row) -> Standing:
    """Where a cell stands while the study runs."""
    if design not in row.standings:
        row.standings[design] = _standing(design, row)
    return row.standings[design]


def _standing(design: Design, row: Row) -> Standing:
    ends = [row.runs[seed].status for seed in wanted(design, row) if seed in row.runs]
    bad = next((state for state in (State.FAILED, State.DIVERGED) if state.value in ends), None)
    if bad is not None and row.cell.role == "trial":  # one seed ends a trial, but not the other seeds of a grid's cell
        return Standing(bad)
    way = legs(design, row)
    for i, leg in enumerate(way):
        if todo := tuple(seed for seed in leg.seeds if seed not in row.runs or not row.runs[seed].ended(leg.rounds)):
            left = (leg._replace(seeds=todo), *way[i + 1 :])
            before = way[i - 1] if i else None
            if before is not None and before.rung and before.rounds not in row.passed:
                return Standing(State.PAUSED, left, before.rounds)
            return Standing(State.QUEUED, left)
    return Standing(bad or State.DONE)


def counts(design: Design, row: Row) -> tuple[int, ...]:
    """The seeds that enter means: of those that the study asks for, the ones that ran all rounds.

    A trial that halving has paused, or has not taken on beyond its first seed yet, has none.
    """
    whole = tuple(seed for seed in design.seeds if seed in row.runs and row.runs[seed].status == Status.DONE)
    if design.halves(row.cell):
        state = standing(design, row).state
        if state is State.PAUSED or (state is State.QUEUED and set(whole) <= set(design.seeds[:1])):
            return ()
    return whole


def rung_values(design: Design, row: Row) -> dict[int, float]:
    """The objective of a trial at the rungs that its first seed has reached, by round."""
    run = row.runs.get(design.seeds[0])
    if run is None or not design.halves(row.cell):
        return {}
    ends = [*design.rungs(row.cell), *([row.cell.rounds] if len(design.seeds) > 1 else [])]
    values = {rung: run.value(design.objective, rung) for rung in ends if rung <= run.rounds}
    return {rung: value for rung, value in values.items() if value is not None}


def shown_status(design: Design, row: Row, seed: int, state: State) -> str:
    """What tables call a seed's result: done exactly if it counts, else what became of it or of its cell.

    Args:
        design, row, seed: of the result.
        state: of the cell.
    """
    if seed in counts(design, row):
        return Status.DONE.value
    status = row.runs[seed].status
    return status.value if status in FAILURES else state.value


def marks(row: Row, prints: Mapping[str, Any]) -> dict[str, Any]:
    """The content of marks.json."""
    return {"cell": row.cell.id, "prints": dict(prints), "passed": sorted(row.passed), "together": [*row.together]}
