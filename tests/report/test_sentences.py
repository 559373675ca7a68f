"""The forms of sentences about results: differences with their intervals and verdicts."""

import math

import pytest

from fpl_tune.report import sentences

from .conftest import findings_of

NONE = {"low": math.nan, "high": math.nan, "verdict": "undecided"}
BETTER = {"difference": 0.012, "low": 0.003, "high": 0.021, "verdict": "better", "seeds": 3}
GAP, BOUNDS = "+1.20 points", "+0.30 to +2.10"


@pytest.mark.parametrize(
    ("tests", "text"),
    [
        ([BETTER], f"{GAP} against A (95 % interval {BOUNDS}: better)"),
        ([{**BETTER, "seeds": 2}], f"{GAP} against A (95 % interval {BOUNDS}, 2 seeds: better)"),
        (
            [{**BETTER, "seeds": 2, "look": 2}],
            f"{GAP} against A (95 % interval {BOUNDS}: better at 2 seeds)",
        ),
        (
            [{**BETTER, "verdict": "equal"}],
            f"{GAP} against A (95 % interval {BOUNDS}: equal within ± 1 point)",
        ),
        ([{**BETTER, **NONE, "seeds": 1}], f"{GAP} against A (one seed: no interval)"),
        ([{**BETTER, **NONE}], f"{GAP} against A (no interval)"),
        (
            [{**BETTER, **NONE, "difference": 0.0, "verdict": "identical"}, BETTER, BETTER],
            f"+0.00 points against A (identical on every seed), {GAP} against B (95 % interval {BOUNDS}: "
            f"better), {GAP} against C ({BOUNDS}: better)",
        ),
    ],
)
def test_differences_have_intervals_and_verdicts_and_the_level_is_said_once(make_store, tests, text):
    findings = findings_of(make_store(body="axes: {optim.lr: [0.1, 0.2]}\nseeds: 3\n"))
    assert sentences.differences(findings, dict(zip("ABC", tests, strict=False)), 3) == text


@pytest.mark.parametrize(("rope", "text"), [(1, "within ± 1 point"), (0.5, "within ± 0.5 points")])
def test_what_counts_as_equal_is_in_points(make_store, rope, text):
    findings = findings_of(make_store([f"report.rope={rope}"], body="axes: {optim.lr: [0.1, 0.2]}\nseeds: 3\n"))
    assert sentences.within(findings) == text
