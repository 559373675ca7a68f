"""Values of one axis: which of them are as good as the best, and from where on results fall.

Both are decided by the axis' own cells, so that a reference which varies more widens nothing. The plateau is what the
comparison with the best cell leaves. The fall is found by a fixed sequence of paired one-sided t tests from either end
of the axis (Westfall & Krishen 2001): the last value against the mean of those before it, then the one before the last,
and so on to the first that is not significant. Each end takes 2.5 %, without a correction for the number of values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from fpl_tune.analysis.compare import compare
from fpl_tune.analysis.significance import resolution_of
from fpl_tune.analysis.tables import Floats, present, read, seed_means


@dataclass(frozen=True)
class Sweep:
    """Verdicts on the values of an axis, as names of cells in the axis' order."""

    plateau: tuple[str, ...]
    """The best cell and its neighbours that do not differ significantly from it."""
    equal: bool
    """True if all cells of the plateau lie within the region of practical equivalence; False of the best cell alone."""
    identical: bool
    """True if all cells of the plateau have the same values on every seed; False of the best cell alone."""
    lower: tuple[str, ...]
    """Cells from the start of the axis on that are worse, without a gap."""
    upper: tuple[str, ...]
    """Cells to the end of the axis that are worse, without a gap."""
    worse: tuple[str, ...]
    """Other cells that are worse than the best."""
    decides: bool
    """True if two cells have two seeds or more; else no values can be separated."""


def sweep(
    frame: pd.DataFrame,
    order: Sequence[str],
    best: str,
    *,
    rope: float = 0.01,
    level: float = 0.95,
    shares: bool = True,
    higher: bool = True,
    looks: Sequence[int] = (),
    ran: Mapping[str, int] | None = None,
) -> Sweep:
    """Finds the plateau around the best cell of an axis, and where results fall.

    Args:
        frame: see `tables.read`.
        order: cells by their places on the axis; others of the frame are left out.
        best: the cell that was chosen, one of them.
        rope: half width of the region of practical equivalence, in units of `value`.
        level: of the comparisons with the best cell together, and of both sequences of tests together.
        shares: values are shares; else equality is not tested.
        higher: larger values are better.
        looks: numbers of seeds after which results are looked at, each at its share of the error; see `compare`.
        ran: number of seeds that each cell has run; see `compare`.
    """
    frame = frame.loc[frame["cell"].isin(order)]
    table = read(frame)
    index = {cell: i for i, cell in enumerate(table.cells)}
    order = [cell for cell in order if cell in index]
    comparison = compare(
        frame, best, rope=rope, level=level, chosen=True, shares=shares, higher=higher, looks=looks, ran=ran
    )
    sign, verdict = (1 if higher else -1), {best: "identical", **comparison["verdict"].to_dict()}
    values = sign * table.by_split()[[index[cell] for cell in order]]
    resolution, share = float(resolution_of(table.values)), (1 - level) / 2 / max(len(looks), 1)
    behind = set(order[len(order) - falling(values, resolution, share) :])
    behind |= set(order[: falling(values[::-1], resolution, share)])

    def beside(cell: str) -> bool:
        return verdict[cell] in ("equal", "identical") or (verdict[cell] != "worse" and cell not in behind)

    at = order.index(best)
    first = next((i + 1 for i in range(at - 1, -1, -1) if not beside(order[i])), 0)
    last = next((i for i in range(at + 1, len(order)) if not beside(order[i])), len(order))
    worse = [verdict[cell] == "worse" or cell in behind for cell in order]
    start = next((i for i in range(first) if not worse[i]), first)
    end = next((i + 1 for i in range(len(order) - 1, last - 1, -1) if not worse[i]), last)
    plateau = tuple(order[first:last])
    others = (cell for i, cell in enumerate(order) if worse[i] and (start <= i < first or last <= i < end))
    return Sweep(
        plateau, len(plateau) > 1 and all(verdict[cell] in ("equal", "identical") for cell in plateau),
        len(plateau) > 1 and all(verdict[cell] == "identical" for cell in plateau),
        tuple(order[:start]), tuple(order[end:]), tuple(others),
        bool((comparison["low"].notna() | (comparison["verdict"] == "identical")).any()),
    )  # fmt: skip


def falling(values: Floats, resolution: float = 0.0, share: float = 0.025) -> int:
    """Counts the values at the end of an axis that lie below the mean of those before them.

    Args:
        values: [cells, seeds] in the axis' order, NaN where missing; larger is better.
        resolution: smallest step of a value, below which seeds that agree are not known to agree.
        share: error of each test.
    """
    for k in range(len(values) - 1, 0, -1):
        gaps = values[k] - values[:k].mean(0)  # of seeds that all of them have
        gaps = gaps[present(gaps)]
        if len(gaps) < 2 or math.isnan(resolution):
            return len(values) - 1 - k
        error = max(gaps.std(ddof=1) / math.sqrt(len(gaps)), resolution * math.sqrt(2) / len(gaps))
        if gaps.mean() >= -special.stdtrit(len(gaps) - 1, 1 - share) * error:
            return len(values) - 1 - k
    return max(len(values) - 1, 0)


def mean_over(frame: pd.DataFrame, cells: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Joins cells of several settings to one: by seed, the mean over settings of their means over clients.

    Args:
        frame: see `tables.read`.
        cells: one cell of each setting, by the name of the joined cell.

    Returns:
        Columns `cell`, `seed`, `value`; seeds that a setting lacks are left out.
    """
    table = read(frame)
    index = {cell: i for i, cell in enumerate(table.cells)}
    means = seed_means(table.values)
    rows = [
        (name, seed, value)
        for name, group in cells.items()
        if all(cell in index for cell in group)
        for seed, value in zip(table.seeds, means[[index[cell] for cell in group]].mean(0), strict=True)
        if not np.isnan(value)
    ]
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))
