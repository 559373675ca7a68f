"""What intervals are made of: means over clients, residual variances, runs that lie apart, the smallest step."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fpl_tune.analysis import compare, letters
from fpl_tune.analysis.significance import estimate, outliers, resolution_of, striking, two_way
from fpl_tune.analysis.tables import seed_means

from .test_comparisons import long


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_means_leave_out_what_is_missing(rng: np.random.Generator) -> None:
    values = rng.random((3, 4, 5))
    values[rng.random(values.shape) < 0.3] = math.nan
    values[1, 2] = math.nan
    means = seed_means(values)
    assert math.isnan(means[1, 2])
    means[1, 2] = values[1, 2] = 0
    np.testing.assert_allclose(means, np.nanmean(values, -1))


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_the_residual_variance_is_that_of_least_squares(rng: np.random.Generator, missing: float) -> None:
    values = rng.normal(size=(4, 6)) + 5 * rng.normal(size=(4, 1)) + 5 * rng.normal(size=(1, 6))
    values[rng.random(values.shape) < missing] = math.nan
    cell, seed = np.nonzero(~np.isnan(values))
    design = np.hstack([np.eye(4)[cell], np.eye(6)[seed]])
    _, left, rank, _ = np.linalg.lstsq(np.delete(design, -1, 1), values[cell, seed])
    variance, freedom = two_way(values)
    assert (freedom, variance) == (len(cell) - rank, pytest.approx(left[0] / (len(cell) - rank), rel=1e-6))


def test_a_run_lies_apart_by_five_points_after_effects_of_cells_and_seeds(rng: np.random.Generator) -> None:
    values = 0.3 * rng.random((5, 1)) + 0.3 * rng.random((1, 6)) + 1e-4 * rng.normal(size=(5, 6))
    assert not outliers(values).any(), "cells and seeds differ, runs do not"
    for gap, found in ((0.049, False), (-0.051, True)):
        moved = values.copy()
        moved[2, 3] += gap
        assert np.argwhere(outliers(moved)).tolist() == ([[2, 3]] if found else [])
    moved = np.array([[0.3], [0.6]]) + 1e-4 * rng.normal(size=(2, 6))
    moved[1, 3] -= 0.08
    assert np.argwhere(outliers(moved)).tolist() == [[1, 3]], "of two cells, too"
    two = values[:, :2].copy()
    two[2, 1] -= 0.5
    assert not outliers(two).any(), "two seeds cannot say which of them does"


def test_a_run_lies_apart_by_five_robust_deviations_where_runs_vary(rng: np.random.Generator) -> None:
    values = 0.5 + 0.02 * rng.normal(size=(6, 12))
    for deviations, found in ((3.5, 0), (8, 1)):
        moved = values.copy()
        moved[1, 4] = 0.5 - 0.02 * deviations
        assert outliers(moved).sum() == found


@pytest.mark.parametrize(("cells", "seeds"), [(3, 3), (6, 3), (4, 10)])
def test_ordinary_noise_is_hardly_ever_named_and_a_collapse_is(
    rng: np.random.Generator, cells: int, seeds: int
) -> None:
    """Also where one cell varies three times as much as the others."""
    noise = 0.7 + np.r_[np.full(cells - 1, 0.02), 0.06][:, None] * rng.normal(size=(500, cells, seeds))
    assert striking(noise).any((1, 2)).mean() < 0.1 < outliers(noise).any((1, 2)).mean() + 0.05
    steady = 0.7 + 0.01 * rng.normal(size=(500, cells, seeds))
    steady[:, 0, 0] -= 0.5
    assert striking(steady)[:, 0, 0].mean() > 0.9


def test_the_smallest_step_is_one_image_of_one_client() -> None:
    """Three clients of 20, 10 and 5 test images; the fourth never varies, and the mean has it as the others."""
    images = np.array([[[3, 5, 1, 2], [4, 6, 3, 2]], [[7, 5, 2, 2], [3, 8, 1, 2]]])  # [cells, seeds, clients]
    values = images / np.array([20, 10, 5, 5])
    assert resolution_of(values) == pytest.approx((1 / 20 + 1 / 10 + 1 / 5) / 3 / 4)
    assert math.isnan(resolution_of(np.full((2, 2, 4), 0.5)))
    both = resolution_of(np.stack([values, np.full((2, 2, 4), 0.5)]))
    assert (both[0], math.isnan(both[1])) == (pytest.approx(7 / 240), True)


def test_where_nothing_varies_there_is_no_interval() -> None:
    row = compare(long(np.full((2, 3), 0.5)), "0").loc["1"]
    assert (row["difference"], math.isnan(row["low"]), row["verdict"]) == (0, True, "identical")


def test_an_interval_covers_that_without_the_runs_outliers(rng: np.random.Generator) -> None:
    pairs, seen = [(1, 0), (2, 0), (3, 0)], 0
    for _ in range(60):
        values = 0.5 + 0.01 * rng.normal(size=(4, 6))
        values[1, 2] -= 0.08
        found, rest = estimate(values, pairs), estimate(np.where(outliers(values), math.nan, values), pairs, tests=3)
        one = found.outlier.sum() == 1
        seen += bool(one)
        reach = np.abs(rest.difference - found.difference) + rest.half
        assert (reach <= found.half + 1e-12)[found.outlier].all()
    assert seen > 10, "of one row alone"


def test_cells_that_vary_more_take_no_interval_from_the_others(rng: np.random.Generator) -> None:
    """Whatever the order of cells and pairs: all pairs of ten cells, of which three are unstable."""
    noise = np.repeat([0.005, 0.05], [7, 3])
    values = 0.5 + 0.04 * np.arange(10)[:, None] + noise[:, None] * rng.normal(size=(10, 5))
    pairs = list(itertools.combinations(range(10), 2))
    half = dict(zip(pairs, estimate(values, pairs).half, strict=True))
    for _ in range(5):
        order = rng.permutation(10)
        moved = rng.permuted(rng.permutation(pairs), axis=1)
        for (i, k), width in zip(moved, estimate(values[order], moved).half, strict=True):
            one, other = sorted((int(order[i]), int(order[k])))
            assert width == pytest.approx(half[one, other], rel=1e-9)
    quiet = [half[pair] for pair in itertools.combinations(range(7), 2)]
    alone = estimate(values[:7], list(itertools.combinations(range(7), 2)), tests=len(pairs)).half
    np.testing.assert_allclose(quiet, alone, rtol=0.5)


def test_a_cell_most_of_whose_seeds_lie_apart_is_unstable_and_has_its_own_interval() -> None:
    steady = np.array([[50.1, 50.5, 51.0, 50.3, 50.7], [12.2, 13.0, 11.5, 11.0, 13.3], [55.0, 54.6, 54.9, 54.0, 54.3]])
    values = np.vstack([[92, 80, 88, 75, 70], steady]) / 100
    pairs = list(itertools.combinations(range(4), 2))
    found = estimate(values, pairs)
    assert not outliers(values).any()
    assert letters(long(values)).to_dict() == {"0": "a", "3": "b", "1": "c", "2": "d"}
    gaps = values[0] - values[1:]
    corrected = stats.t.ppf(1 - 0.05 / 2 / len(pairs), 4) * gaps.std(axis=1, ddof=1) / math.sqrt(5)
    np.testing.assert_allclose(found.half[:3], corrected)
    alone = estimate(values[1:], [(0, 1), (0, 2), (1, 2)], tests=len(pairs))
    np.testing.assert_allclose(found.half[3:], alone.half, rtol=1e-12, err_msg="as without the unstable cell")


@pytest.mark.parametrize("seeds", [3, 4, 5])
def test_two_paired_seeds_have_an_interval_whatever_the_outliers(rng: np.random.Generator, seeds: int) -> None:
    values = 0.5 + 0.2 * rng.normal(size=(500, 4, seeds)) * (rng.random((500, 4, seeds)) < 0.4)
    values[rng.random(values.shape) < 0.1] = math.nan
    found = estimate(values + 0.001 * rng.normal(size=values.shape), list(itertools.combinations(range(4), 2)))
    assert found.outlier.any()
    assert np.isfinite(found.half[found.seeds > 1]).all()


def test_a_note_promises_no_interval_without_outliers_that_leave_one_seed(rng: np.random.Generator) -> None:
    values = 0.5 + 0.001 * rng.normal(size=(6, 3))
    values[1, 0] -= 0.2
    values[0, 1] -= 0.2
    found = compare(long(values), "0")
    assert "holds" not in found.loc["1", "note"]
    assert "the interval also holds without it" in found.loc["2", "note"]
    assert np.isfinite(found["low"]).all()
