"""Verdicts on claims, from tables made by hand."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fpl_tune.analysis import Contrast, judge


def frame(**values: list[float]) -> pd.DataFrame:
    rows = [(cell, seed, v) for cell, listed in values.items() for seed, v in enumerate(listed, 1)]
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))


ONE = [Contrast("a", "b")]


def test_the_interval_is_students_of_the_paired_differences() -> None:
    table = frame(a=[0.70, 0.74, 0.81], b=[0.60, 0.66, 0.69])  # differences 0.10, 0.08, 0.12
    found = judge(table, ONE)
    half = stats.t.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert found.status == "holds"
    assert (found.difference, found.low, found.high) == pytest.approx((0.10, 0.10 - half, 0.10 + half))
    assert found.values == pytest.approx({"a": 0.75, "b": 0.65})
    assert found.seeds == 3


@pytest.mark.parametrize(
    ("margin", "within", "status"),
    [
        (0.05, None, "holds"),  # the interval is 0.0503 to 0.1497
        (0.051, None, "undecided"),
        (0.149, None, "undecided"),
        (0.15, None, "fails"),
        (-0.2, None, "holds"),
        (0.0, 0.15, "holds"),
        (0.0, 0.1, "undecided"),
        (0.0, 0.05, "fails"),
    ],
)
def test_margins_and_ranges(margin: float, within: float | None, status: str) -> None:
    assert judge(frame(a=[0.70, 0.74, 0.81], b=[0.60, 0.66, 0.69]), ONE, margin=margin, within=within).status == status


def test_cells_that_are_worse_fail_and_equal_ones_do_not_hold() -> None:
    worse = frame(a=[0.50, 0.52, 0.51], b=[0.60, 0.61, 0.63])
    assert judge(worse, ONE).status == "fails"
    assert judge(worse, ONE, within=0.05).status == "fails"
    equal = frame(a=[0.501, 0.602, 0.7], b=[0.501, 0.602, 0.701])
    assert judge(equal, ONE, within=0.1).status == "holds"
    assert judge(frame(a=[0.5, 0.6], b=[0.5, 0.6]), ONE, within=0.1).status == "undecided"  # a tenth is the resolution


def test_one_seed_decides_nothing() -> None:
    found = judge(frame(a=[0.9], b=[0.1]), ONE)
    assert (found.status, found.seeds) == ("undecided", 1)
    assert math.isnan(found.low)


def test_seeds_are_paired_and_others_left_out() -> None:
    table = frame(a=[0.9, 0.8, 0.1], b=[0.5, 0.4])
    found = judge(table, ONE)
    assert found.seeds == 2
    assert found.difference == pytest.approx(0.4)
    with pytest.raises(KeyError):
        judge(table, [Contrast("a", "c")])
    with pytest.raises(ValueError, match="contrast"):
        judge(table, [])


def test_every_contrast_must_hold_and_one_may_fail() -> None:
    table = frame(a=[0.9, 0.91, 0.92], b=[0.5, 0.51, 0.53], c=[0.89, 0.92, 0.9], d=[0.97, 0.981, 0.99])
    against = {cell: Contrast("a", cell) for cell in "bcd"}
    assert judge(table, [against["b"]]).status == "holds"
    both = judge(table, [against["b"], against["c"]])
    assert (both.status, both.contrast) == ("undecided", against["c"])
    assert judge(table, list(against.values())).contrast == against["d"]
    assert judge(table, list(against.values())).status == "fails"


def test_more_contrasts_fail_less_easily() -> None:
    table = frame(a=[0.50, 0.52, 0.51, 0.50], b=[0.51, 0.56, 0.55, 0.57])
    assert judge(table, ONE).status == "fails"
    assert judge(table, ONE * 4).status == "undecided"  # at a quarter of the level


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(-0.5, 0.5))
def test_a_claim_and_its_opposite_never_both_hold(values: list[float], margin: float) -> None:
    table = frame(a=values, b=[0.0] * len(values))
    there = judge(table, ONE, margin=margin).status
    back = judge(table, [Contrast("b", "a")], margin=-margin).status
    assert {there, back} in ({"holds", "fails"}, {"undecided"}, {"fails"})
