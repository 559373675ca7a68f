"""Searches replayed on tables of simulated configurations: what each pays until it finds a good configuration.

`bench_replay` says what counts. Randomness differs from order to order; published points come first.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from bench_replay import Exhausted, Replay, Searcher
from bench_search_peers import PEERS, mo_asha_search
from load_table import Table
from made_table import MADE, foresight, study_of, table_of
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, WilcoxonPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from search_table import NAMES, search_of
from table_costs import CONSTANT, COSTS, priced_table

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import TOTAL_BYTES, VAL
from fpl_tune.execute.driver import Driver
from fpl_tune.execute.job import ExecutionContext, Failure, Job, Output, Report
from fpl_tune.execute.runner import run_study
from fpl_tune.search.components import quiet
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.search.halving import resolved, rungs
from fpl_tune.simulation.simulation import Record

Row = dict[str, Any]
WITHIN = (1.0, 0.5)
"""Points of the table's best validation accuracy."""
AFTER = (10, 20, 40)
"""Full trials after which regret is shown; the last is the budget."""


def optuna_search(
    sampler: Callable[[int], BaseSampler], pruner: Callable[[Replay], BasePruner] | None, replay: Replay, order: int
) -> None:
    """Searches with Optuna's own sampler and pruner; trials run all seeds side by side.

    With several objectives trials run whole: Optuna prunes none.
    `WilcoxonPruner` compares values seed by seed, so that it gets each seed's last value as a step, one after another.
    A trial that diverges fails, as Optuna has it for values that are NaN.
    """
    table = replay.table
    with quiet():
        made = NopPruner() if pruner is None else pruner(replay)
        directions = [StudyDirection.MAXIMIZE, *(StudyDirection.MINIMIZE for _ in table.costs)]
        study = optuna.create_study(directions=directions, sampler=sampler(order), pruner=made)
        for point in table.points[: table.published]:
            study.enqueue_trial(point)
    by_seed = isinstance(made, WilcoxonPruner)
    steps = (
        [(replay.last, 1)] * replay.seeds
        if by_seed
        else [(int(n), replay.seeds) for n in np.diff(table.rounds, prepend=0)]
    )
    while True:
        with quiet():
            trial = study.ask(table.space)
        try:
            index = replay.take(trial.params)
            values = table.val[index, :, -1].mean(1) if by_seed else table.val[index].mean((0, 2))
            for number, (rounds, seeds) in enumerate(steps):
                replay.pay(rounds, seeds)
                if math.isnan(values[number]):
                    with quiet():
                        study.tell(trial, state=optuna.trial.TrialState.FAIL)
                    break
                if table.costs:
                    continue
                trial.report(float(values[number]), number if by_seed else int(table.rounds[number]))
                if number + 1 < len(steps) and trial.should_prune():
                    with quiet():
                        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                    break
            else:
                replay.complete(index)
                costs = [float(values[index]) for values in table.costs.values()]
                study.tell(trial, [float(values.mean() if by_seed else values[-1]), *costs])
        except Exhausted:
            return


def platform_search(overrides: Sequence[str], replay: Replay, order: int) -> None:
    """Searches with the platform's own runner, driver, search and store; only training is replayed."""
    unseen = "search.confirm=0"  # the tables have no further seeds
    objectives = f"search.objectives=[{','.join([VAL, *replay.table.costs])}]"
    study, _ = search_of(study_of(replay.table.name), f"search.seed={order}", unseen, objectives, *overrides)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder, quiet():
        run_study(ComposedStudy.of(study), root=Path(folder), executor=partial(_execute, replay))


def _execute(replay: Replay, driver: Driver, context: ExecutionContext) -> None:
    """Runs the legs of the study one after the other; a job that was paused goes on where it was."""
    taken: dict[str, int] = {}
    done: dict[tuple[int, int], int] = {}  # rounds that were paid, by configuration and seed
    finished: dict[int, set[int]] = {}  # seeds, by configuration
    while (job := driver.next_leg()) is not None:
        try:
            if job.cell.id not in taken:
                taken[job.cell.id] = replay.take(job.cell.varied)
            _run(job, taken[job.cell.id], replay, driver, done)
        except Exhausted:
            driver.request_stop()
            return
        index = taken[job.cell.id]
        finished.setdefault(index, set()).update(s for s in job.seeds if done.get((index, s)) == replay.last)
        if len(finished[index]) == replay.seeds and index not in [known for _, known in replay.completed]:
            replay.complete(index)


def _run(job: Job, index: int, replay: Replay, driver: Driver, done: dict[tuple[int, int], int]) -> None:
    """Reports the rounds of a job until it diverges or the driver stops it; those before a pause at once."""
    table, kept = replay.table, min(done.get((index, seed), 0) for seed in job.seeds)
    rounds = [[record_of(table, index, seed, number) for seed in job.seeds] for number in range(1, replay.last + 1)]
    goes_on = not kept or driver.receive(job, Report(rounds[:kept], last=False))
    while goes_on:
        replay.pay(1, len(job.seeds))
        kept += 1
        if replay.fails(index, kept):
            driver.receive(job, Report([], failure=Failure("training diverged", "diverged"), last=True))
            return
        done.update({(index, seed): kept for seed in job.seeds})
        output: Output | None = {seed: ("", None) for seed in job.seeds} if kept == replay.last else None
        goes_on = driver.receive(job, Report([rounds[kept - 1]], output, last=output is not None))


def record_of(table: Table, index: int, seed: int, number: int) -> Record:
    """The record of one seed after a round, as simulations give it; seeds are counted from 1."""
    record: Record = {"seed": seed, "round": number, "comm/up_bytes": 0, "comm/down_bytes": 0, "time/seconds": 0.0}
    for column in np.flatnonzero(table.rounds == number):
        for kind, values in (("val", table.val), ("test", table.test)):
            clients = values[index, seed - 1, column]
            record |= {f"{kind}/acc_mean": float(clients.mean()), f"clients/{kind}": clients.tolist()}
    for name, costs in table.costs.items():
        if name == TOTAL_BYTES:
            record["comm/up_bytes"] = round(costs[index] * number / table.rounds[-1])
        elif number in table.rounds:
            record[name] = float(costs[index])
    return record


def _hyperband(replay: Replay) -> BasePruner:
    return HyperbandPruner(min_resource=int(replay.table.rounds[0]), max_resource=replay.last, reduction_factor=3)


SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "random": lambda order: RandomSampler(seed=order),
    "TPE": lambda order: TPESampler(seed=order),
    "GP": lambda order: GPSampler(seed=order),
}
if importlib.util.find_spec("cmaes"):
    SAMPLERS["CMA-ES"] = lambda order: CmaEsSampler(seed=order, warn_independent_sampling=False)
PRUNERS: dict[str, Callable[[Replay], BasePruner] | None] = {
    "": None,
    " + Hyperband": _hyperband,
    " + Wilcoxon": lambda _: WilcoxonPruner(),
    " + median": lambda _: MedianPruner(),
}
SEARCHERS: dict[str, Searcher] = {
    f"{sampler}{pruner}": partial(optuna_search, SAMPLERS[sampler], PRUNERS[pruner])
    for sampler in SAMPLERS
    for pruner in PRUNERS
} | {
    "fpl-tune": partial(platform_search, [f"search.budget={AFTER[-1]}"]),
    "fpl-tune, no hedge": partial(platform_search, [f"search.budget={AFTER[-1]}", "prune.hedge=null"]),
}
_BUDGET = f"search.budget={AFTER[-1]}"
FRONT_SEARCHERS: dict[str, Searcher] = {
    "random": SEARCHERS["random"],
    "TPE": SEARCHERS["TPE"],
    "NSGA-II": partial(optuna_search, lambda order: NSGAIISampler(seed=order), None),
    "GP": SEARCHERS["GP"],
    "MO-ASHA (own code)": mo_asha_search,
    "fpl-tune": SEARCHERS["fpl-tune"],
    "fpl-tune, no hedge": SEARCHERS["fpl-tune, no hedge"],
    "fpl-tune, no halving": partial(platform_search, [_BUDGET, "prune.rule=null"]),
}
"""Searchers of several objectives."""
TABLES = tuple(name for name in (*NAMES, *MADE) if name != "traded")
PROBLEMS = tuple((table, cost) for table in (*TABLES, "traded") for cost in COSTS if (table, cost) not in CONSTANT)
"""Tables with a cost as second objective."""
SHARES = (0.9, 0.95)
"""Of the hypervolume of a table's own front."""


def bench_search(
    orders: int = 20,
    tables: Sequence[str] = TABLES,
    searchers: Sequence[str] | None = None,
    progress: Callable[[float, float, str], object] | None = None,
) -> list[Row]:
    """Replays searches on tables.

    Args:
        orders: replays of each searcher on each table.
        tables: names of tables.
        searchers: names of what to replay; None: all of `SEARCHERS`, and those of `bench_search_peers` whose packages
            are installed.
        progress: receives (done, total, description).

    Returns:
        Rows `table`, the rank correlation between its first rung and the end, `searcher`, full trials until a
        configuration within 1 and 0.5 points of the best is complete, and the points that the best one found is behind,
        on validation and test, after 10, 20 and 40 full trials. Each value is the median over orders with the quartiles
        in brackets; what was not reached is a dash.
    """
    known = SEARCHERS | PEERS
    names = list(known) if searchers is None else list(searchers)
    if unknown := set(names) - known.keys():
        raise ConfigError(f"No searcher {', '.join(sorted(unknown))} is installed. Known: {', '.join(known)}.")
    rows: list[Row] = []
    for done, (table, name) in enumerate(itertools.product(map(table_of, tables), names)):
        if progress is not None:
            progress(done, len(tables) * len(names), f"{table.name}: {name}")
        replays = [Replay(table, AFTER[-1]) for _ in range(orders)]
        for order, replay in enumerate(replays):
            known[name](replay, order)
        rows.append(summary(replays, name))
    return rows


def bench_fronts(
    orders: int = 60,
    problems: Sequence[tuple[str, str]] = PROBLEMS,
    searchers: Sequence[str] | None = None,
    progress: Callable[[float, float, str], object] | None = None,
) -> list[Row]:
    """Replays searches of two objectives, validation accuracy and a cost that is known before a configuration runs.

    Args:
        orders: replays of each searcher on each problem.
        problems: names of tables and costs.
        searchers: names of `FRONT_SEARCHERS`; None: all.
        progress: receives (done, total, description).

    Returns:
        Rows `table`, `cost`, `searcher`, and full trials until complete configurations dominate 90 and 95 % of the
        hypervolume that all configurations of the table dominate above its worst values; medians and quartiles.
    """
    names = list(FRONT_SEARCHERS) if searchers is None else list(searchers)
    if unknown := {*names} - FRONT_SEARCHERS.keys():
        raise ConfigError(f"There is no searcher {', '.join(sorted(unknown))}. Known: {', '.join(FRONT_SEARCHERS)}.")
    rows: list[Row] = []
    for done, ((table, cost), name) in enumerate(itertools.product(problems, names)):
        if progress is not None:
            progress(done, len(problems) * len(names), f"{table}, {cost}: {name}")
        replays = [Replay(priced_table(table, cost), AFTER[-1], enough=SHARES[-1]) for _ in range(orders)]
        for order, replay in enumerate(replays):
            FRONT_SEARCHERS[name](replay, order)
        row: Row = {"table": table, "cost": cost, "searcher": name}
        rows.append(row | {f"to {100 * s:.0f} %": quartiles([each.cost_to(s) for each in replays]) for s in SHARES})
    return rows


def summary(replays: Sequence[Replay], name: str) -> Row:
    """The row of one searcher on one table."""
    table = replays[0].table
    study, _ = search_of(study_of(table.name))
    row: Row = {"table": table.name, "rank": round(foresight(table, rungs(resolved(study), study)[0]), 2)}
    row["searcher"] = name
    for points in WITHIN:
        row[f"to {points:g}"] = quartiles([replay.cost_within(points) for replay in replays])
    for cost in AFTER:
        val, test = zip(*(replay.regret(cost) for replay in replays), strict=True)
        row |= {f"regret {cost}": quartiles(val), f"test {cost}": quartiles(test)}
    return row


def quartiles(values: Sequence[float]) -> str:
    """The median and quartiles of values, of which some may be infinite."""
    low, middle, high = (
        f"{v:.1f}" if math.isfinite(v) else "–" for v in np.quantile(values, [0.25, 0.5, 0.75], method="nearest")
    )
    return f"{middle} [{low}, {high}]"
