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
from typing import Any

import numpy as np

from fpl_tune.config import PruneSpec
from fpl_tune.search.pruning import METRIC, peers
from fpl_tune.study.cells import Cell
from fpl_tune.study.results import figure
from fpl_tune.study.status import Status
from fpl_tune.trial import Record


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


@dataclass(frozen=True)
class _Runner:
    """A cell in a race."""

    label: str
    means: dict[int, float]
    """Seed -> validation accuracy."""
    clients: dict[int, list[float]]
    """Seed -> validation accuracy by client, where records hold it."""


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
        self._peers: dict[str, str] = {}

    def note(self, cell: Cell, seed: int, result: Mapping[str, Any], history: Sequence[Record]) -> None:
        """Adds the result of a seed. A seed that failed or was stopped has no figure and is left out."""
        if result["status"] != Status.DONE or not cell.candidate:
            return
        runner = self._known(cell).setdefault(cell.id, _Runner(cell.label, {}, {}))
        runner.means[seed] = figure(history, METRIC, self._rule)
        runner.clients[seed] = [math.nan if v is None else float(v) for v in history[-1].get("clients/val", [])]

    def _known(self, cell: Cell) -> dict[str, _Runner]:
        """The peers of a cell, itself included."""
        if cell.id not in self._peers:
            self._peers[cell.id] = peers(cell, self._axes)
        return self._runners[self._peers[cell.id]]

    def judge(self, cell: Cell, batch: int) -> Elimination | None:
        """Tests a cell before a batch (numbered from 0). Returns why it is eliminated, or None."""
        seeds = [seed for done in self.batches[:batch] for seed in done]
        known = self._known(cell)
        field = {key: r for key, r in known.items() if all(not math.isnan(r.means.get(s, math.nan)) for s in seeds)}
        if cell.id not in field or len(field) < 2 or len(seeds) < 2:
            return None
        table = {key: np.array([r.means[s] for s in seeds]) for key, r in field.items()}
        best = max((key for key in table if key != cell.id), key=lambda key: table[key].mean())
        behind = float((table[best] - table[cell.id]).mean())
        if behind <= 0:
            return None
        error = max(_errors(np.stack(list(table.values())), table[best] - table[cell.id]))
        error = max(error, _client_error(field[best], field[cell.id], seeds))
        rivals = len(field) - 1
        p = _tail(behind, error, rivals * (len(seeds) - 1))
        limit = self._level / (rivals * (len(self.batches) - 1))
        if p >= limit:
            return None
        total = sum(map(len, self.batches))
        return Elimination(field[best].label, behind, error, p, limit, len(seeds), total)


def _errors(table: np.ndarray, differences: np.ndarray) -> tuple[float, float]:
    """Standard errors of a mean difference from cells x seeds [K, S]: pooled residual, and the pair's own spread."""
    cells, seeds = table.shape
    residual = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    pooled = float((residual**2).sum()) / ((cells - 1) * (seeds - 1))
    return math.sqrt(2 * pooled / seeds), float(differences.std(ddof=1)) / math.sqrt(seeds)


def _client_error(best: _Runner, other: _Runner, seeds: Sequence[int]) -> float:
    """Standard error of the mean difference from its spread over each seed's clients; 0 where records lack it."""
    squared = []
    for seed in seeds:
        a, b = best.clients[seed], other.clients[seed]
        found = [x - y for x, y in zip(a, b, strict=False) if not (math.isnan(x) or math.isnan(y))]
        squared.append(float(np.var(found, ddof=1)) / len(found) if len(a) == len(b) and len(found) > 1 else 0.0)
    return math.sqrt(math.fsum(squared)) / len(seeds)


def _tail(behind: float, error: float, freedom: int) -> float:
    """One-sided p value of a t test; 0 where nothing varies."""
    from scipy import special

    return float(special.stdtr(freedom, -behind / error)) if error > 0 else 0.0
