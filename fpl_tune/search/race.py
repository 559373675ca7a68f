"""Racing of seeds: a cell that is clearly behind runs fewer of them (after Birattari et al., 2002, F-Race).

Seeds run in batches. Before each further batch a cell is tested against the best of its peers on the seeds that both
have: one-sided, paired by seed (same partition, same cohorts), validation accuracy only. Its error is the largest of
three estimates: the residual of cells x seeds pooled over all peers, the spread of the pair's own differences over
seeds, and over clients. `level` is divided by the number of tests of a race and of a cell's rivals (Bonferroni). It
bounds the probability of eliminating a cell that is as good as any other, if residuals are about normal with similar
variance among peers.

A stopped cell keeps its finished seeds; the others are stored as `eliminated` with the figures of the test. Means over
the fewer seeds of stopped cells are biased downwards, since low draws make an elimination more likely.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fpl_tune.config import PruneSpec
from fpl_tune.search.pruning import METRIC, peers
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import figure
from fpl_tune.study.status import Status


@dataclass(frozen=True)
class Elimination:
    """The test by which a race stopped a cell."""

    leader: str
    """Label of the cell that it was tested against."""
    behind: float
    """Mean difference over seeds, a share."""
    error: float
    """Its standard error."""
    p: float
    limit: float
    """The level that p is below."""
    ran: int
    of: int
    """Seeds that it ran, and seeds of the study."""

    def __str__(self) -> str:
        return (
            f"eliminated after {self.ran} of {self.of} seeds: on validation {100 * self.behind:.1f} ± "
            f"{100 * self.error:.1f} points behind {self.leader} (p = {self.p:.2g} < {self.limit:.2g})"
        )


class _Runner(NamedTuple):
    """A cell in a race."""

    label: str
    means: dict[int, float]
    """Seed -> validation accuracy."""
    clients: dict[int, np.ndarray]
    """Seed -> [N] validation accuracy by client; empty where records lack it."""


class Race:
    """Batches of seeds, and the tests before each.

    Args:
        spec: `seeds` in each batch, `level`.
        seeds: all seeds of the study, in order.
        axes: names of the study's axes: trials of a search race inside their cell of the axes.
        rule: chooses the round that counts.
    """

    def __init__(self, spec: PruneSpec, seeds: Sequence[int], axes: Sequence[str] = (), rule: str = "final") -> None:
        size = spec.seeds or len(seeds)
        self.batches = [tuple(seeds[i : i + size]) for i in range(0, len(seeds), size)]
        self._level, self._axes, self._rule = spec.level, tuple(axes), rule
        self._runners: dict[str, dict[str, _Runner]] = defaultdict(dict)

    def note(self, cell: Cell, seed: int, result: Mapping[str, Any], history: Sequence[Record]) -> None:
        """Adds the result of a seed. A seed that failed or was stopped has no figure and is left out."""
        if result["status"] == Status.DONE and cell.candidate:
            known = self._runners[peers(cell, self._axes)]
            runner = known.setdefault(cell.id, _Runner(cell.label, {}, {}))
            runner.means[seed] = figure(history, METRIC, self._rule)
            runner.clients[seed] = np.array(history[-1].get("clients/val", []), float)

    def judge(self, cell: Cell, batch: int) -> Elimination | None:
        """Tests a cell before a batch (numbered from 0). Returns why it is eliminated, or None."""
        from scipy import special

        seeds = [seed for done in self.batches[:batch] for seed in done]
        known = self._runners[peers(cell, self._axes)]
        table = {key: np.array([r.means.get(seed, math.nan) for seed in seeds]) for key, r in known.items()}
        table = {key: means for key, means in table.items() if not np.isnan(means).any()}
        if cell.id not in table or len(table) < 2 or len(seeds) < 2:
            return None
        best = max((key for key in table if key != cell.id), key=lambda key: table[key].mean())
        differences = table[best] - table[cell.id]
        behind = float(differences.mean())
        if behind <= 0:
            return None
        values, rivals = np.stack(list(table.values())), len(table) - 1  # [cells, seeds]
        residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
        freedom = rivals * (len(seeds) - 1)
        pooled = math.sqrt(2 * float((residual**2).sum()) / freedom / len(seeds))
        own = float(differences.std(ddof=1)) / math.sqrt(len(seeds))
        error = max(pooled, own, _client_error(known[best], known[cell.id], seeds))
        p = float(special.stdtr(freedom, -behind / error)) if error > 0 else 0.0  # one-sided t test
        limit = self._level / (rivals * (len(self.batches) - 1))
        if p >= limit:
            return None
        total = sum(map(len, self.batches))
        return Elimination(known[best].label, behind, error, p, limit, len(seeds), total)


def _client_error(best: _Runner, other: _Runner, seeds: Sequence[int]) -> float:
    """Standard error of the mean difference from its spread over each seed's clients; 0 where records lack it."""
    squared = []
    for seed in seeds:
        a, b = best.clients[seed], other.clients[seed]
        found = a - b if a.shape == b.shape else np.array([])
        found = found[~np.isnan(found)]
        squared.append(float(found.var(ddof=1)) / len(found) if len(found) > 1 else 0.0)
    return math.sqrt(math.fsum(squared)) / len(seeds)
