"""The state of a cell: pure functions of the study's design and of the cell's stored results, without I/O.

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

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import joined, listed
from fpl_tune.core.metrics import TOTAL_BYTES, VAL
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import FAILURES, Status

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


@dataclass(frozen=True)
class Design:
    """The seeds, looks and halving that a study asks of each cell."""

    seeds: tuple[int, ...]
    """All seeds; with looks, those of the last one."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds after which comparisons are looked at; empty: the seeds are fixed."""
    objective: str = VAL
    """The metric by which halving compares trials."""
    reduction: int | None = None
    """Reduction factor of halving; None: no trial is stopped early."""
    first_rung: int | None = None
    confirm: tuple[int, ...] = ()
    """The seeds of cells that confirm a search, and of its references; empty: nothing is confirmed."""

    @classmethod
    def of(cls, study: Any, *, halved: bool, confirm: Sequence[int] = ()) -> Design:
        """The design of a composed or a stored study.

        Args:
            study: the study.
            halved: True if halving stops its trials early.
            confirm: see `confirming_seeds`.
        """
        searched, prune = study.search.sampler is not None and study.search.objectives, study.prune
        return cls(
            tuple(study.seed_list()),
            tuple(study.declared_looks()),
            study.search.objectives[0] if searched else VAL,
            prune.reduction if halved else None,
            prune.first_rung if halved else None,
            tuple(confirm),
        )

    def seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """All seeds of a cell; with looks, those of the last one."""
        return self.confirm if self.confirm and cell.role in ("tuned", "published", "reference") else self.seeds

    def first_seeds_of(self, cell: Cell) -> tuple[int, ...]:
        """The seeds that a cell runs in any case: with looks, those of the first one."""
        return self.seeds[: self.looks[0]] if self.looks else self.seeds_of(cell)

    def most_together(self) -> int:
        """The maximum number of seeds that a cell trains together."""
        if self.looks:
            return max(b - a for a, b in zip((0, *self.looks), self.looks, strict=False))
        return max(len(self.seeds), len(self.confirm))

    def halves(self, cell: Cell) -> bool:
        """True if halving may stop a cell. A trial that others are compared with always completes."""
        return self.reduction is not None and cell.role == "trial" and not cell.completes and bool(self.rungs(cell))

    def rungs(self, cell: Cell) -> tuple[int, ...]:
        """Rounds after which halving compares trials; see `rungs_of`."""
        if self.reduction is None:
            return ()
        return rungs_of(self.reduction, self.first_rung, cell.eval_every, cell.rounds)


def confirming_seeds(study: Any, used: Collection[int]) -> tuple[int, ...]:
    """The seeds that confirm the searches of a study: see `config.SearchSpec.confirm`.

    Args:
        study: a composed study.
        used: seeds whose results its samplers have seen.

    Raises:
        ConfigError: a given seed is one of the search's.
    """
    search, taken = study.search, {*study.seed_list(), *used}
    if search.sampler is None or not search.confirm:
        return ()
    if len(search.objectives) > 1:
        if search.confirm == "auto":
            return ()
        raise ConfigError(
            f"search.confirm={search.confirm} runs a search's best point again, but {joined(search.objectives)} "
            "have none. Remove it, or search for one of them."
        )
    if isinstance(search.confirm, list):
        if again := sorted(taken & {*search.confirm}):
            raise ConfigError(
                f"search.confirm needs seeds that the search has not used, but it has used {listed('seed', again)}. "
                "Name others, or a number of seeds."
            )
        return tuple(search.confirm)
    number = len(study.seed_list()) if search.confirm == "auto" else search.confirm
    return tuple(itertools.islice((seed for seed in itertools.count(1) if seed not in taken), number))


@cache
def rungs_of(reduction: int, first_rung: int | None, eval_every: int, rounds: int) -> tuple[int, ...]:
    """The first evaluated rounds from `first_rung` · `reduction`^k on, before the last one."""
    rungs, number = list[int](), first_rung or math.ceil(rounds / reduction)
    while (evaluated := math.ceil(number / eval_every) * eval_every) < rounds:
        rungs.append(evaluated)
        number *= reduction
    return tuple(dict.fromkeys(rungs))


@dataclass(frozen=True, eq=False)
class Run:
    """The stored run of a seed of a cell."""

    status: Status
    rounds: int
    records: Callable[[], Sequence[Record]] = field(default=list, repr=False)
    """Reads the run's history."""
    _values: dict[tuple[str, int], float | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def history(self) -> Sequence[Record]:
        """Records by round."""
        return self.records()

    def ended(self, rounds: int) -> bool:
        """True if it has run this many rounds, or has failed or diverged before."""
        return self.rounds >= rounds or self.status in FAILURES

    def value(self, metric: str, rounds: int) -> float | None:
        """A metric after a number of rounds, or at the last evaluation before; None if it is missing or NaN."""
        if (metric, rounds) not in self._values:
            self._values[metric, rounds] = latest(self.history[:rounds], metric)
        return self._values[metric, rounds]


def latest(history: Sequence[Record], metric: str) -> float | None:
    """A metric in the last record that has it; None if none has, or if the value is not finite."""
    names = ("comm/up_bytes", "comm/down_bytes") if metric == TOTAL_BYTES else (metric,)
    for record in reversed(history):
        if all(name in record for name in names):
            value = math.fsum(float(record[name]) for name in names)
            return value if math.isfinite(value) else None
    return None


@dataclass(frozen=True, eq=False)
class Row:
    """A cell with its stored runs, without those of another version of its method or data."""

    cell: Cell
    runs: Mapping[int, Run] = field(default_factory=dict)
    """Runs by seed."""
    passed: frozenset[int] = frozenset()
    """Rungs that the cell has passed: rounds or, with looks, numbers of seeds."""
    together: tuple[int, ...] = ()
    """Seeds that were started together last, and so may share a checkpoint."""
    stale: tuple[str, ...] = ()
    """Reasons why stored results were left out, such as "method source"."""
    rejected: str = ""
    """The error with which a method refused the configuration of a trial; see `execute.decide.LiveTable.rejected`."""
    standings: dict[Design, Standing] = field(default_factory=dict, init=False, repr=False)
    """Cache of `standing` by design: a row never changes."""


class Standing(NamedTuple):
    """The state of a cell, and the legs that are left."""

    state: CellState
    left: tuple[Leg, ...] = ()
    """The next one first; for a paused cell, those that follow if it continues."""
    rung: int = 0
    """Rounds after which it is paused; 0 if it is not."""


def legs(design: Design, row: Row) -> list[Leg]:
    """All legs of a cell, in order."""
    rounds = row.cell.rounds
    if not design.halves(row.cell):
        return [Leg(wanted(design, row), rounds)]
    first, rest = design.seeds[:1], design.seeds[1:]  # those of a trial
    way = [*(Leg(first, rung, True) for rung in design.rungs(row.cell)), Leg(first, rounds, bool(rest))]
    return [*way, Leg(rest, rounds)] if rest else way


def wanted(design: Design, row: Row) -> tuple[int, ...]:
    """The seeds that a cell should have. With looks: those of the first and of passed looks, and any with a result."""
    if not design.looks:
        return design.seeds_of(row.cell)
    most = max((look for look in design.looks[1:] if look in row.passed), default=design.looks[0])
    return tuple(seed for seed in design.seeds if seed <= most or seed in row.runs)


def standing(design: Design, row: Row) -> Standing:
    """The state of a cell while the study runs, and the legs that are left."""
    if design not in row.standings:
        row.standings[design] = _standing(design, row)
    return row.standings[design]


def _standing(design: Design, row: Row) -> Standing:
    ends = [row.runs[seed].status for seed in wanted(design, row) if seed in row.runs]
    bad = next((state for state in (CellState.FAILED, CellState.DIVERGED) if state.value in ends), None)
    if bad is not None and row.cell.role == "trial":  # one seed ends a trial, but not the other seeds of a grid's cell
        return Standing(bad)
    way = legs(design, row)
    for i, leg in enumerate(way):
        if todo := tuple(seed for seed in leg.seeds if seed not in row.runs or not row.runs[seed].ended(leg.rounds)):
            left = (leg._replace(seeds=todo), *way[i + 1 :])
            before = way[i - 1] if i else None
            if before is not None and before.rung and before.rounds not in row.passed:
                return Standing(CellState.PAUSED, left, before.rounds)
            return Standing(CellState.QUEUED, left)
    return Standing(bad or CellState.DONE)


def counts(design: Design, row: Row) -> tuple[int, ...]:
    """The seeds over which means are taken: those of the study's seeds that completed all rounds.

    A trial that halving has paused, or that has not run beyond its first seed yet, has none.
    """
    own = design.seeds_of(row.cell)
    completed = tuple(seed for seed in own if seed in row.runs and row.runs[seed].status == Status.DONE)
    if design.halves(row.cell):
        state = standing(design, row).state
        if state is CellState.PAUSED or (state is CellState.QUEUED and set(completed) <= set(design.seeds[:1])):
            return ()
    return completed


def rung_values(design: Design, row: Row) -> dict[int, float]:
    """The objective of a trial at the rungs that its first seed has reached, by round."""
    run = row.runs.get(design.seeds[0])
    if run is None or not design.halves(row.cell):
        return {}
    ends = [*design.rungs(row.cell), *([row.cell.rounds] if len(design.seeds) > 1 else [])]
    values = {rung: run.value(design.objective, rung) for rung in ends if rung <= run.rounds}
    return {rung: value for rung, value in values.items() if value is not None}


def shown_status(design: Design, row: Row, seed: int, state: CellState) -> str:
    """The status of a seed's result in tables: done if and only if it counts, else its failure or the cell's state.

    Args:
        design, row, seed: the study's design, the cell's row and the seed.
        state: the state of the cell.
    """
    if seed in counts(design, row):
        return Status.DONE.value
    status = row.runs[seed].status
    return status.value if status in FAILURES else state.value


def marks(row: Row, prints: Mapping[str, Any]) -> dict[str, Any]:
    """The content of marks.json."""
    passed, together = sorted(row.passed), [*row.together]
    return {"cell": row.cell.id, "prints": dict(prints), "passed": passed, "together": together,
            "rejected": row.rejected}  # fmt: skip
