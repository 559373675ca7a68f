"""An axis: the plateau around its best value, where results fall, and cells that are joined over settings."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fpl_tune.analysis.sweep import Sweep, falling, mean_over, sweep


def frame(rows: np.ndarray, names: str) -> pd.DataFrame:
    """A row for each value [cells, seeds]; NaN: no such run."""
    return pd.DataFrame(
        [
            (name, s, v)
            for name, row in zip(names, rows, strict=True)
            for s, v in enumerate(row, 1)
            if not math.isnan(v)
        ],
        columns=pd.Index(["cell", "seed", "value"]),
    )


def on_axis(*levels: float, seeds: int = 6, noise: float = 0.002) -> np.ndarray:
    """[cells, seeds] values of those means, with noise."""
    drawn = np.random.default_rng(3).normal(0, noise, (len(levels), seeds))
    return np.array(levels)[:, None] + drawn - drawn.mean(1, keepdims=True)


@pytest.mark.parametrize("seed", range(30))
def test_results_fall_from_where_t_tests_in_a_fixed_sequence_say_so(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, (5, 6)) - np.array([0, 0, 0, 2, 4])[:, None] * rng.integers(0, 2)
    values[rng.random(values.shape) < 0.1] = np.nan
    count = 0
    while count < 4:
        gaps = values[4 - count] - values[: 4 - count].mean(0)
        gaps = gaps[~np.isnan(gaps)]
        if len(gaps) < 2 or stats.ttest_1samp(gaps, 0, alternative="less").pvalue >= 0.025:
            break
        count += 1
    assert falling(values) == count


def test_seeds_that_agree_fall_by_more_than_the_test_set_tells() -> None:
    """Two seeds that agree are known to the error of one image in each: t(1) at 97.5 %, times √2/2 images."""
    bound = stats.t.ppf(0.975, 1) * math.sqrt(2) / 2
    for images, count in ((bound * 0.99, 0), (bound * 1.01, 1)):
        assert falling(np.array([[0.5, 0.5], [0.5 - images / 100] * 2]), 0.01) == count
    assert falling(np.array([[0.5, 0.5], [0.1, 0.1]]), math.nan) == 0
    assert falling(np.array([[0.5], [0.1]])) == 0


@pytest.mark.parametrize("higher", [True, False])
def test_a_plateau_lies_between_values_where_results_fall(higher: bool) -> None:
    levels = (0.2, 0.4, 0.8, 0.801, 0.8, 0.5, 0.3, 0.1)
    values = on_axis(*levels)
    data = frame(values if higher else 1 - values, "abcdefgh")
    found = sweep(data, [*"abcdefgh"], "d", higher=higher)
    assert found == Sweep(("c", "d", "e"), True, False, ("a", "b"), ("f", "g", "h"), (), True)
    turned = sweep(data, [*"hgfedcba"], "d", higher=higher)
    assert turned == Sweep(("e", "d", "c"), True, False, ("h", "g", "f"), ("b", "a"), (), True)
    part = sweep(data, [*"bcdx"], "d", higher=higher)  # x has not run
    assert (part.plateau, part.lower, part.upper) == (("c", "d"), ("b",), ())


def test_values_that_are_worse_between_others_are_named_by_themselves() -> None:
    found = sweep(frame(on_axis(0.8, 0.5, 0.8, 0.8, 0.4, 0.8), "abcdef"), [*"abcdef"], "d")
    assert (found.plateau, found.lower, found.upper, found.worse) == (("c", "d"), (), (), ("b", "e"))


def test_what_is_not_told_from_the_best_is_no_equal() -> None:
    noisy = sweep(frame(on_axis(0.78, 0.8, 0.79, noise=0.05), "abc"), [*"abc"], "b")
    assert (noisy.plateau, noisy.equal, noisy.decides) == (("a", "b", "c"), False, True)
    alone = sweep(frame(on_axis(0.2, 0.8, 0.3), "abc"), [*"abc"], "b")
    assert (alone.plateau, alone.equal) == (("b",), False)
    once = sweep(frame(on_axis(0.2, 0.8, 0.3)[:, :1], "abc"), [*"abc"], "b")
    assert (once.plateau, once.decides) == (("a", "b", "c"), False)


def test_cells_of_several_settings_are_joined_by_seed() -> None:
    values = np.array([[0.1, 0.2, math.nan], [0.5, 0.8, 0.9], [0.3, 0.4, 0.5]])
    joined = mean_over(frame(values, "abc"), {"one": ("a", "b"), "two": ("a",), "three": ("c",), "four": ("a", "gone")})
    assert joined["cell"].tolist() == ["one", "one", "two", "two", "three", "three", "three"]
    assert joined["seed"].tolist() == [1, 2, 1, 2, 1, 2, 3], "a has no third seed, and the last lacks a setting"
    assert joined["value"].tolist() == pytest.approx([0.3, 0.5, 0.1, 0.2, 0.3, 0.4, 0.5])
