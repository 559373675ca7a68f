"""Points of several objectives: fronts, their spread, and the volume that they dominate.

A point is a sequence of numbers of which higher ones are better; callers negate what is minimised. With one objective a
front is the best value, with all that equal it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

Point = Sequence[float]


def dominates(one: Point, other: Point) -> bool:
    """True if `one` is at least as good as `other` in all objectives, and better in one of them."""
    return tuple(one) != tuple(other) and all(a >= b for a, b in zip(one, other, strict=True))


def layers(points: Sequence[Point]) -> list[list[int]]:
    """Non-dominated sorting: the places of the front, then of the front of the others, and so on.

    Points are sorted once, and one that dominates another precedes it. A point that no member of a front dominates is
    dominated by no member of a later one, so its front is found by bisection.
    """
    fronts = list[list[int]]()
    for place in sorted(range(len(points)), key=lambda i: tuple(-v for v in points[i])):
        at = bisect_left(fronts, True, key=lambda front: not any(dominates(points[i], points[place]) for i in front))
        if at == len(fronts):
            fronts.append([])
        fronts[at].append(place)
    return [sorted(front) for front in fronts]


def spread(points: Sequence[Point]) -> list[int]:
    """The places of points in an order of which every beginning is spread: the best in the first objective, then each
    time the point that is farthest from those before it.

    It is the ε-net of Schmucker et al. (2021), https://arxiv.org/abs/2106.12639, Sec. 3.2. Distances are Euclidean,
    with each objective scaled to its range over the points; of equal ones, the first point is taken.
    """
    if not points:
        return []
    ends = [(min(values), max(values)) for values in zip(*points, strict=True)]
    unit = [[(v - low) / (high - low or 1.0) for v, (low, high) in zip(p, ends, strict=True)] for p in points]
    order = [max(range(len(points)), key=lambda i: (tuple(points[i]), -i))]
    distance = [float("inf")] * len(points)
    while True:
        last = unit[order[-1]]
        distance = [min(d, sum((a - b) ** 2 for a, b in zip(u, last, strict=True)))
                    for d, u in zip(distance, unit, strict=True)]  # fmt: skip
        farthest = max(range(len(points)), key=lambda i: (distance[i], -i))
        if not distance[farthest]:  # all others equal one of those before them
            return [*order, *sorted({*range(len(points))} - {*order})]
        order.append(farthest)


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
