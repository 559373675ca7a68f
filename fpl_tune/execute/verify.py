"""Verification: the first rounds of a cell run again, and every figure compared with the stored one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fpl_tune.core.errors import ConfigError
from fpl_tune.execute.resources import setup_of
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import LEARNED
from fpl_tune.study.store import Store


@dataclass(frozen=True)
class Verification:
    """The result of a verification."""

    cell: Cell
    rounds: int
    worst: float
    """Largest difference of any figure, in that figure's unit."""
    where: str
    agrees: bool


def verify(
    store: Store,
    cell: Cell,
    *,
    rounds: int = 2,
    tolerance: float = 1e-6,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Runs the first rounds of a finished cell again, all its seeds together, and compares every figure.

    Args:
        store: the study's store.
        cell: the cell.
        rounds: number of rounds.
        tolerance: largest difference of a figure that agrees, in that figure's unit.
        progress: called with (rounds done, rounds in all).

    Raises:
        ConfigError: the cell has no finished seed, or there is no round to compare.
    """
    if rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, but is {rounds}: nothing would be compared.")
    seeds = [s for s in store.spec().seed_list() if (store.result(cell, s) or {}).get("status") == "done"]
    if not seeds:
        raise ConfigError(f"Only finished cells are verified, but {cell.label} is not. Run `fpl-tune study` first.")
    setup = setup_of(store.spec(), store.folder)
    before = torch.get_num_threads()
    torch.set_num_threads(setup.threads)
    try:
        trial = setup.trial(cell.run, seeds)
        rounds, worst, where = min(rounds, trial.rounds), 0.0, ""
        for number in range(1, rounds + 1):
            for record in trial.step():
                stored = store.history(cell, record["seed"])[number - 1]
                for name in sorted({*record, *stored} - {LEARNED}):  # a count that older stores lack
                    difference = 0.0 if name.startswith("time/") else _difference(record.get(name), stored.get(name))
                    if not difference <= worst:
                        worst, where = difference, f"{name}, seed {record['seed']}, round {number}"
            if progress is not None:
                progress(number, rounds)
    finally:
        torch.set_num_threads(before)
    return Verification(cell, rounds, worst, where, worst <= tolerance)


def _difference(x: Any, y: Any) -> float:
    """The largest absolute difference of two figures or lists of them; infinite if one is missing."""
    if isinstance(x, Sequence) and isinstance(y, Sequence) and len(x) == len(y):
        return max(map(_difference, x, y), default=0.0)
    if isinstance(x, int | float) and isinstance(y, int | float):
        return 0.0 if x == y or (math.isnan(x) and math.isnan(y)) else abs(x - y)
    return math.inf
