"""What is chosen is within the limits of its search; where nothing is, that is the answer."""

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.findings import limits
from fpl_tune.findings.choice import choose, choose_finished
from fpl_tune.findings.findings import Findings
from fpl_tune.report import answer
from fpl_tune.report.panels import Panel

from ..conftest import Asked, Compose
from ..search.conftest import drawn_results

BODY = """
axes: {}
search: {trials: 4, sampler: random, only: [optim.lr], confirm: 0, published: [{optim.lr: 0.4}],
  space: {optim.lr: {choices: [0.1, 0.2, 0.3, 0.4]}}}
"""


def searched(compose: Compose, *overrides: str) -> Asked:
    """Four trials, of which one with a higher rate is more accurate, and sends more; the published one is the best."""
    asked = Asked(compose(BODY, *overrides))
    while (cell := asked.request()) is not None:
        rate = cell.run.optim.lr
        asked.note(cell, drawn_results(0.5 + rate, up=round(100 * rate)))
    return asked


@pytest.mark.parametrize(("limit", "best"), [(100, 0.4), (79, 0.3), (60, 0.3), (59, 0.2), (20, 0.1)])
def test_the_best_within_the_limits_is_chosen(compose: Compose, limit: float, best: float) -> None:
    """Trials of two rounds send 20, 40, 60 and 80 bytes; a limit that is met exactly holds."""
    table = searched(compose, f"search.limits={{comm/up_bytes: {limit}}}").table
    choice = choose_finished(table)
    assert choice.cell.run.optim.lr == best
    assert choice.by == f"highest mean validation accuracy, within upload ≤ {limit / 1e6:.4g} MB"


def test_all_limits_hold_together(compose: Compose) -> None:
    table = searched(compose, "search.limits={comm/up_bytes: 60, time/seconds: 1.9}").table
    assert choose(table.rows.values(), "final", table.study) is None
    table = searched(compose, "search.limits={comm/up_bytes: 60, val/acc_mean: 0.75}").table
    assert choose_finished(table).cell.run.optim.lr == 0.3


def test_a_metric_that_no_record_holds_is_not_within_its_limit(compose: Compose) -> None:
    table = searched(compose, "search.limits={val/ece: 0.1}").table
    text = limits.nothing(table.rows.values(), "final", table.study)
    assert text == "Nothing is within validation ece ≤ 10.00 %: no record holds these metrics."


def test_where_nothing_is_within_the_limits_the_nearest_trial_is_the_answer(compose: Compose) -> None:
    asked = searched(compose, "search.limits={comm/up_bytes: 15, val/acc_mean: 0.85}")
    table = asked.table
    with pytest.raises(ConfigError, match=r"Nothing is within upload .* and validation accuracy ≥ 85.00 %; nearest is"):
        choose_finished(table)
    # 0.1: 5 of 15 bytes and 25 of 85 points over; 0.2: 25 bytes and 15 points
    assert "with upload 2e-05 MB and validation accuracy 60.00 %" in limits.nothing(
        table.rows.values(), "final", table.study
    )
    findings = Findings(asked.search.parts[0].spec, table)
    assert findings.choice is None
    (searched_once,) = findings.searches
    assert searched_once.best is None
    assert searched_once.published is not None, "the point that papers have is what it is"
    from fpl_tune.findings.comparisons import compare  # pandas

    text = answer.sentence(findings, compare(findings))
    assert text.startswith("Nothing is within upload")
    assert isinstance(answer.decided(findings, compare(findings)), Panel)


def test_tables_say_the_limits(compose: Compose) -> None:
    asked = searched(compose, "search.limits={comm/up_bytes: 60}")
    findings = Findings(asked.search.parts[0].spec, asked.table)
    assert findings.notes.startswith("Chosen within upload ≤ 6e-05 MB.")
    assert findings.beyond == []
