"""A small simulation: what the statistics claim is true as often as they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

TOOLS = Path(__file__).resolve().parents[3] / ".github" / "tools"
statistics = SimpleNamespace(**runpy.run_path(str(TOOLS / "bench_statistics.py")))


@pytest.mark.parametrize(("seeds", "how"), [(3, "weakly"), (3, "strongly"), (10, "strongly")])
def test_claims_hold_their_level_and_intervals_their_coverage(seeds, how):
    rows = {row["what"]: row["value"] for row in statistics.comparisons(seeds, 200, how)}
    for what, value in rows.items():
        if what.startswith("false"):
            assert value <= 0.05 + 0.045, what  # three standard errors of 200 studies
        if what.endswith(", t"):
            assert 0.93 - 0.03 <= value <= 0.97 + 0.03, what
    assert any(what.startswith("false") for what in rows)
    for effect in statistics.EFFECTS:
        predicted, actual = (value for what, value in rows.items() if f": {100 * effect:g} points" in what)
        assert abs(predicted - actual) <= 0.1 + 0.08


def test_shares_are_sobol_s_within_three_points():
    for row in statistics.importance(3):
        assert row["value"] == pytest.approx(float(row["wanted"].split()[0]), abs=0.03), row["what"]


def test_a_lower_bound_regrets_less_and_the_corrected_value_is_near_the_truth():
    rows = {row["what"]: row["value"] for row in statistics.choices(5, 150)}
    regret = {rule: rows[f"regret of selection by {rule} (points)"] for rule in ("mean", "lower_bound")}
    assert regret["lower_bound"] < 0.7 * regret["mean"]
    optimism = rows["winner's test value minus its truth (points)"]
    assert abs(rows["corrected value minus its truth (points)"]) < 0.3 * optimism


def test_all_rows_are_printed_with_what_is_wanted():
    said: list[str] = []
    rows = statistics.bench_statistics(8, lambda done, total, what: said.append(what))
    assert len(said) == 10
    assert {row["seeds"] for row in rows} == {3, 5, 10, ""}
    assert all(np.isfinite(row["value"]) for row in rows)
