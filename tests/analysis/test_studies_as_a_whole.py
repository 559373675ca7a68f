"""Data sets and importance."""

# The stubs of pandas and scipy do not know the types of selected rows and of test results.
# pyright: reportArgumentType=false

import math

import numpy as np
import pandas as pd
import pytest

from fpl_tune import analysis


def long(values, **names):
    """A frame of an array, one column per axis."""
    places = np.indices(values.shape).reshape(values.ndim, -1)
    return pd.DataFrame({**{name: [labels[i] for i in place] for (name, labels), place in
                            zip(names.items(), places, strict=True)}, "value": values.ravel()})  # fmt: skip


SETS = ["s1", "s2", "s3", "s4", "s5", "s6"]


def on_sets(levels, rng, seeds=3, noise=0.001):
    values = np.array(list(levels.values()))[:, :, None] + rng.normal(0, noise, (len(levels), len(SETS), seeds))
    return long(values, cell=list(levels), dataset=SETS, seed=range(seeds))


def test_mean_ranks_and_critical_difference():
    base = np.linspace(0.3, 0.9, 6)
    frame = on_sets({"best": base + 0.1, "middle": base + 0.05, "worst": base}, np.random.default_rng(0))
    found = analysis.mean_ranks(frame)
    assert found.ranks.to_dict() == {"best": 1, "middle": 2, "worst": 3}
    assert found.critical_difference == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 6)), abs=0.002)  # Demsar, Table 5
    lower = analysis.mean_ranks(frame.assign(value=1 - frame["value"]), higher=False)
    assert lower.ranks.to_dict() == found.ranks.to_dict(), "an error ranks as the accuracy does"
    lost = analysis.mean_ranks(frame[~((frame["cell"] == "worst") & (frame["dataset"] == "s1"))])
    assert lost.left_out == ("worst",)
    gone = analysis.mean_ranks(frame.assign(value=frame["value"].where(frame["cell"] != "middle")))
    assert gone.left_out == ("middle",), "it has no value anywhere"
    assert math.isnan(analysis.mean_ranks(frame[frame["dataset"].isin(SETS[:4])]).critical_difference)


GRID = pd.DataFrame(
    [{"a": a, "b": b, "c": c, "value": a + 2 * b + a * b} for a in (-1, 0, 1) for b in (-1, 1) for c in (0, 1)]
)


def test_shares_of_a_grid_are_exact_and_those_within_noise_are_not_given():
    total = 2 / 3 + 4 + 2 / 3
    found = analysis.importance(GRID, list("abc")).set_index("field")["share"]
    assert found.dropna().to_dict() == pytest.approx({"a": 2 / 3 / total, "b": 4 / total})
    noisy = analysis.importance(GRID, list("abc"), noise=0.5).set_index("field")
    assert noisy.loc["c", "note"] == "no significant share"
    assert noisy.loc["noise", "share"] == pytest.approx(0.5 * 11 / (12 * total + 0.5))
    assert noisy["share"].sum() < 1


def test_nothing_is_explained_where_nothing_varies_or_too_few_ran():
    almost = GRID.assign(value=0.3 + 1e-16 * np.arange(len(GRID)))
    assert set(analysis.importance(almost, list("abc"))["note"]) == {"the metric does not vary"}
    rng = np.random.default_rng(0)
    drawn = pd.DataFrame({"x": rng.random(6), "y": 1, "value": rng.random(6)})
    notes = analysis.importance(drawn, ["x", "y"]).set_index("field")["note"].to_dict()
    assert notes == {"x": "6 cells are too few, at least 10 are needed", "y": "it takes one value"}


def test_omega_squared_by_hand():
    """Two groups of five around 1 and 5: between 40, within 0.2 with 8 degrees of freedom."""
    values = np.repeat([1.0, 5.0], 5) + np.tile([-0.2, -0.1, 0.0, 0.1, 0.2], 2)
    found = analysis.importance(pd.DataFrame({"x": ["a"] * 5 + ["b"] * 5, "value": values}), ["x"])
    between, error = 40.0, 0.2 / 8
    assert found.loc[0, "share"] == pytest.approx((between - error) / (between + 0.2 + error))


def test_a_field_that_is_drawn_with_an_important_one_gets_no_share():
    rng, said, shares = np.random.default_rng(0), 0, []
    for _ in range(60):
        x = rng.random(40)
        drawn = {
            "x": x,
            "alike": x + rng.normal(0, 0.2, 40),
            "value": 0.7 - 0.1 * (x - 0.6) ** 2 + rng.normal(0, 0.003, 40),
        }
        found = analysis.importance(pd.DataFrame(drawn), ["x", "alike"]).set_index("field")["share"]
        said, shares = said + bool(found["alike"] > 0), [*shares, found["x"]]
    assert said <= 6
    assert np.mean(np.array(shares) > 0.1) > 0.7


def test_a_field_that_not_all_cells_have_is_judged_beside_the_one_that_it_depends_on():
    rng = np.random.default_rng(1)
    method = rng.choice(["a", "b"], 60)
    mu = [float(rng.choice([1.0, 2.0, 3.0])) if name == "b" else None for name in method]
    value = [0.5 + 0.01 * rng.normal() + (0.1 * (m or 0)) for m in mu]
    found = analysis.importance(pd.DataFrame({"method": method, "mu": mu, "value": value}), ["method", "mu"])
    assert found.set_index("field").loc["mu", "share"] > 0.1


def test_shares_of_fields_that_work_against_each_other_add_up_to_one():
    """Two fields that rise together, with effects of opposite signs: alone, each explains more than all there is."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 60)
    b = np.where(rng.random(60) < 0.8, a, rng.integers(0, 4, 60))
    cells = pd.DataFrame({"a": a, "b": b, "value": 0.5 + 0.1 * (a - b) + 0.001 * rng.normal(size=60)})
    shares = analysis.importance(cells, ["a", "b"]).set_index("field")["share"]
    assert shares.sum() == pytest.approx(1)
    assert shares.min() > 0.3


def test_six_values_of_a_field_are_not_put_into_groups():
    """An effect that goes up and down from value to value would vanish in groups of neighbours."""
    rng = np.random.default_rng(0)
    field, other = np.tile(np.arange(6), 5), rng.integers(0, 2, 30)
    cells = pd.DataFrame({"field": field, "other": other, "value": field % 2 + 0.01 * rng.normal(size=30)})
    assert analysis.importance(cells, ["field", "other"]).set_index("field").loc["field", "share"] > 0.95
