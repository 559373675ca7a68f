"""What pruning, or a cheaper search, would have saved and lost on a study that is finished."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fpl_tune.config import PruneSpec
from fpl_tune.errors import ConfigError
from fpl_tune.search.pruning import Pruner
from fpl_tune.search.samplers import draw_from_table
from fpl_tune.study.cells import Cell, axes_of
from fpl_tune.study.results import TEST, VAL, aggregate, figure
from fpl_tune.study.selection import select
from fpl_tune.study.store import Store
from fpl_tune.trial import Record


@dataclass(frozen=True)
class Replay:
    """One rule replayed; figures of the cell that selection on validation ends with."""

    rule: str
    rounds: int
    """Rounds of all cells."""
    kept: int
    """Rounds that the rule would have run."""
    saved_seconds: float
    pruned: int
    cells: int
    best: str
    """Label of what is chosen without the rule, with it, and what each scores."""
    best_replayed: str
    val: float
    val_replayed: float
    test: float
    test_replayed: float


def replay_pruning(store: Store, spec: PruneSpec) -> Replay:
    """Feeds the stored histories to a rule, one cell after the other in the order they were run in.

    Raises:
        ConfigError: nothing is finished, or the rule cannot be.
    """
    spec = replace(spec, rule=spec.rule or "halving")
    pruner, cells = Pruner(spec), _finished(store)
    kept = total = pruned = 0
    saved = 0.0
    alive: list[Cell] = []
    for cell in cells:
        rounds = _rounds(store, cell)
        ran = len(rounds)
        for number in range(1, len(rounds) + 1):
            if not pruner.keep(cell, rounds[:number]):
                ran = number
                break
        total, kept = total + len(rounds), kept + ran
        if ran < len(rounds):
            pruned += 1
            pairs = zip(rounds[-1], rounds[ran - 1], strict=True)
            saved += sum(last["time/seconds"] - there["time/seconds"] for last, there in pairs)
        else:
            alive.append(cell)
    best, chosen = _choose(store, cells), _choose(store, alive)
    return Replay(
        spec.rule or "",
        total,
        kept,
        saved,
        pruned,
        len(cells),
        best.label,
        chosen.label,
        _mean(store, best, VAL),
        _mean(store, chosen, VAL),
        _mean(store, best, TEST),
        _mean(store, chosen, TEST),
    )


def replay_random(store: Store) -> list[dict[str, float]]:
    """What drawing k of the n cells at random is expected to end with, for every k: exact, no draws.

    The best of k is the i-th best of all with probability C(n - i, k - 1) / C(n, k).
    """
    cells = sorted(_finished(store), key=lambda c: -_mean(store, c, VAL))
    n = len(cells)
    val = [_mean(store, c, VAL) for c in cells]
    test = [_mean(store, c, TEST) for c in cells]
    rows = []
    for k in range(1, n + 1):
        chance = [math.comb(n - i - 1, k - 1) / math.comb(n, k) for i in range(n)]
        rows.append(
            {
                "trials": k,
                "share": k / n,
                VAL: math.fsum(p * v for p, v in zip(chance, val, strict=True)),
                TEST: math.fsum(p * v for p, v in zip(chance, test, strict=True)),
            }
        )
    return rows


def replay_tpe(
    store: Store, *, repeats: int = 10, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, float]]:
    """What TPE would have ended with after k of the n cells: mean over `repeats` seeds, rows as of `replay_random`.

    Empty for a study whose cells were drawn by a search: hardly any of what TPE would suggest is among them.
    `progress` hears (repeats done, all).
    """
    cells = _finished(store)
    if any(cell.role == "trial" for cell in cells):
        return []
    names = list(dict.fromkeys(name for cell in cells for name in cell.varied))
    points = [{name: cell.varied.get(name) for name in names} for cell in cells]
    val = [_mean(store, c, VAL) for c in cells]
    test = [_mean(store, c, TEST) for c in cells]
    orders = []
    for seed in range(repeats):
        if progress is not None:
            progress(seed, repeats)
        orders.append(draw_from_table(points, val, seed=seed))
    rows = []
    for k in range(1, len(cells) + 1):
        chosen = [max(order[:k], key=lambda i: val[i]) for order in orders]
        rows.append(
            {
                "trials": k,
                "share": k / len(cells),
                VAL: math.fsum(val[i] for i in chosen) / repeats,
                TEST: math.fsum(test[i] for i in chosen) / repeats,
            }
        )
    return rows


def _finished(store: Store) -> list[Cell]:
    seeds = store.spec().seed_list()
    cells = [
        cell
        for cell in store.cells()
        if cell.role != "reference" and all((store.result(cell, s) or {}).get("status") == "done" for s in seeds)
    ]
    if not cells:
        raise ConfigError(f"A replay needs finished cells, but {store.name} has none. Run `fpl-tune study` first.")
    _choose(store, cells)  # refuses cells that do not compare
    return cells


def _rounds(store: Store, cell: Cell) -> list[list[Record]]:
    histories = [store.history(cell, seed) for seed in store.spec().seed_list()]
    return [list(records) for records in zip(*histories, strict=True)]


def _mean(store: Store, cell: Cell, metric: str) -> float:
    return aggregate([figure(store.history(cell, s), metric) for s in store.spec().seed_list()])["mean"]


def _choose(store: Store, cells: Sequence[Cell]) -> Cell:
    """The best of finished cells by validation accuracy.

    Raises:
        ConfigError: the cells do not compare.
    """
    choice = select(cells, {cell.id: _mean(store, cell, VAL) for cell in cells}, list(axes_of(store.spec().axes)))
    if choice is None or len(choice.cells) > 1:
        raise ConfigError(
            f"A replay takes cells of one data set, partition and protocol, but those of {store.name} lie in several. "
            "Replay a study with one of each."
        )
    return choice.cell
