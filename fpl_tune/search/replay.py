"""Replay of pruning or of a cheaper search on a finished study: the rounds saved, and the accuracy lost."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fpl_tune.config import PruneSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.search import components
from fpl_tune.search.pruning import Decision, Paused, Pruner
from fpl_tune.search.samplers import draw_from_table
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import TEST, VAL, aggregate, figure
from fpl_tune.study.selection import select
from fpl_tune.study.store import Store

Rounds = Sequence[Sequence[Record]]
"""A cell's rounds, one record per seed in each."""
HALVING = "halving"
"""The rule that is replayed where a study has none."""


class Finished(NamedTuple):
    """The finished cells of a study, which compare with each other, and their mean figures over seeds."""

    cells: list[Cell]
    rounds: dict[str, Rounds]
    val: dict[str, float]
    test: dict[str, float]
    axes: Sequence[str] = ()

    def best(self, cells: Iterable[Cell]) -> Cell:
        """The cell with the highest validation accuracy."""
        return max(cells, key=lambda cell: self.val[cell.id])

    def alive(self, ran: Mapping[str, int]) -> list[Cell]:
        """Cells that ran all of their rounds.

        Raises:
            ConfigError: there is none.
        """
        found = [cell for cell in self.cells if ran[cell.id] == len(self.rounds[cell.id])]
        if not found:
            raise ConfigError("A rule leaves at least one cell to choose, but this one stops all. Replay another one.")
        return found


def finished(store: Store) -> Finished:
    """Reads a study's finished cells.

    Raises:
        ConfigError: there is none, or they do not compare.
    """
    seeds, axes = store.spec().seed_list(), list(axes_of(store.spec().axes))
    cells = [
        cell
        for cell in store.cells()
        if cell.candidate and all((store.result(cell, s) or {}).get("status") == "done" for s in seeds)
    ]
    if not cells:
        raise ConfigError(f"A replay needs finished cells, but {store.name} has none. Run `fpl-tune study` first.")
    histories = {cell.id: [store.history(cell, seed) for seed in seeds] for cell in cells}
    rounds: dict[str, Rounds] = {key: list(zip(*by_seed, strict=True)) for key, by_seed in histories.items()}
    val, test = (
        {key: aggregate([figure(history, metric) for history in by_seed])["mean"] for key, by_seed in histories.items()}
        for metric in (VAL, TEST)
    )
    choice = select(cells, val, axes)
    if choice is None or len(choice.cells) > 1:
        raise ConfigError(
            f"A replay takes cells of one data set, partition and protocol, but those of {store.name} lie in several. "
            "Replay a study with one of each."
        )
    return Finished(cells, rounds, val, test, axes)


def replay_pruning(found: Finished, spec: PruneSpec) -> dict[str, Any]:
    """Applies a rule to the stored histories, one cell after the other in the order they ran in.

    Args:
        found: of `finished`.
        spec: the rule; halving if it has none.

    Returns:
        `rule`; `rounds` of all cells and `kept`, those that the rule would have run; `saved_seconds`; `pruned` of
        `cells`; the label, validation and test accuracy of the cell that validation selects: `best`, `val`, `test`, and
        with the rule `best_replayed`, `val_replayed`, `test_replayed`.
    """
    ran = _ran(found, spec, found.cells)
    alive = found.alive(ran)
    best, chosen = found.best(found.cells), found.best(alive)
    saved = 0.0
    for name, rounds in found.rounds.items():
        pairs = zip(rounds[-1], rounds[ran[name] - 1], strict=True)
        saved += sum(last["time/seconds"] - there["time/seconds"] for last, there in pairs)
    return {
        "rule": components.parse(spec.rule or HALVING, "prune.rule")[0],
        "rounds": sum(map(len, found.rounds.values())),
        "kept": sum(ran.values()),
        "saved_seconds": saved,
        "pruned": len(found.cells) - len(alive),
        "cells": len(found.cells),
        "best": best.label,
        "best_replayed": chosen.label,
        "val": found.val[best.id],
        "val_replayed": found.val[chosen.id],
        "test": found.test[best.id],
        "test_replayed": found.test[chosen.id],
    }


def replay_orders(found: Finished, spec: PruneSpec, *, orders: int = 200, seed: int = 0) -> dict[str, float]:
    """Applies a rule to the stored histories in random orders of the cells.

    Returns:
        `orders`; `same_winner`, the share of the orders in which selection on validation ends with the cell that it
        chooses without the rule; `rounds`, the mean share of the rounds that run.
    """
    rng, total = random.Random(seed), sum(map(len, found.rounds.values()))
    winner = found.best(found.cells)
    same, share = 0, 0.0
    for _ in range(orders):
        ran = _ran(found, spec, rng.sample(found.cells, len(found.cells)))
        same += found.best(found.alive(ran)) is winner
        share += sum(ran.values()) / total / orders
    return {"orders": orders, "same_winner": same / orders, "rounds": share}


def _ran(found: Finished, spec: PruneSpec, order: Iterable[Cell]) -> dict[str, int]:
    """Rounds that each cell runs under a rule, where one runs at a time: promoted cells first, then new ones."""
    pruner = Pruner(replace(spec, rule=spec.rule or HALVING), found.axes)
    waiting, paused, ran = deque(order), dict[str, Paused](), dict[str, int]()
    while waiting or paused:
        going = pruner.promote(list(paused.values()))
        if not going and waiting:
            going = [Paused(waiting.popleft(), 0)]
        elif not going:
            going, pruned = pruner.settle(list(paused.values()), ())
            for cell, _ in pruned:
                del paused[cell.id]
        for cell, done in going:
            paused.pop(cell.id, None)
            rounds = found.rounds[cell.id]
            for number in range(done + 1, len(rounds) + 1):
                ran[cell.id] = number
                decision = pruner.decide(cell, rounds[:number])
                if decision == Decision.PAUSE:
                    paused[cell.id] = Paused(cell, number)
                if decision != Decision.CONTINUE:
                    break
    return ran


def replay_random(found: Finished) -> list[dict[str, float]]:
    """The expected best of k of the n cells drawn at random, for every k: exact, without draws.

    The best of k is the i-th best of all with probability C(n - i, k - 1) / C(n, k).
    """
    cells = sorted(found.cells, key=lambda cell: -found.val[cell.id])
    n = len(cells)
    return _rows(found, cells, lambda k: [math.comb(n - i - 1, k - 1) / math.comb(n, k) for i in range(n)])


def replay_tpe(
    found: Finished, *, repeats: int = 10, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, float]]:
    """The best of k of the n cells that TPE would have tried first; rows as of `replay_random`.

    Args:
        found: of `finished`.
        repeats: seeds of TPE; figures are means over them.
        progress: called with (repeats done, all).

    Returns:
        Rows; none for a study whose cells a search drew: TPE would suggest hardly any of them.
    """
    cells = found.cells
    if any(cell.role == "trial" for cell in cells):
        return []
    names = list(dict.fromkeys(name for cell in cells for name in cell.varied))
    points = [{name: cell.varied.get(name) for name in names} for cell in cells]
    val = [found.val[cell.id] for cell in cells]
    orders: list[list[int]] = []
    for seed in range(repeats):
        if progress is not None:
            progress(seed, repeats)
        orders.append(draw_from_table(points, val, seed=seed))

    def chances(k: int) -> list[float]:
        chosen = Counter(max(order[:k], key=lambda i: val[i]) for order in orders)
        return [chosen[i] / repeats for i in range(len(cells))]

    return _rows(found, cells, chances)


def _rows(found: Finished, cells: Sequence[Cell], chances: Callable[[int], Sequence[float]]) -> list[dict[str, float]]:
    """Expected figures of the best of k cells, for every k; `chances(k)` gives each cell's probability to be it."""
    rows = []
    for k in range(1, len(cells) + 1):
        weights = chances(k)
        expected = {
            name: math.fsum(w * means[cell.id] for w, cell in zip(weights, cells, strict=True))
            for name, means in ((VAL, found.val), (TEST, found.test))
        }
        rows.append({"trials": k, "share": k / len(cells), **expected})
    return rows
