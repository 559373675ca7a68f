"""Non-dominated sorting: fronts of points of several objectives, and points that are spread over a front.

A point is a sequence of numbers of which higher ones are better; callers negate what is minimised. With one objective a
front is the best value, with all that equal it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

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
