"""A search replayed on a table: what it has paid, and what it has found.

A searcher proposes a point of the space, and the table answers with the nearest configuration that this search has not
used. One round of one seed costs 1 / (rounds x seeds) of a full trial, whoever asks for it; only configurations whose
seeds have all run all rounds are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from load_table import Floats, Table

from fpl_tune.analysis.fronts import hypervolume


class Exhausted(Exception):
    """The budget is spent."""


class Replay:
    """What one search has paid on a table, and the configurations that it has completed.

    Args:
        table: the table.
        budget: full trials that may be spent.
        enough: share of the table's hypervolume at which the search ends.
    """

    def __init__(self, table: Table, budget: float, enough: float = math.inf) -> None:
        self.table, self.enough = table, enough
        self.seeds, self.last = table.val.shape[1], int(table.rounds[-1])
        self.limit, self.spent = budget * self.seeds * self.last, 0
        """Both in rounds of one seed."""
        self.used: list[int] = []
        self.completed: list[tuple[float, int]] = []
        """Full trials spent when a configuration was complete, and its number."""
        self.volumes: list[float] = []
        """After each of them: the share of the table's hypervolume that all of them dominate."""

    def take(self, point: Mapping[str, Any]) -> int:
        """The nearest configuration that was not taken before.

        Raises:
            Exhausted: all are taken.
        """
        if len(self.used) == len(self.table.points):
            raise Exhausted
        self.used.append(self.table.nearest(point, self.used))
        return self.used[-1]

    def pay(self, rounds: int, seeds: int) -> None:
        """Pays rounds of a configuration.

        Raises:
            Exhausted: the budget does not suffice, or enough was found.
        """
        if (self.volumes and self.volumes[-1] >= self.enough) or self.spent + rounds * seeds > self.limit:
            raise Exhausted
        self.spent += rounds * seeds

    def complete(self, index: int) -> None:
        """Counts a configuration as found, for what was paid so far."""
        self.completed.append((self.spent / (self.seeds * self.last), index))
        if self.table.costs:
            self.volumes.append(volume_share(self.table, [index for _, index in self.completed]))

    def regret(self, cost: float) -> tuple[float, float]:
        """Points that the best completed configuration is behind the table's best, after so many full trials.

        Returns:
            On validation, which chooses it, and on test; infinite where none is complete.
        """
        val, test = self._ends(self.table.val), self._ends(self.table.test)
        found = [index for paid, index in self.completed if paid <= cost + 1e-9]
        if not found:
            return math.inf, math.inf
        best = max(found, key=lambda index: val[index])
        return float(val.max() - val[best]), float(test.max() - test[best])

    def fails(self, index: int, number: int) -> bool:
        """Whether training diverges in a round: the one before the first evaluation without a figure."""
        return number == self._failing.get(index)

    @cached_property
    def _failing(self) -> dict[int, int]:
        bad: npt.NDArray[np.bool_] = np.isnan(self.table.val.mean((1, 3)))
        return {int(i): int(self.table.rounds[bad[i].argmax()]) for i in np.flatnonzero(bad[:, -1])}

    @staticmethod
    def _ends(values: Floats) -> Floats:
        """Percent at the end; minus infinity where training diverged."""
        ends = 100 * values[:, :, -1].mean((1, 2))
        return np.where(np.isnan(ends), -math.inf, ends)

    def cost_within(self, points: float) -> float:
        """Full trials spent until a configuration within so many points of the table's best is complete."""
        val = self._ends(self.table.val)
        return next((paid for paid, index in self.completed if val[index] >= val.max() - points - 1e-9), math.inf)

    def cost_to(self, share: float) -> float:
        """Full trials spent until complete configurations dominate a share of the table's hypervolume."""
        volumes = zip(self.completed, self.volumes, strict=True)
        return next((paid for (paid, _), volume in volumes if volume >= share - 1e-9), math.inf)


def points_of(table: Table) -> Floats:
    """[N, 1 + costs] validation accuracy at the end and negated costs; NaN where training diverged."""
    points = np.stack([table.val[:, :, -1].mean((1, 2)), *(-costs for costs in table.costs.values())], 1)
    return np.where(np.isnan(points[:, :1]), np.nan, points)


def volume_share(table: Table, indices: Sequence[int]) -> float:
    """The share of the hypervolume of all configurations of a table that some of them dominate.

    The reference point has the worst value of the table in each objective.
    """
    points = points_of(table)
    worst = np.nanmin(points, axis=0)
    whole, part = (hypervolume([p.tolist() for p in some if not np.isnan(p).any()], worst.tolist())
                   for some in (points, points[list(indices)]))  # fmt: skip
    return part / whole


Searcher = Callable[[Replay, int], None]
"""Runs a search, whose randomness is seeded by a number, until the budget is exhausted."""
