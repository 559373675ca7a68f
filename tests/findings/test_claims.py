"""A study's claims: which cells they compare, what is refused, and what is said of the results."""

import json
import re
from collections import Counter
from typing import Any

import pytest

from fpl_tune import cli, config
from fpl_tune.config import ReportSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.spec import validated
from fpl_tune.findings.claims import Judged, check, contrasts, counts_sentence, evaluate
from fpl_tune.findings.comparisons import compare
from fpl_tune.report.answer import claims as section
from fpl_tune.report.answer import sentence
from fpl_tune.search.compose import compose as compose_checked
from fpl_tune.study.grid import expand
from fpl_tune.study.store import Store

from ..conftest import there
from ..report.conftest import amend, findings_of, put

BODY = """
axes:
  split: [{label: few, data.shots: 2}, {label: many, data.shots: 8}]
  method: {n_ctx: [2, 4]}
references: [{method: zeroshot}]
seeds: 3
report:
  claims:
    better:
      says: Four tokens are better than two.
      source: Table 1
      cells: {n_ctx: 4}
      versus: {n_ctx: 2}
    level: {says: They are level., cells: {n_ctx: 4}, versus: {n_ctx: 2}, at: {split: few}, within: 1}
"""


def found(body: str, *overrides: str, tmp_path: Any) -> Any:
    path = tmp_path / "toy.yaml"
    path.write_text(f"defaults: [/study, _self_]\n{body}")
    spec = config.compose_study(str(path), overrides)
    return spec, expand(spec)


def pairs(stands: Any, name: str, **claim: Any) -> list[tuple[str, ...]]:
    labels = {cell.id: cell.label for cell in stands}
    given = validated(ReportSpec, {"claims": {name: {"says": "x", **claim}}}, "report").claims[name]
    return [tuple(labels[cell] for cell in pair) for pair in contrasts(name, given, stands)]


def test_cells_are_paired_at_the_same_place(tmp_path: Any) -> None:
    _, stands = found(BODY, tmp_path=tmp_path)
    four, two = {"n_ctx": 4}, {"method.n_ctx": 2}
    both = [("few, n_ctx=4", "few, n_ctx=2"), ("many, n_ctx=4", "many, n_ctx=2")]
    assert pairs(stands, "c", cells=four, versus=two) == both
    assert pairs(stands, "c", cells=four, versus=two, at={"split": "many"}) == both[1:]
    assert pairs(stands, "c", cells={**four, "split": "many"}, versus={"split": "few"}) == [
        ("many, n_ctx=4", "few, n_ctx=4")
    ]
    assert len(pairs(stands, "c", cells={"n_ctx": [2, 4]}, versus={"n_ctx": [2, 4]})) == 4  # no cell with itself


def test_a_claim_names_a_value_by_its_label_whatever_is_in_it(tmp_path: Any) -> None:
    axes = "axes: {method: [promptfl, {label: 'mine:Mine', method: coop}]}\n"
    _, stands = found(axes, tmp_path=tmp_path)
    named = pairs(stands, "c", cells={"method": "mine:Mine"}, versus={"method": "promptfl"})
    assert named == [("mine:Mine", "promptfl")]


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        ({"cells": {"nctx": 4}}, "no axis of report.claims.c.cells 'nctx'. Did you mean 'method.n_ctx'?"),
        ({"cells": {"n_ctx": 5}}, "no value of report.claims.c.cells.n_ctx '5'. Known: 2, 4."),
        ({"at": {"split": "fw"}}, "no value of report.claims.c.at.split 'fw'. Did you mean 'few'?"),
        ({"cells": {"n_ctx": 2}}, "report.claims.c compares no two cells"),
        ({"margin": 1, "within": 1}, "has a margin or a range"),
    ],
)
def test_bad_claims_are_refused(claim: dict[str, Any], message: str, tmp_path: Any) -> None:
    _, stands = found(BODY, tmp_path=tmp_path)
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as problem:
        pairs(stands, "c", **{"cells": {"n_ctx": 4}, "versus": {"n_ctx": 2}, **claim})
    assert message in str(problem.value)


def test_a_study_refuses_claims_that_it_cannot_answer_before_it_starts(tmp_path: Any) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(f"defaults: [/study, _self_]\n{BODY.replace('n_ctx: 4}', 'n_ctx: 3}', 1)}")
    with pytest.raises(ConfigError, match=r"no value of report\.claims\.better\.cells\.n_ctx '3'"):
        compose_checked(str(path))
    compose_checked(str(path), ["axes.method.n_ctx=[2]"])  # a narrowed study leaves claims open
    path.write_text(f"defaults: [/study, _self_]\n{BODY}")
    with pytest.raises(ConfigError, match="searches"):
        compose_checked(str(path), ["search.sampler=random"])
    check(config.compose_study("joint_search"), [])  # a search without claims


def judge(store: Store) -> list[Judged]:
    """The claims of a stored study."""
    return evaluate(store.table(), store.spec().report)


LEVELS = {("few", 2): 0.5, ("few", 4): 0.7, ("many", 2): 0.6, ("many", 4): 0.8}


def level(cell: Any) -> float:
    split = cell.varied.get("split", {})
    return LEVELS.get((split.get("label"), cell.varied.get("method.n_ctx")), 0.4)


def test_results_decide(make_store: Any) -> None:
    judged = judge(make_store(body=BODY, level=level))
    assert [(j.name, j.status, j.seeds) for j in judged] == [("better", "holds", 3), ("level", "fails", 3)]
    assert judged[0].source == "Table 1"
    assert "n_ctx=4" in judged[0].reason
    assert "closest of 2 comparisons" in judged[0].reason
    assert "comparison" not in judged[1].reason, "it is one"
    assert judged[0].difference == pytest.approx(0.2, abs=0.05)
    assert counts_sentence(judged) == "1 of 2 claims holds, 1 fails, 0 are undecided"


@pytest.mark.parametrize(("metric", "unit", "form"), [("test/acc_mean", 100, ".1f"), ("train/loss", 1, ".4g")])
def test_differences_have_their_sign_and_the_digits_of_their_metric(
    make_store: Any, metric: str, unit: float, form: str
) -> None:
    store = make_store([f"report.metric={metric}"], body=BODY, level=level)
    amend(store, train__loss=lambda cell: 1 - level(cell))
    for claim in judge(store):
        low, high, gap = (f"{unit * (value or 0.0):+{form}}" for value in (claim.low, claim.high, claim.difference))
        points = " points" if unit == 100 else ""
        assert f": {gap}{points} (95 % interval {low} to {high}) over 3 seeds" in claim.reason


def test_values_and_limits_of_a_claim_have_the_unit_of_their_metric(make_store: Any) -> None:
    overrides = ["report.metric=comm/up_bytes", "report.claims.better.margin=5000000"]
    store = make_store(overrides, body=BODY, level=level)
    for cell in store.cells():
        for seed in store.seeds(cell):
            costs = there(store.result(cell, seed)).costs
            sent = 1e6 * cell.varied.get("method.n_ctx", 0)
            put(store, cell, seed, costs={**costs, "comm/up_bytes": sent})
    reason = judge(store)[0].reason
    found = re.match(r"few, n_ctx=4 (\S+) MB against few, n_ctx=2 (\S+) MB: \+(\S+) MB \(", reason)
    one, other, gap = map(float, there(found).groups())
    assert (one, other, gap) == (4, 2, 2)
    assert ", claimed above 5;" in reason


def test_what_did_not_run_is_undecided(make_store: Any) -> None:
    one = judge(make_store(body=BODY, level=level, fill=lambda cell, seed: seed == 1))
    assert {j.status for j in one} == {"undecided"}
    assert "one seed allows no interval" in one[0].reason
    none = judge(make_store(body=BODY, name="none", fill=lambda cell, seed: cell.varied.get("method.n_ctx") == 2))
    assert "There is no result of few, n_ctx=4." in none[1].reason
    narrow = judge(make_store(["axes.method.n_ctx=[2]"], body=BODY, name="narrow"))
    assert "does not answer it: There is no value" in narrow[0].reason


def test_noise_leaves_a_claim_open(make_store: Any) -> None:
    store = make_store(body=BODY, level=lambda cell: 0.5 + 0.002 * cell.number)
    judged = judge(store)[0]
    assert judged.status == "undecided"


def test_a_run_that_lies_apart_leaves_open_what_it_changes_and_is_said(make_store: Any) -> None:
    drawn = Counter[str]()

    def fallen(cell: Any) -> float:
        drawn[cell.id] += 1  # once a seed
        return level(cell) - 0.3 * (drawn[cell.id] == 2 and cell.label == "few, n_ctx=4")

    judged = judge(make_store(["seeds=5"], body=BODY, level=fallen))
    assert [j.status for j in judged] == ["undecided", "undecided"]
    assert "one seed is an outlier, and the interval also holds without it" in judged[0].reason


def test_page_and_command_show_them(
    make_store: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(body=BODY, level=level)
    findings = findings_of(store)
    shown = section(findings, compare(findings))
    assert shown is not None
    assert "1 of 2 claims holds" in shown.texts[0]
    assert sentence(findings, compare(findings)) == "1 of 2 claims holds, 1 fails, 0 are undecided."
    assert [row.cells[0].text for row in shown.tables[0].rows] == ["holds", "fails"]
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main(["show", "toy", "--claims", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["status"]) for row in rows] == [("better", "holds"), ("level", "fails")]
    plain = findings_of(make_store(name="plain"))
    assert section(plain, compare(plain)) is None
