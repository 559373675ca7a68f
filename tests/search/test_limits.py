"""Limits of a search: what is known to be outside of them never runs, and samplers learn of the rest."""

from dataclasses import replace
from typing import Any

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import excess
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.search.ask import trials_of
from fpl_tune.search.compose import ComposedStudy
from fpl_tune.search.halving import at_rung
from fpl_tune.search.limits import OutsideLimits, rejection
from fpl_tune.simulation.costs import known_costs
from fpl_tune.study.standing import Row

from ..conftest import Asked, Compose, there
from .conftest import drawn_results, score

SIZES = """
axes: {}
search: {trials: 12, sampler: random, only: [optim.lr, method.n_ctx], published: [{method.n_ctx: 4}],
  space: {optim.lr: {low: 1.0e-3, high: 1.0}, method.n_ctx: {low: 1, high: 8}}}
"""
BYTES = "comm/total_bytes"


def bytes_of(compose: Compose, n_ctx: int) -> float:
    """Bytes of a run with so many context tokens."""
    return known_costs(compose(SIZES, f"method.n_ctx={n_ctx}"))[BYTES]


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ("{test/acc_mean: 0.5}", "not a validation metric or a cost. Do not select on test data"),
        ("{comm/totalbytes: 5}", "Did you mean 'comm/total_bytes'"),
        ("{val/acc_min: 60}", "share between 0 and 1, but its limit is 60. Write 0.6"),
        ("{comm/total_bytes: .inf}", "search.limits"),
        ("{comm/total_bytes: 8}", "no point of promptfl is within the limits.*limited to 8e-06 MB"),
    ],
)
def test_limits_that_cannot_hold_are_refused(compose: Compose, limits: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ComposedStudy.of(compose(SIZES, f"search.limits={limits}"))


def test_an_objective_that_is_the_same_everywhere_is_refused(compose: Compose) -> None:
    objectives = "search.objectives=[val/acc_mean, comm/up_bytes]"
    with pytest.raises(ConfigError, match=r"upload .comm/up_bytes. is the same at all points"):
        ComposedStudy.of(compose(SIZES, objectives, "search.only=[optim.lr]", "search.published=[{optim.lr: 0.1}]"))
    ComposedStudy.of(compose(SIZES, objectives))


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "qmc", "nsgaii"])
def test_no_point_that_is_known_to_be_outside_is_suggested(compose: Compose, sampler: str) -> None:
    """The published point is outside too; numbers of trials have no gaps, since rejections are no trials."""
    limit = bytes_of(compose, 2)
    made = compose(SIZES, f"search.limits={{{BYTES}: {limit}}}", f"search.sampler={sampler}")
    asked = Asked(made, rejection(made.search.limits))
    while (cell := asked.request()) is not None:
        asked.note(cell, drawn_results(score(cell)))
    assert [row.cell.trial_number for row in asked.rows] == [*range(12)]
    assert {known_costs(row.cell.run)[BYTES] <= limit for row in asked.rows} == {True}
    assert [row.cell.varied for row in asked.rows if row.cell.published] == []


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_points_within_are_found_where_they_are_rare(compose: Compose, sampler: str) -> None:
    rare = SIZES.replace("high: 8", "high: 16")
    made = compose(rare, f"search.limits={{{BYTES}: {bytes_of(compose, 1)}}}", f"search.sampler={sampler}")
    assert len(Asked(made, rejection(made.search.limits)).all()) == made.search.trials


def test_a_search_ends_where_only_points_outside_are_left(compose: Compose) -> None:
    body = "axes: {}\nsearch: {trials: 30, sampler: random, only: [method.n_ctx], published: [{method.n_ctx: 1}],\n"
    body += "  space: {method.n_ctx: {low: 1, high: 8}}}"
    made = compose(body, f"search.limits={{{BYTES}: {bytes_of(compose, 3)}}}")
    asked = Asked(made, rejection(made.search.limits))
    assert sorted(cell.run.method.n_ctx for cell in asked.all()) == [1, 2, 3]  # pyright: ignore


def test_a_limit_may_be_met_exactly(compose: Compose) -> None:
    made = compose(SIZES)
    costs = known_costs(made)
    rejection({BYTES: costs[BYTES], "val/acc_min": 0.9})(made)
    with pytest.raises(OutsideLimits, match="communication"):
        rejection({BYTES: costs[BYTES] - 1})(made)


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsgaii"])
def test_samplers_see_by_how_much_trials_violate_limits(compose: Compose, sampler: str) -> None:
    """What diverged has the worst violation that was seen; what has no such metric is no trial to them."""
    made = compose(SIZES, f"search.sampler={sampler}", "search.limits={val/acc_mean: 0.95, time/seconds: 1.5}")
    asked, first = Asked(made), list[Any]()
    for value in (0.99, 0.9, 0.5):
        first.append(there(asked.request()))
        asked.note(first[-1], drawn_results(value))
    asked.note(there(asked.request()), {1: []}, "diverged")
    bare = drawn_results(0.9)
    for record in (record for history in bare.values() for record in history):
        record.pop("time/seconds")
    asked.note(there(asked.request()), {seed: [] for seed in bare})
    told = trials_of(asked.search.parts[0], asked.rows)
    assert [trial.constraints.get("val/acc_mean") for trial in told[:3]] == pytest.approx([-0.04, 0.05, 0.45])
    assert [trial.constraints["time/seconds"] for trial in told[:3]] == pytest.approx([0.5] * 3)
    assert told[3].constraints == {"val/acc_mean": pytest.approx(0.45), "time/seconds": pytest.approx(0.5)}
    assert not told[4].constraints
    assert there(asked.request()).id not in {cell.id for cell in first}


class Broken(PromptFL):
    """Fails where it reads what a client holds."""

    def start(self, task: Any, state: Any, clients: Any) -> Any:
        raise RuntimeError("broken")


def test_a_method_whose_costs_cannot_be_computed_is_not_rejected(compose: Compose) -> None:
    """Its trial reports the error."""
    study = compose(SIZES)
    run = replace(study, method=Broken(), stages=(replace(study.stages[0], method=Broken()),))
    with pytest.raises(RuntimeError, match="broken"):
        known_costs(run)
    rejection({BYTES: 1})(run)
    with pytest.raises(OutsideLimits):
        rejection({BYTES: 1})(study)


def test_excess_follows_the_direction() -> None:
    assert excess("val/acc_min", 0.5, 0.6) == pytest.approx(0.1)
    assert excess(BYTES, 5, 6) == -1
    assert excess("val/acc_min", 0.6 - 1e-12, 0.6) == 0


def test_halving_lets_those_continue_that_will_be_within_the_limits(compose: Compose) -> None:
    """Bytes so far grow at their pace; accuracy still rises, so that its limit counts after the last round alone."""
    asked = Asked(compose(SIZES, f"search.limits={{{BYTES}: 60, val/acc_mean: 0.9}}", "protocol.rounds=6"))
    rows = list[Row]()
    for value, up in ((0.9, 20), (0.8, 5), (0.7, 4), (0.95, 6)):
        cell = there(asked.request())
        asked.note(cell, {1: drawn_results(value, rounds=6, up=up)[1]}, "partial")
        rows.append(asked.table.rows[cell.id])
    first, last = rows[0].design.rungs(rows[0].cell)[0], rows[0].cell.rounds
    assert first < last
    assert at_rung(rows, first) == [rows[i] for i in (1, 2, 3, 0)], "they come to 60, 48, 72 and 240 bytes"
    assert at_rung(rows, last) == [rows[i] for i in (1, 3, 2, 0)], "violated by 12, 20, 23 and 301 % of the limits"
