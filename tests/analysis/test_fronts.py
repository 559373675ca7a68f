"""Properties of fronts, and volumes against counts on a grid."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from fpl_tune.analysis.fronts import hypervolume, leads, share, share_interval


def _points(n: int, dimension: int, seed: int = 0, values: int = 6) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(values) for _ in range(dimension)) for _ in range(n)]


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_hypervolume_is_the_number_of_dominated_unit_cells(dimension):
    points, n = _points(8, dimension, seed=1), 6
    cells = itertools.product(range(n), repeat=dimension)
    dominated = sum(any(all(v > c for v, c in zip(p, cell, strict=True)) for p in points) for cell in cells)
    assert hypervolume(points, [0] * dimension) == dominated


def test_hypervolume_above_a_reference_that_no_point_exceeds_is_zero():
    assert hypervolume([(1, 5), (3, 0)], (1, 0)) == 0
    assert hypervolume([], (0, 0)) == 0


def test_the_share_of_the_box_is_one_for_the_best_point_and_needs_objectives_that_vary():
    assert share([(2, 3)], (0, 1), (2, 3)) == 1
    assert share([(1, 2)], (0, 1), (2, 3)) == 0.25
    assert share([], (0, 1), (2, 3)) == 0
    assert math.isnan(share([(1, 1)], (0, 1), (2, 1)))


def test_the_interval_of_a_share_covers_the_shares_of_single_seeds_and_does_not_vary():
    values = np.array([[[1.0, 2.0], [1.2, 2.0], [1.4, 2.0]], [[2.0, 1.0], [2.2, 1.0], [2.4, 1.0]]])
    low, high = share_interval(values, (0, 0), (3, 3))
    single = [share(values[:, seed].tolist(), (0, 0), (3, 3)) for seed in range(3)]
    assert min(single) <= low < share(values.mean(1).tolist(), (0, 0), (3, 3)) < high <= max(single)
    assert share_interval(values, (0, 0), (3, 3)) == (low, high)
    assert all(map(math.isnan, share_interval(values[:, :1], (0, 0), (3, 3))))
    assert share_interval(np.repeat(values[:, :1], 4, 1), (0, 0), (3, 3)) == pytest.approx((single[0],) * 2)


def test_the_interval_of_a_share_covers_the_truth_mostly():
    rng, truth = np.random.default_rng(1), share([(1, 2), (2, 1)], (0, 0), (3, 3))
    means = np.array([[1.0, 2.0], [2.0, 1.0]])[:, None]
    ends = [share_interval(means + rng.normal(0, 0.1, (2, 10, 2)), (0, 0), (3, 3), draws=200) for _ in range(200)]
    assert 0.8 < np.mean([low <= truth <= high for low, high in ends]) < 0.99


def test_leads_are_where_another_front_gets_ahead():
    fronts = {"a": [(1, 0.5), (4, 0.9)], "b": [(2, 0.6), (5, 0.9)], "c": [(9, 0.1)]}
    assert leads(fronts) == [(1, "a"), (2, "b"), (4, "a")]
    assert leads({"a": [(1, 0.5), (2, 0.6)]}) == [(1, "a")]
    assert leads({}) == []


@pytest.mark.parametrize("seed", range(5))
def test_the_leader_has_the_highest_value_at_each_cost(seed):
    points = [(float(cost), float(value)) for cost, value in _points(20, 2, seed)]
    fronts = {name: points[i::3] for i, name in enumerate("abc")}
    turns = leads(fronts)
    for cost in range(6):
        reached = {name: max((v for c, v in own if c <= cost), default=-1) for name, own in fronts.items()}
        ahead = [name for at, name in turns if at <= cost]
        assert not ahead or reached[ahead[-1]] == max(reached.values())
