"""Intervals, tests, verdicts and power: by hand, by enumeration, at their edges, and in simulation."""

# The stubs of pandas and scipy do not know the types of selected rows and of test results.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fpl_tune import analysis
from fpl_tune.analysis.significance import equivalence


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
    np.testing.assert_array_equal(table.of("a"), [[1, 2], [3, np.nan]])
    assert table.splits[1].tolist() == ["split0", "split1"]
    with pytest.raises(ValueError, match="several for"):
        analysis.read(pd.concat([frame(values)] * 2))
    with pytest.raises(ValueError, match="'value'"):
        analysis.read(pd.DataFrame({"cell": [], "seed": []}))


def test_paired_t_is_scipy_s_and_defined_at_its_edges():
    d = [0.1, 0.3, -0.05, 0.2]
    assert analysis.paired_t(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue)
    assert math.isnan(analysis.paired_t([0.5]))
    assert analysis.paired_t([0.0, 0.0]) == 1.0
    assert analysis.paired_t([0.1, 0.1]) == 0.0


def test_equivalence_is_the_larger_of_two_one_sided_tests():
    d = np.array([0.002, -0.001, 0.004, 0.001])
    upper = stats.ttest_1samp(d, 0.01, alternative="less").pvalue
    lower = stats.ttest_1samp(d, -0.01, alternative="greater").pvalue
    assert equivalence(d, 0.01) == pytest.approx(max(upper, lower))
    assert equivalence([0.0, 0.0], 0.01) == 0.0
    assert math.isnan(equivalence([0.0], 0.01))


def test_holm_by_hand():
    assert analysis.holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert analysis.holm([0.5, math.nan, 0.5]).tolist() == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p):
    raw, corrected = np.array(p), analysis.holm(p)
    assert (corrected >= raw - 1e-15).all()
    assert (corrected <= np.minimum(raw * len(p), 1) + 1e-12).all()
    assert (np.diff(corrected[raw.argsort(kind="stable")]) >= -1e-15).all()


def test_the_interval_of_few_seeds_is_student_s_over_the_seeds_means():
    values = np.array([[0.5, 0.7], [0.6, 0.8], [0.4, np.nan]])
    found = analysis.interval(values)
    means = [0.6, 0.7, 0.4]
    half = stats.t.ppf(0.975, 2) * np.std(means, ddof=1) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((np.mean(means) - half, np.mean(means) + half))
    assert (found.seeds, found.clients) == (3, 2)
    alone = analysis.interval(values[:1])
    assert math.isnan(alone.low)
    assert alone.note == "1 seed: no interval"
    assert analysis.interval(values[:0]).note == "no seed: no interval"
    assert math.isnan(analysis.t_half_width(0.1, 1))
    assert analysis.t_half_width(1.0, 2) == pytest.approx(12.706204736432095)


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
    assert "up is better than reference: +5" in found.loc["up", "sentence"]
    assert "equals reference within 1 point:" in found.loc["same", "sentence"]


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
    assert found.loc["missing", "note"] == "1 seed of one cell only"
    assert found.loc["missing", "seeds"] == 2
    assert found.loc["one seed", "verdict"] == "undecided"
    assert "one seed allows no test" in found.loc["one seed", "sentence"]
    assert found.loc["one seed", ["low", "high"]].isna().all()
    assert found.loc["other split", "seeds"] == 2
    assert "1 seed left out: splits differ" in found.loc["other split", "note"]
    assert "is not compared" in found.loc["diverged", "sentence"]
    single = {name: table[:, :1] for name, table in values.items()}
    assert "1 client" in analysis.compare(frame(single), "reference").loc["missing", "note"]


def test_power_is_that_of_the_noncentral_t():
    for effect, sd, n in [(0.02, 0.02, 5), (0.01, 0.03, 10), (0.03, 0.02, 3)]:
        limit, shift = stats.t.ppf(0.975, n - 1), effect / sd * math.sqrt(n)
        expected = stats.nct.sf(limit, n - 1, shift) + stats.nct.cdf(-limit, n - 1, shift)
        assert analysis.decision_power(effect, sd, n, rope=0.0) == pytest.approx(expected, abs=0.003)
    assert math.isnan(analysis.decision_power(0.1, 0.1, 1, rope=0.0))
    assert math.isnan(analysis.decision_power(0.1, math.nan, 5, rope=0.0))
    assert analysis.decision_power(0.1, 0.0, 5, rope=0.0) == 1.0


def test_a_decision_may_be_equality_and_more_seeds_decide_more():
    assert analysis.decision_power(0.0, 0.01, 30) > 0.9 > 0.1 > analysis.decision_power(0.0, 0.01, 30, rope=0.0)
    chances = [analysis.decision_power(0.02, 0.02, n) for n in (3, 6, 12)]
    assert chances == sorted(chances)
    needed = analysis.seeds_needed(0.02, 0.02)
    assert needed is not None
    assert analysis.decision_power(0.02, 0.02, needed) >= 0.8 > analysis.decision_power(0.02, 0.02, needed - 1)
    assert analysis.seeds_needed(0.01, 0.5, most=20) is None


def test_advice_can_be_executed():
    rng = np.random.default_rng(0)
    base = rng.normal(0.7, 0.01, (3, 5))
    values = {
        "r": base,
        "a": base + np.array([[0.01], [0.02], [0.05]]),
        "b": base + np.array([[0.05], [0.0], [0.02]]),
    }
    table = frame(values)
    found = analysis.advise(table, analysis.compare(table, "r"), study="sweep")
    assert found.seeds is not None
    assert found.seeds > 3
    assert found.text.startswith(f"{found.seeds - 3} more seed")
    assert found.text.endswith(f"fpl-tune study sweep seeds={found.seeds}")
    assert set(found.cells) | set(found.beyond) <= {"a", "b"}
    one = table[table["seed"] == 0]
    assert analysis.advise(one, analysis.compare(one, "r")).text.endswith("seeds=3")
    decided = frame({"r": base, "a": base + 0.1 + rng.normal(0, 1e-4, (3, 5))})
    assert analysis.advise(decided, analysis.compare(decided, "r")).text == "Every comparison is decided."
