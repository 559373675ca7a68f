"""Properties of non-dominated sorting."""

from __future__ import annotations

import itertools
import random

import pytest

from fpl_tune.core.pareto import dominates, layers, spread


def _points(n: int, dimension: int, seed: int = 0, values: int = 6) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(values) for _ in range(dimension)) for _ in range(n)]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_layers_partition_points_and_each_is_dominated_by_the_one_before(dimension):
    points = _points(40, dimension)
    found = layers(points)
    assert sorted(itertools.chain(*found)) == list(range(len(points)))
    for front in found:
        assert not any(dominates(points[a], points[b]) for a in front for b in front)
    for before, after in itertools.pairwise(found):
        assert all(any(dominates(points[a], points[b]) for a in before) for b in after)


def test_one_objective_has_a_layer_for_each_value():
    assert layers([(1,), (3,), (2,), (3,)]) == [[1, 3], [2], [0]]


def test_spread_starts_at_the_best_and_takes_the_farthest():
    points = [(0, 10), (1, 9), (5, 5), (10, 0)]
    assert spread(points) == [3, 0, 2, 1]


def test_spread_does_not_depend_on_units():
    points = _points(12, 2, seed=3, values=100)
    assert spread(points) == spread([(a, 1e6 * b + 5) for a, b in points])


def test_spread_of_equal_points_keeps_their_order():
    assert spread([(1, 1)] * 3) == [0, 1, 2]
    assert spread([]) == []
