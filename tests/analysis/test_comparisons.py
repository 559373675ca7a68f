"""Intervals, tests, verdicts and power: by hand, by enumeration, at their edges, and in simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fpl_tune import analysis
from fpl_tune.analysis import Contrast, judge
from fpl_tune.analysis.significance import estimate, resolution_of


def frame(values, splits=None):
    """A frame of values by cell: [seeds, clients] each."""
    rows = [
        {"cell": cell, "seed": s, "client": c, "value": v, "split": (splits or {}).get(cell, {}).get(s, f"split{s}")}
        for cell, table in values.items()
        for s, row in enumerate(table)
        for c, v in enumerate(row)
    ]
    return pd.DataFrame(rows)


def test_a_frame_is_read_in_any_order_and_refused_with_duplicates():
    values = {"a": [[1.0, 2.0], [3.0, math.inf]], "b": [[5.0, 6.0], [7.0, 8.0]]}
    table = analysis.read(frame(values).sample(frac=1, random_state=1).sort_values("cell", kind="stable"))
    assert table.cells == ("a", "b")
    np.testing.assert_array_equal(table.values[0], [[1, 2], [3, np.nan]])
    assert table.splits[1].tolist() == ["split0", "split1"]
    with pytest.raises(ValueError, match="several for"):
        analysis.read(pd.concat([frame(values)] * 2))
    with pytest.raises(ValueError, match="'value'"):
        analysis.read(pd.DataFrame({"cell": [], "seed": []}))


def test_the_half_width_is_student_s():
    assert math.isnan(analysis.t_half_width(0.1, 1))
    assert analysis.t_half_width(1.0, 2) == pytest.approx(12.706204736432095)


def long(values):
    """A frame of values [cells, seeds], cells named by their places."""
    return frame({str(i): row[:, None] for i, row in enumerate(values)})


def test_two_cells_are_compared_by_the_paired_t_test():
    values = 0.7 + np.random.default_rng(0).normal(0, 0.02, (2, 5))
    row = analysis.compare(long(values), "0").loc["1"]
    expected = stats.ttest_rel(values[1], values[0]).confidence_interval()
    assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_a_cell_may_be_compared_with_several_others():
    values = 0.7 + np.random.default_rng(1).normal(0, 0.02, (3, 5))
    found = analysis.compare(long(values), [("2", "0"), ("2", "1"), ("1", "0")])
    assert [*zip(found.index, found["reference"], strict=True)] == [("2", "0"), ("2", "1"), ("1", "0")]
    means = values.mean(axis=1)
    assert found["difference"].tolist() == pytest.approx(
        [means[2] - means[0], means[2] - means[1], means[1] - means[0]]
    )
    once = analysis.compare(long(values), {"2": "0", "1": "0"})
    again = analysis.compare(long(values), [("2", "0"), ("1", "0")])
    pd.testing.assert_frame_equal(once, again)


def test_cells_pool_their_noise_and_one_that_varies_more_keeps_its_own():
    rng = np.random.default_rng(3)
    values = 0.7 + rng.normal(0, 0.01, 4) + rng.normal(0, 0.002, (5, 4)) + 0.0001 * rng.random((5, 4))
    found = analysis.compare(long(values), "0")
    residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    own = np.var(values[1:] - values[0], axis=1, ddof=1)
    pooled = np.maximum(2 * (residual**2).sum() / 12, own.mean()) + 0 * own
    typical = [np.median([np.var(a - b, ddof=1) for b in values if b is not a]) for a in values]
    twice = np.array(typical[1:]) > 2 * np.median(typical)
    assert twice.tolist() == [True, False, False, False], "Student's interval of such a cell has a quarter of the error"
    assert typical[0] < 2 * np.median(typical)
    shares = [0.05 / 4 + 0 * own, 0.05 / 4 + 0 * own, np.where(twice, 0.05 / 4, 0.05)]
    widest = np.sqrt([pooled, (pooled + own) / 2, own]) * stats.t.ppf(1 - np.array(shares) / 2, [[12], [6], [3]])
    assert (found["high"] - found["difference"]).tolist() == pytest.approx((widest.max(0) / 2).tolist())
    values[1] = 0.7 + np.array([0.02, -0.02, 0.02, -0.02])
    wide = analysis.compare(long(values), "0")
    gaps = values[1] - values[0]
    assert wide.loc["1", "high"] - gaps.mean() >= stats.t.ppf(0.975, 3) * gaps.std(ddof=1) / 2 - 1e-12


def test_seeds_that_agree_to_the_last_image_decide_nothing_that_the_test_set_cannot():
    tied = np.array([[0.7, 0.75, 0.8], [0.75, 0.8, 0.85]])  # 20 images: one image apart in every seed
    row = analysis.compare(long(tied), "0").loc["1"]
    assert row["verdict"] == "undecided"
    assert row["high"] - row["difference"] == pytest.approx(stats.t.ppf(0.975, 2) * 0.05 * math.sqrt(2) / 3)


def test_cells_with_the_same_values_on_every_seed_are_identical():
    """Of all clients, on two paired seeds or more; seeds of one cell only or of another split are no pairs."""
    base = np.random.default_rng(0).normal(0.7, 0.1, (4, 5))
    shorter, permuted, split = base.copy(), base[:, ::-1], base.copy()
    shorter[3], split[2] = np.nan, 0.1
    values = {"reference": base, "same": base, "shorter": shorter, "permuted": permuted, "split": split}
    found = analysis.compare(frame(values, {"split": {2: "x"}}), "reference")
    said = {"same": "identical", "shorter": "identical", "permuted": "equal", "split": "identical"}
    assert found["verdict"].to_dict() == said
    assert found["low"].isna().to_dict() == {name: verdict == "identical" for name, verdict in said.items()}
    assert analysis.compare(frame({n: v[:1] for n, v in values.items()}), "reference").loc["same", "verdict"] == (
        "undecided"
    )


def test_no_further_look_is_spent_on_identical_cells():
    values = np.array([[0.7, 0.7, 0.8, 0.6], [0.7, 0.7, 0.8, 0.6], [0.7, 0.8, 0.7, 0.7]])
    every = long(values).assign(seed=lambda f: f["seed"] + 1)
    found = analysis.compare(every, "0", looks=(2, 4))
    assert found[["verdict", "look", "seeds"]].values.tolist() == [["identical", 2, 2], ["undecided", 0, 4]]


def test_a_collapsed_run_is_said_and_widens_its_interval():
    rng = np.random.default_rng(0)
    values = 0.7 + rng.normal(0, 0.003, (5, 5))
    values[2] += 0.1
    assert analysis.compare(long(values), "0").loc["2", "verdict"] == "better"
    values[2, 3] -= 0.15
    found = analysis.compare(long(values), "0")
    assert found.loc["2", "verdict"] == "undecided"
    assert found["note"].to_dict() == {
        "1": "",
        "2": "seed 3 is an outlier, -14.7 points from its other seeds; the interval also holds without it",
        "3": "",
        "4": "",
    }
    narrow = found["high"] - found["low"]
    assert narrow["1"] < 0.03, "the collapsed run is not part of the noise of the others"
    rest = np.delete(values, 3, axis=1)
    alone = analysis.compare(long(rest), "0").loc["2"]
    assert found.loc["2", "low"] < 0 < alone["low"] < alone["high"] <= found.loc["2", "high"]


def test_what_holds_with_and_without_a_run_apart_is_decided():
    values = 0.7 + np.random.default_rng(0).normal(0, 0.003, (5, 5))
    values[2] += 0.2
    values[2, 3] -= 0.07
    row = analysis.compare(long(values), "0").loc["2"]
    assert "seed 3 is an outlier, -" in row["note"]
    assert row["verdict"] == "better"
    assert analysis.judge(long(values), [analysis.Contrast("2", "0")], margin=0.1).status == "holds"


def test_a_chosen_reference_is_corrected_for_all_pairs():
    values = long(0.7 + np.random.default_rng(1).normal(0, 0.01, (6, 10)))
    plain, chosen = ((f["high"] - f["difference"])["1"] for f in (
        analysis.compare(values, "0"), analysis.compare(values, "0", chosen=True)))  # fmt: skip
    ratios = [stats.t.ppf(1 - 0.05 / 30, free) / stats.t.ppf(1 - 0.05 / 10, free) for free in (45, 18)]
    assert min(ratios) - 1e-9 <= chosen / plain <= max(ratios) + 1e-9, "pooled noise, or half of it the pair's own"


@given(st.integers(0, 2**16), st.integers(2, 4), st.sampled_from([0.005, 0.02]))
def test_the_interval_decides_and_claims_agree(seed, cells, noise):
    rng = np.random.default_rng(seed)
    values = long(0.5 + rng.normal(0, 0.02, (cells, 1)) + rng.normal(0, noise, (cells, 4)))
    found = analysis.compare(values, "0")
    for row in found.to_dict("records"):
        inside = row["low"] >= -0.01 and row["high"] <= 0.01
        beyond = "better" if row["low"] > 0 else "worse" if row["high"] < 0 else "undecided"
        if "is an outlier" not in row["note"]:
            assert row["verdict"] == ("equal" if inside else beyond)
    plain = analysis.compare(values, "0", rope=0.0)
    claim = analysis.judge(values, [analysis.Contrast(str(cell), "0") for cell in plain.index])
    every = set(plain["verdict"])
    assert claim.status == ("fails" if "worse" in every else "holds" if every == {"better"} else "undecided")
    row = plain.loc[claim.contrast.cell]
    assert (claim.low, claim.high) == (row["low"], row["high"])


@pytest.mark.parametrize(("column", "value", "said"), [
    ("seed", "one", "A seed must be an integer, but one is 'one'"),
    ("seed", 1.5, "A seed must be an integer, but one is 1.5"),
    ("value", "high", "A value must be a number, but one is 'high'"),
    ("value", 71.3, "divide percents by 100"),
])  # fmt: skip
def test_bad_tables_are_refused_in_a_sentence(column, value, said):
    table = long(np.full((2, 3), 0.5)).astype(object)
    table.loc[0, column] = value
    with pytest.raises(ValueError, match=said):
        analysis.compare(table, "0")


def test_missing_seeds_are_fitted_as_by_least_squares():
    rng = np.random.default_rng(6)
    values = rng.normal(0.7, 0.02, (4, 6))
    values[1, 2] = values[3, 0] = np.nan
    cell, seed = np.nonzero(~np.isnan(values))
    design = np.hstack([np.eye(4)[cell], np.eye(6)[seed]])
    effects, _, rank, _ = np.linalg.lstsq(design, values[cell, seed])
    left = values[cell, seed] - design @ effects
    found = estimate(values, [(1, 0), (2, 0), (3, 0)])
    n, gaps = np.array([5, 6, 5]), values[1:] - values[0]
    own, free = np.nanvar(gaps, axis=1, ddof=1), len(cell) - rank
    pooled = max(2 * (left**2).sum() / free, (own * (n - 1)).sum() / 13)
    corrected = stats.t.ppf(1 - 0.05 / 6, free) * np.sqrt(pooled / n)
    halfway = stats.t.ppf(1 - 0.05 / 6, np.minimum(2 * (n - 1), free)) * np.sqrt((pooled + own) / 2 / n)
    student = stats.t.ppf(0.975, n - 1) * np.sqrt(own / n)
    assert found.half.tolist() == pytest.approx(np.maximum.reduce([corrected, halfway, student]).tolist())
    assert found.seeds.tolist() == [5, 6, 5]


def test_a_comparison_says_better_worse_equal_or_undecided():
    rng = np.random.default_rng(0)
    base = 0.7 + rng.normal(0, 0.02, (6, 5))
    values = {
        "reference": base,
        "up": base + 0.05 + rng.normal(0, 0.002, (6, 5)),
        "down": base - 0.05 + rng.normal(0, 0.002, (6, 5)),
        "same": base + rng.normal(0, 0.002, (6, 5)),
        "noisy": base + 0.02 + rng.normal(0, 0.05, (6, 1)),
    }
    found = analysis.compare(frame(values), "reference")
    assert found["verdict"].to_dict() == {"up": "better", "down": "worse", "same": "equal", "noisy": "undecided"}
    assert found.loc["up", "difference"] == pytest.approx((values["up"] - base).mean())


def test_bad_input_is_said_in_the_row():
    whole = np.full((3, 4), 0.5) + np.arange(3)[:, None] / 100
    gone = whole.copy()
    gone[1] = np.nan
    one = np.full((3, 4), np.nan)
    one[0] = 0.6
    values = {
        "reference": whole,
        "missing": gone,
        "one seed": one,
        "other split": whole + 0.1,
        "diverged": one * np.nan,
    }
    found = analysis.compare(frame(values, {"other split": {2: "x"}}), "reference")
    assert found["seeds"].to_dict() == {"missing": 2, "one seed": 1, "other split": 2, "diverged": 0}
    assert found.loc["missing", "note"] == "1 seed left out: of one cell only, or with other splits"
    assert found.loc["other split", "note"] == "1 seed left out: of one cell only, or with other splits"
    assert found.loc["one seed", "verdict"] == "undecided"
    assert found.loc["one seed", ["low", "high"]].isna().all()
    assert math.isnan(found.loc["diverged", "difference"])


def by_seed(**values: list[float]) -> pd.DataFrame:
    rows = [(cell, seed, v) for cell, listed in values.items() for seed, v in enumerate(listed, 1)]
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))


ONE = [Contrast("a", "b")]


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
    assert (
        judge(by_seed(a=[0.70, 0.74, 0.81], b=[0.60, 0.66, 0.69]), ONE, margin=margin, within=within).status == status
    )


def test_cells_that_are_worse_fail_and_equal_ones_do_not_hold() -> None:
    worse = by_seed(a=[0.50, 0.52, 0.51], b=[0.60, 0.61, 0.63])
    assert judge(worse, ONE).status == "fails"
    assert judge(worse, ONE, within=0.05).status == "fails"
    equal = by_seed(a=[0.501, 0.602, 0.7], b=[0.501, 0.602, 0.701])
    assert judge(equal, ONE, within=0.1).status == "holds"
    assert judge(by_seed(a=[0.5, 0.6], b=[0.5, 0.6]), ONE, within=0.1).status == "undecided"  # the resolution


def test_one_seed_decides_no_claim() -> None:
    found = judge(by_seed(a=[0.9], b=[0.1]), ONE)
    assert (found.status, found.seeds) == ("undecided", 1)
    assert math.isnan(found.low)


def test_seeds_are_paired_and_others_left_out() -> None:
    table = by_seed(a=[0.9, 0.8, 0.1], b=[0.5, 0.4])
    found = judge(table, ONE)
    assert found.seeds == 2
    assert found.difference == pytest.approx(0.4)
    assert found.values == pytest.approx({"a": 0.85, "b": 0.45})
    with pytest.raises(KeyError):
        judge(table, [Contrast("a", "c")])
    with pytest.raises(ValueError, match="contrast"):
        judge(table, [])


def test_every_contrast_must_hold_and_one_may_fail() -> None:
    table = by_seed(a=[0.9, 0.91, 0.92], b=[0.5, 0.51, 0.53], c=[0.89, 0.92, 0.9], d=[0.97, 0.981, 0.99])
    against = {cell: Contrast("a", cell) for cell in "bcd"}
    assert judge(table, [against["b"]]).status == "holds"
    both = judge(table, [against["b"], against["c"]])
    assert (both.status, both.contrast) == ("undecided", against["c"])
    assert judge(table, list(against.values())).contrast == against["d"]
    assert judge(table, list(against.values())).status == "fails"


def test_of_undecided_contrasts_one_without_an_interval_is_nearest_to_failing() -> None:
    data = by_seed(a=[0.5, 0.6, 0.4], b=[0.55, 0.5, 0.5], c=[0.9])
    found = judge(data, [Contrast("a", "b"), Contrast("c", "b")])
    assert (found.status, found.contrast.cell, found.seeds) == ("undecided", "c", 1)


def test_more_contrasts_fail_less_easily() -> None:
    table = by_seed(a=[0.50, 0.52, 0.51, 0.50], b=[0.51, 0.56, 0.55, 0.57])
    assert judge(table, ONE).status == "fails"
    assert judge(table, ONE * 4).status == "undecided"  # at a quarter of the level


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.floats(-0.5, 0.5))
def test_a_claim_and_its_opposite_never_both_hold(values: list[float], margin: float) -> None:
    table = by_seed(a=values, b=[0.0] * len(values))
    there = judge(table, ONE, margin=margin).status
    back = judge(table, [Contrast("b", "a")], margin=-margin).status
    assert {there, back} in ({"holds", "fails"}, {"undecided"}, {"fails"})


def test_letters_of_values_that_are_no_shares_tell_every_difference_apart():
    values = np.array([[0.5], [0.6]]) + 0.001 * np.random.default_rng(0).normal(size=(2, 8))
    assert analysis.letters(long(values), shares=False).to_dict() == {"1": "a", "0": "b"}
    assert analysis.letters(long(values), shares=False, higher=False).to_dict() == {"0": "a", "1": "b"}
    assert analysis.letters(long(values), rope=0.2).to_dict() == {"1": "a", "0": "a"}


def test_cells_that_share_two_seeds_with_no_other_have_no_letters():
    table = by_seed(a=[0.5, 0.52, 0.51], b=[0.9, 0.92, 0.91], one=[0.7, math.nan, math.nan])
    assert analysis.letters(table).to_dict() == {"b": "a", "a": "b"}
    later = pd.concat([table.loc[table["cell"] != "b"], by_seed(fresh=[0.1, 0.2]).assign(seed=[4, 5])])
    assert analysis.letters(later).empty


@pytest.mark.parametrize("cells", [3, 36])
def test_cells_share_a_letter_exactly_where_no_pair_of_them_is_told_apart(cells):
    """However many groups there are: 36 cells on a stair have more than there are small letters."""
    rng = np.random.default_rng(1)
    values = 0.1 + 0.02 * np.arange(cells)[:, None] + rng.normal(0, 0.006, (cells, 5))
    found = analysis.letters(long(values), rope=0)
    order = np.argsort(-values.mean(1))
    assert list(found.index) == [str(i) for i in order]
    pairs = [(int(i), int(k)) for at, i in enumerate(order) for k in order[at + 1 :]]  # the better one first
    said = estimate(values, pairs, resolution=resolution_of(values[..., None]))
    apart = np.abs(said.difference) > said.half
    for (i, k), differ in zip(pairs, apart, strict=True):
        assert bool(set(found[str(i)]) & set(found[str(k)])) != differ
    assert len(set("".join(found))) > 26 or cells == 3


@settings(max_examples=25)  # each of a tenth of a second
@given(st.integers(0, 2**32 - 1))
def test_a_row_stays_as_the_look_that_decided_it_saw_it(seed):
    """The first look compares the first seeds at its share of the error. Seeds that no look has asked for change
    nothing, such as those of an earlier run with other cells."""
    rng = np.random.default_rng(seed)
    levels = 0.7 + rng.normal(0, 0.03, 5)
    values = levels[:, None] + rng.normal(0, 0.01, 9) + rng.normal(0, 0.02, (5, 9))
    every = long(values).assign(seed=lambda f: f["seed"] + 1)
    looks = (3, 5, 9)
    found = analysis.compare(every, "0", looks=looks)
    first = analysis.compare(every.loc[every["seed"] <= 3], "0", level=1 - 0.05 / 3)
    decided = first.index[first["verdict"] != "undecided"]
    assert [*found.index[found["look"] == 3]] == [*decided]
    pd.testing.assert_frame_equal(found.loc[decided, first.columns], first.loc[decided])
    assert (found["seeds"] == found["seen"]).all()
    asked = {**found["seen"], "0": found["seen"].max()}
    stopped = every.loc[every["seed"] <= every["cell"].map(asked)]
    columns = [name for name in found if name != "note"]  # which says how many seeds are left out
    pd.testing.assert_frame_equal(analysis.compare(stopped, "0", looks=looks)[columns], found[columns])


def test_looks_that_no_seed_has_reached_decide_nothing():
    values = np.array([[0.5, 0.5001], [0.9, 0.9001]])
    every = long(values).assign(seed=lambda f: f["seed"] + 1)
    assert analysis.compare(every, "0", looks=(3, 5))["look"].tolist() == [3], "two seeds are all that the first sees"
    assert analysis.compare(every.iloc[:0], {}, looks=(3, 5)).empty
