"""Successive halving in the searches of a study: pure functions of the study's design and its rows.

It is asynchronous (Li et al., 2020, https://arxiv.org/abs/1810.05934). Rungs are the first evaluated rounds from
`first_rung` · `reduction`^k on. By default the first is a third of the rounds: in tables of three methods, validation
after a sixth ranked configurations by how fast they learn, and lost one method's best. A trial runs its first seed to
each rung. It continues if it is among the best 1 / `reduction` of the trials that have reached the rung so far;
otherwise it is paused with a checkpoint, and continues when the rung has room for it. The last round of the first seed
is another rung, after which the other seeds run. Once no other trial can reach a rung, at least the best one there
continues, and one published point, so that the gain over it is known. Trials are only compared with those of the same
search. Rungs are not stored: they are read from the histories of the trials that have reached them.

Trials are ranked by non-dominated sorting: the front of those that have reached a rung, then the front of the others,
and so on; within a front by the ε-net of Schmucker et al. (2021), https://arxiv.org/abs/2106.12639, so that those that
continue are spread over it. With one objective a front is the best value, and the rank is that of values. Trials that
violate limits come after the others, those that violate them least first.

If learning curves cross, early rounds rank configurations the wrong way round, and the best one is always stopped. As a
hedge, every third trial of a search passes all rungs but the last regardless of its value. It is ranked there with the
others, and like them it can be stopped at the last rung. Hedged trials also show how well a rung predicts the final
score.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.metrics import VAL, comparable, known_before
from fpl_tune.core.pareto import Point, layers, spread
from fpl_tune.findings.choice import sign
from fpl_tune.study.design import Design, confirming_seeds, rungs_of
from fpl_tune.study.results import FAILURES
from fpl_tune.study.standing import CellState, Leg, Row

if TYPE_CHECKING:
    from fpl_tune.config import PruneSpec, RunSpec, StudySpec

HALVING, AUTO = "halving", "auto"
HEDGE = 3
"""One in this many suggested trials is hedged.

On a table whose curves cross, a search with one in three costs about as much as TPE without pruning, and 50 % more with
one in four. On three simulated tables, one in three costs two full trials more on one of them, one in four none."""
FULL_TRIALS = 20
"""Full trials of a search that states neither trials nor a budget."""


def resolved(study: StudySpec) -> PruneSpec:
    """The study's `prune` with `auto` resolved: halving for samplers that it was benchmarked with, and a hedge."""
    prune = study.prune
    rule = prune.rule if prune.rule != AUTO else HALVING if _measured(study) else None
    hedge = prune.hedge if rule == HALVING and study.search.sampler is not None else None
    return replace(prune, rule=rule, hedge=HEDGE if hedge == AUTO else hedge)


def _measured(study: StudySpec) -> bool:
    """True if halving was measured with the study's sampler and objectives: validation accuracy, and costs of clients
    that follow from a configuration."""
    search = study.search
    first, *others = search.objectives
    if search.sampler is None or search.across or first != VAL or not all(map(known_before, others)):
        return False
    from optuna.samplers import GPSampler, QMCSampler, RandomSampler, TPESampler

    from fpl_tune.search.samplers import named

    return issubclass(named(search.sampler).kind, (GPSampler, QMCSampler, RandomSampler, TPESampler))


def design_of(study: StudySpec, used: Collection[int] = ()) -> Design:
    """The study's design.

    Args:
        study: the study.
        used: seeds whose results its samplers have seen.

    Raises:
        ConfigError: a seed of `search.confirm` is one of them.
    """
    return Design.of(study, halved=resolved(study).rule == HALVING, confirm=confirming_seeds(study, used))


def check(study: StudySpec, runs: Collection[RunSpec]) -> None:
    """Rejects halving that never compares trials, and warns if `auto` cannot prune.

    Args:
        study: the study.
        runs: the runs of the cells of its axes.

    Raises:
        ConfigError: nothing is searched, or the rungs lie outside the rounds.
    """
    spec = resolved(study)
    if spec.rule is None:
        return
    hedged = isinstance(study.prune.hedge, int)
    if study.search.sampler is None:
        field = f"prune.hedge={study.prune.hedge}" if hedged else "prune.rule=halving"
        raise ConfigError(
            f"Halving stops trials, but {study.name} has no search. Remove {field}, or set search.sampler=auto."
        )
    if study.search.across:
        raise ConfigError(
            "prune.rule=halving compares trials in one setting, but search.across=settings compares their means over "
            "settings. Set prune.rule=null."
        )
    last = max((run.rounds for run in runs), default=1)
    if last == 1 or any(rungs(spec, run) for run in runs):
        return
    every = min(run.protocol.eval_every for run in runs)
    rung = f" with prune.first_rung={spec.first_rung}" if spec.first_rung else ""
    problem = (
        f"prune.rule compares validation metrics before the last round, but protocol.eval_every={every} of {last} "
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


# -- which trials go on --------------------------------------------------------------------------------------


def promoted(rows: Sequence[Row], running: Mapping[str, Leg], *, closed: bool) -> list[Row]:
    """The paused trials of one search that continue now, those with the most rounds first, then the best.

    Args:
        rows: all trials of the search.
        running: legs that are running, by the ids of their cells.
        closed: True if no trial is queued and none is left to suggest. Then rungs that no running trial can reach are
            decided among the trials that have reached them.
    """
    paused = [(now.rung, row) for row in rows if (now := row.standing).state is CellState.PAUSED]
    going = list[Row]()
    for rung in sorted({rung for rung, _ in paused}, reverse=True):
        ranked = at_rung(rows, rung)
        ranks = {row: rank for rank, row in enumerate(ranked)}
        best = {*_best(ranked, rung)}
        here = [row for number, row in paused if number == rung]
        passing = [row for row in here if row in best or _unranked(row, rung)]
        going += sorted(passing, key=lambda row: ranks.get(row, -1))
    if going or not closed:
        return going
    ends = [leg.rounds for key, leg in running.items() if leg.rung and any(row.cell.id == key for row in rows)]
    for rung in sorted({rung for rung, _ in paused}):
        if any(end <= rung for end in ends):
            break
        alive = [row for row in at_rung(rows, rung) if not _dead(row)]
        published = [row for row in alive if row.cell.published]
        first = [kind[0] for kind in (alive, published) if kind and not any(_beyond(r, rung) for r in kind)]
        if going := [row for number, row in paused if number == rung and row in first]:
            break
    return going


def at_rung(rows: Sequence[Row], rung: int) -> list[Row]:
    """The trials that have reached a rung with all objectives there, the best first, in a tie the first of them."""
    points = {row: point for row in rows if (point := _point(row, rung)) is not None}
    reached = [*points]
    return sorted((reached[place] for place in ranked(tuple(points.values()))), key=lambda r: r.violation_after(rung))


@lru_cache(maxsize=64)  # the driver asks again after every report, and few of them change a rung
def ranked(points: Sequence[Point]) -> list[int]:
    """The places of points from the best to the worst: by fronts, within a front by spread, in a tie by place."""
    return [front[place] for front in layers(points) for place in spread([points[i] for i in front])]


def _point(row: Row, rung: int) -> Point | None:
    """The objectives of the first seed at a rung, of which higher ones are better; None if it has not reached it."""
    values = row.objectives_after(rung) if row.design.halves(row.cell) else None
    if values is None:
        return None
    return tuple(sign(name) * comparable(value) for name, value in zip(row.design.objectives, values, strict=True))


def _unranked(row: Row, rung: int) -> bool:
    """True if a trial passes a rung regardless of its rank: it is hedged, or lacks an objective there."""
    return (row.cell.hedged and rung < row.cell.rounds) or _point(row, rung) is None


def _best(ranked: Sequence[Row], rung: int) -> Sequence[Row]:
    """The best 1 / `reduction` of the trials at a rung.

    Hedged trials have passed the earlier rungs without being selected. Each counts as the number of trials of which one
    would have passed them: otherwise bad hedged trials would make room for others that are not better.
    """
    if not ranked:
        return []
    design = ranked[0].design
    assert design.reduction is not None
    hedged = sum(row.cell.hedged for row in ranked)
    share = design.reduction ** sum(n < rung for n in design.rungs(ranked[0].cell))
    return ranked[: ((len(ranked) - hedged) * share + hedged) // (share * design.reduction)]


def _dead(row: Row) -> bool:
    return any(seed in row.runs and row.runs[seed].status in FAILURES for seed in row.design.seeds)


def _beyond(row: Row, rung: int) -> bool:
    """True if a trial has passed a rung."""
    now = row.standing
    return now.state is not CellState.PAUSED or now.rung > rung


# -- what trials cost ----------------------------------------------------------------------------------------


class Limits(Protocol):
    """The fields of `search` that limit each search of a study: trials, or a budget in full trials."""

    @property
    def trials(self) -> int | None: ...
    @property
    def budget(self) -> float | None: ...


def rungs(spec: PruneSpec, run: RunSpec) -> tuple[int, ...]:
    """Rounds after which `halving` compares the trials of a run; empty without halving."""
    if spec.rule != HALVING:
        return ()
    return rungs_of(spec.reduction, spec.first_rung, run.protocol.eval_every, run.rounds)


def spent(row: Row) -> int:
    """Rounds of all seeds that a trial costs: those that have run, but at least those of its first leg.

    The minimum ends a search in which all trials fail or diverge immediately. A hedged trial that is not over costs at
    least all rounds of its first seed.
    """
    design = row.design
    ran = sum(run.rounds for seed, run in row.runs.items() if seed in design.seeds)
    ends = design.rungs(row.cell) if design.halves(row.cell) else ()
    first = ends[0] if ends else row.cell.rounds * len(design.seeds)
    if ends and row.cell.hedged and row.standing.state in (CellState.QUEUED, CellState.PAUSED):
        first = row.cell.rounds
    return max(ran, first)


def limit(search: Limits) -> float:
    """The limit of one search: its number of trials, or its budget in full trials."""
    return search.trials or search.budget or FULL_TRIALS


def used(trials: Sequence[Row], search: Limits) -> float:
    """The share of the limit that trials have used: their number, or the full trials that their rounds amount to."""
    if search.trials or not trials:
        return len(trials)
    full = len(trials[0].design.seeds) * fmean(row.cell.rounds for row in trials)
    return sum(spent(row) for row in trials) / full


def expected_cost(spec: PruneSpec, run: RunSpec, seeds: int) -> float:
    """Expected cost of a trial, in full trials of all rounds and seeds, if one in `reduction` passes each rung."""
    ends = (*rungs(spec, run), run.rounds)
    if len(ends) == 1:
        return 1.0
    *shares, others = leg_shares(spec, run)
    first = math.fsum(share * (end - begin) for share, begin, end in zip(shares, (0, *ends), ends, strict=False))
    return (first + others * (seeds - 1) * run.rounds) / (seeds * run.rounds)


def leg_shares(spec: PruneSpec, run: RunSpec) -> list[float]:
    """The expected shares of trials that start each leg: those to each rung and to the last round, and that of the
    other seeds. At each rung one in `reduction` passes; at all rungs but the last, hedged trials pass too."""
    hedged, number = 1 / spec.hedge if isinstance(spec.hedge, int) else 0.0, len(rungs(spec, run))
    passed = [spec.reduction**-k for k in range(number + 2)]
    return [1.0, *(hedged + (1 - hedged) * share for share in passed[1:-1]), passed[-1]]
