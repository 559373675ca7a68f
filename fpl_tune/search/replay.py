"""Replay of pruning or of a cheaper search on a finished study: the rounds saved, and the accuracy lost."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fpl_tune.config import PruneSpec
from fpl_tune.errors import ConfigError
from fpl_tune.search import components
from fpl_tune.search.pruning import Decision, Paused, Pruner
from fpl_tune.search.samplers import draw_from_table
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import TEST, VAL, aggregate, figure
from fpl_tune.study.selection import select
from fpl_tune.study.store import Store
from fpl_tune.trial import Record

Rounds = Sequence[Sequence[Record]]
"""A cell's rounds, one record per seed in each."""


@dataclass(frozen=True)
class Replay:
    """A replayed rule, with the figures of the cell that validation selects."""

    rule: str
    rounds: int
    """Rounds of all cells."""
    kept: int
    """Rounds that the rule would have run."""
    saved_seconds: float
    pruned: int
    cells: int
    best: str
    """Labels of the cells chosen without and with the rule, then their accuracies."""
    best_replayed: str
    val: float
    val_replayed: float
    test: float
    test_replayed: float


def replay_pruning(store: Store, spec: PruneSpec) -> Replay:
    """Applies a rule to the stored histories, one cell after the other in the order they ran in.

    Raises:
        ConfigError: the study has no finished cells, or the rule is unknown.
    """
    spec = replace(spec, rule=spec.rule or "halving")
    cells, histories, val, test = _finished(store)
    ran = _ran(cells, histories, spec, axes_of(store.spec().axes))
    alive = [cell for cell in cells if ran[cell.id] == len(histories[cell.id])]
    best, chosen = _choose(store, cells, val), _choose(store, alive, val)
    saved = 0.0
    for name, rounds in histories.items():
        pairs = zip(rounds[-1], rounds[ran[name] - 1], strict=True)
        saved += sum(last["time/seconds"] - there["time/seconds"] for last, there in pairs)
    return Replay(
        components.parse(spec.rule, "prune.rule")[0],
        sum(map(len, histories.values())),
        sum(ran.values()),
        saved,
        len(cells) - len(alive),
        len(cells),
        best.label,
        chosen.label,
        val[best.id],
        val[chosen.id],
        test[best.id],
        test[chosen.id],
    )


@dataclass(frozen=True)
class Orders:
    """A rule replayed in many random orders of the cells."""

    orders: int
    same_winner: float
    """Share of the orders in which selection on validation ends with the cell that it chooses without the rule."""
    rounds: float
    """Mean share of the rounds that run."""


def replay_orders(store: Store, spec: PruneSpec, *, orders: int = 200, seed: int = 0) -> Orders:
    """Applies a rule to the stored histories in random orders of the cells; raises as `replay_pruning`."""
    cells, histories, val, _ = _finished(store)
    return shuffled(cells, histories, val, replace(spec, rule=spec.rule or "halving"), orders=orders, seed=seed)


def shuffled(
    cells: Sequence[Cell],
    histories: Mapping[str, Rounds],
    val: Mapping[str, float],
    spec: PruneSpec,
    *,
    orders: int,
    seed: int,
) -> Orders:
    """Replays a rule in random orders of cells whose histories are in memory.

    Args:
        cells: of one study, comparable with each other.
        histories: rounds by cell id, one record per seed in each.
        val: by cell id, the figure that selection reads.
        spec: the rule.
        orders: number of random orders.
        seed: of the orders.
    """
    rng, total = random.Random(seed), sum(map(len, histories.values()))
    winner = max(val, key=lambda name: val[name])
    same, share = 0, 0.0
    for _ in range(orders):
        order = rng.sample(list(cells), len(cells))
        ran = _ran(order, histories, spec)
        alive = [name for name, count in ran.items() if count == len(histories[name])]
        same += max(alive, key=lambda name: val[name]) == winner
        share += sum(ran.values()) / total / orders
    return Orders(orders, same / orders, share)


def _ran(
    cells: Sequence[Cell], histories: Mapping[str, Rounds], spec: PruneSpec, axes: Iterable[str] = ()
) -> dict[str, int]:
    """Rounds that each cell runs under a rule, where one runs at a time: promoted cells first, then new ones."""
    pruner = Pruner(spec, list(axes))
    ran = dict.fromkeys((cell.id for cell in cells), 0)
    waiting, paused = deque(cells), dict[str, Paused]()
    while True:
        if not (going := pruner.promote(list(paused.values()))):
            if waiting:
                going = [Paused(waiting.popleft(), 0)]
            elif paused:
                going, pruned = pruner.settle(list(paused.values()), ())
                for cell, _ in pruned:
                    del paused[cell.id]
            else:
                return ran
        for cell, done in going:
            paused.pop(cell.id, None)
            rounds = histories[cell.id]
            for number in range(done + 1, len(rounds) + 1):
                ran[cell.id] = number
                decision = pruner.decide(cell, rounds[:number])
                if decision == Decision.PAUSE:
                    paused[cell.id] = Paused(cell, number)
                if decision != Decision.CONTINUE:
                    break


def replay_random(store: Store) -> list[dict[str, float]]:
    """The expected best of k of the n cells drawn at random, for every k: exact, without draws.

    The best of k is the i-th best of all with probability C(n - i, k - 1) / C(n, k).
    """
    found = _finished(store)
    cells = sorted(found.cells, key=lambda cell: -found.val[cell.id])
    n = len(cells)
    return _rows(found, cells, lambda k: [math.comb(n - i - 1, k - 1) / math.comb(n, k) for i in range(n)])


def replay_tpe(
    store: Store, *, repeats: int = 10, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, float]]:
    """The best of k of the n cells that TPE would have tried first; rows as of `replay_random`.

    Args:
        store: a finished study.
        repeats: seeds of TPE; figures are means over them.
        progress: called with (repeats done, all).

    Returns:
        Rows; none for a study whose cells a search drew: TPE would suggest hardly any of them.
    """
    found = _finished(store)
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


class _Finished(NamedTuple):
    """The finished cells of a study, their rounds, and their mean figures over seeds."""

    cells: list[Cell]
    rounds: dict[str, Rounds]
    val: dict[str, float]
    test: dict[str, float]


def _rows(found: _Finished, cells: Sequence[Cell], chances: Callable[[int], Sequence[float]]) -> list[dict[str, float]]:
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


def _finished(store: Store) -> _Finished:
    """Reads a study's finished cells.

    Raises:
        ConfigError: there is none, or the cells do not compare.
    """
    seeds = store.spec().seed_list()
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
    _choose(store, cells, val)  # refuses cells that do not compare
    return _Finished(cells, rounds, val, test)


def _choose(store: Store, cells: Sequence[Cell], val: Mapping[str, float]) -> Cell:
    """The best of finished cells by their validation accuracy `val`.

    Raises:
        ConfigError: the cells do not compare.
    """
    choice = select(cells, val, list(axes_of(store.spec().axes)))
    if choice is None or len(choice.cells) > 1:
        raise ConfigError(
            f"A replay takes cells of one data set, partition and protocol, but those of {store.name} lie in several. "
            "Replay a study with one of each."
        )
    return choice.cell
