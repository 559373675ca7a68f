"""The volume that fronts dominate, and which front is ahead at which cost; see `core.pareto`.

A point is a sequence of numbers of which higher ones are better; callers negate what is minimised. With one objective a
front is the best value, with all that equal it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fpl_tune.core.pareto import Point


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume that points dominate above a reference point, exactly.

    Points that are not better than the reference in all objectives add nothing. The last objective is cut into slices,
    in each of which the volume of the others is that of the points above it.
    """
    inside = [tuple(p) for p in points if all(v > r for v, r in zip(p, reference, strict=True))]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return max(v for (v,) in inside) - reference[0]
    inside.sort(key=lambda p: -p[-1])
    heights = [*(p[-1] for p in inside), reference[-1]]
    slices = (
        (heights[i] - heights[i + 1]) * hypervolume([p[:-1] for p in inside[: i + 1]], reference[:-1])
        for i in range(len(inside))
        if heights[i] > heights[i + 1]
    )
    return sum(slices)


def share(points: Sequence[Point], worst: Point, best: Point) -> float:
    """The volume that points dominate, as a share of the box between the worst and the best value of each objective;
    NaN if one of them does not vary."""
    box = math.prod(high - low for low, high in zip(worst, best, strict=True))
    return hypervolume(points, worst) / box if box > 0 else math.nan


def share_interval(
    values: np.ndarray, worst: Point, best: Point, level: float = 0.95, draws: int = 2000
) -> tuple[float, float]:
    """Bootstrap interval of `share` over seeds: percentiles over sets of seeds that are drawn with replacement.

    All points are averaged over the same drawn seeds, since they share data and clients. The generator is fixed.

    Args:
        values: [points, seeds, objectives].
        worst, best: see `share`.
        level: confidence level.
        draws: number of sets.

    Returns:
        Lower and upper end; NaN with a single seed.
    """
    n = values.shape[1]
    if n < 2 or not len(values):
        return math.nan, math.nan
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=draws)
    sets, times = np.unique(drawn, axis=0, return_counts=True)  # few seeds have few sets
    shares = [share(np.einsum("psm,s->pm", values, weights / n).tolist(), worst, best) for weights in sets]
    low, high = np.quantile(np.repeat(shares, times), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def leads(fronts: Mapping[str, Sequence[tuple[float, float]]]) -> list[tuple[float, str]]:
    """The front that has the highest value at each cost: the costs at which the lead changes, each with the new leader.

    Args:
        fronts: name -> points (cost, value); at a cost, a front has the value of its best point that costs no more. Of
            equal values, the one that was reached first leads.
    """
    turns, lead = list[tuple[float, str]](), -math.inf
    points = [(cost, -value, name) for name, own in fronts.items() for cost, value in own]
    for cost, negative, name in sorted(points, key=lambda point: point[:2]):
        if -negative > lead:
            lead = -negative
            if not turns or turns[-1][1] != name:
                turns.append((cost, name))
    return turns
