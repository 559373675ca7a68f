"""A search for one configuration of all settings: every trial runs in each of them, and their mean chooses."""

import math
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.config import RunSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute.decide import suggested
from fpl_tune.findings.findings import Findings
from fpl_tune.report import tuned
from fpl_tune.search.ask import trials_of
from fpl_tune.search.halving import check, resolved
from fpl_tune.search.search import Search
from fpl_tune.study.cells import Cell
from fpl_tune.study.store import Store

from ..conftest import Asked, Compose, there
from ..conftest import start_study as run_study
from .conftest import drawn_results

BODY = """
axes: {partition: [iid, disjoint], method: [promptfl, fedprox]}
references: [{method: zeroshot}]
search:
  {sampler: tpe, trials: 9, across: settings, only: [optim.lr], space: {optim.lr: {low: 0.001, high: 1.0, log: true}}}
"""
BEST = {"iid": 0.01, "disjoint": 0.3}
"""The best rate of each setting, which is bad in the other."""

pytestmark = pytest.mark.filterwarnings("ignore:Published points outside")


def scored(cell: Cell) -> float:
    return 1 - 0.1 * math.log10(cell.run.optim.lr / BEST.get(cell.varied.get("partition", ""), 0.1)) ** 2


def finished(asked: Asked) -> Asked:
    for cell in iter(asked.request, None):
        asked.note(cell, drawn_results(scored(cell)))
    return asked


def rates(asked: Asked, place: dict[str, str]) -> dict[int, float]:
    """The rates of the trials by number, in a cell of the axes."""
    return {
        row.cell.trial_number: row.cell.run.optim.lr for row in asked.rows if place.items() <= row.cell.varied.items()
    }


def test_every_trial_runs_in_all_settings_and_the_sampler_gets_the_mean(compose: Compose) -> None:
    asked = finished(Asked(compose(BODY)))
    assert len(asked.rows) == 9 * 4
    for method in ("promptfl", "fedprox"):
        one, other = (rates(asked, {"method": method, "partition": partition}) for partition in BEST)
        assert one == other
        first = next(part for part in asked.search.parts if part.varied == {"method": method, "partition": "iid"})
        trials = trials_of(first, suggested(asked.table, first))
        means = {number: sum(1 - 0.1 * math.log10(rate / best) ** 2 for best in BEST.values()) / 2
                 for number, rate in one.items()}  # fmt: skip
        assert {number: there(trial.values)[0] for number, trial in enumerate(trials)} == pytest.approx(means)


def test_the_point_with_the_best_mean_is_confirmed_in_all_settings(compose: Compose) -> None:
    asked = finished(Asked(compose(BODY)))
    for part in asked.search.parts:
        shared = suggested(asked.table, part)
        confirmed = part.confirmed(shared)[0]
        values = rates(asked, part.varied).values()
        best = min(values, key=lambda rate: sum(math.log10(rate / best) ** 2 for best in BEST.values()))
        assert (confirmed.role, confirmed.run.optim.lr) == ("tuned", best)
        assert [other is part for other in asked.search.parts] == [
            other.confirms(confirmed) for other in asked.search.parts
        ]


def test_what_a_kill_or_a_new_setting_leaves_out_is_repeated_first(compose: Compose) -> None:
    asked = finished(Asked(compose(BODY)))
    rows = [row for row in asked.rows if row.cell.varied["partition"] == "iid"]
    half = Asked(compose(BODY), rows=rows)
    for part in half.search.parts:
        trials = trials_of(part, suggested(half.table, part))
        assert {trial.values for trial in trials} == {None}, "half of its settings are no mean"
    again = finished(Asked(compose(BODY), rows=rows))
    assert {row.cell.id for row in again.rows} == {row.cell.id for row in asked.rows}
    wider = finished(Asked(compose(BODY, "axes.partition=[domain,iid,disjoint]"), rows=asked.rows))
    for method in ("promptfl", "fedprox"):
        assert rates(wider, {"method": method, "partition": "domain"}) == rates(asked, {"method": method})


def test_a_point_that_cannot_run_in_a_new_setting_is_left_out_there(compose: Compose) -> None:
    def experts_of(run: Any) -> int:
        return run.method.experts

    def fits(run: RunSpec) -> None:
        if experts_of(run) > (run.partition.n_clients or 0):
            raise ConfigError("experts must be at most the number of clients.")

    space = "only: [method.experts], space: {method.experts: {choices: [2, 3, 9]}}"
    search = f"search: {{sampler: random, trials: 12, across: settings, {space}}}"
    body = f"axes: {{partition: {{n_clients: [10]}}}}\n{search}\n"
    asked = finished(Asked(compose(body, "method=pfedmoap"), fits))
    experts = {row.cell.trial_number: experts_of(row.cell.run) for row in asked.rows}
    assert {*experts.values()} > {9}
    wider = finished(Asked(compose(body, "method=pfedmoap", "axes.partition.n_clients=[10,4]"), fits, asked.rows))
    few = {
        row.cell.trial_number: experts_of(row.cell.run) for row in wider.rows if row.cell.run.partition.n_clients == 4
    }
    assert few == {number: value for number, value in experts.items() if value <= 4}
    chosen = [part.confirmed(suggested(wider.table, part))[0] for part in wider.search.parts]
    assert len({experts_of(cell.run) for cell in chosen}) == 1
    assert chosen[0].trial_number in few


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("~axes.partition",), r"search\.across=settings needs an axis of settings, of data, partition or protocol\."),
        (("search.objectives=[val/acc_mean,comm/total_bytes]",), r"search\.across=settings needs one objective\."),
        (("search.across=methods",), "There is no search.across 'methods'"),
        (("prune.rule=halving",), r"compares trials in one setting.*Set prune\.rule=null\."),
    ],
)
def test_refused(compose: Compose, overrides: tuple[str, ...], says: str) -> None:
    def start() -> None:
        spec = compose(BODY, *overrides)
        check(spec, there(Search.plan(spec)).runs)

    with pytest.raises(ConfigError, match=says):
        start()


def test_halving_is_off_unless_it_is_asked_for(compose: Compose) -> None:
    assert resolved(compose(BODY)).rule is None
    assert resolved(compose(BODY, "search.across=null")).rule == "halving"


def test_trials_that_settings_did_not_share_are_not_continued(compose: Compose) -> None:
    apart = finished(Asked(compose(BODY, "search.across=null", "search.trials=4")))
    shared = there(Search.plan(compose(BODY)))
    with pytest.raises(ConfigError, match=r"trial \d+ of tiny differs between them\. Run it .*: name=tiny_2\."):
        shared.restore([row.cell for row in apart.rows])


def test_a_study_runs_continues_and_shows_one_choice_for_all_settings(compose: Compose, tmp_path: Path) -> None:
    body = BODY.replace("method: [promptfl, fedprox]", "optim.batch: [8, 16]").replace("tpe", "random")
    run_study(compose(body, "search.trials=2", "search.confirm=1"), root=tmp_path)
    outcome = run_study(compose(body, "search.trials=3", "search.confirm=1"), root=tmp_path)
    assert outcome.pending == 0
    store = Store.open(tmp_path, "tiny")
    findings = Findings(store.spec(), store.table())
    assert sorted(cell.trial_number for cell in findings.own) == sorted([0, 1, 2] * 4)
    by_batch = {batch: {cell.run.optim.lr for _, cell in findings.tuned if cell.run.optim.batch == batch}
                for batch in (8, 16)}  # fmt: skip
    assert len(findings.tuned) == 4
    assert all(len(found) == 1 for found in by_batch.values())
    assert {cell.role for _, cell in findings.tuned} == {"tuned"}
    assert {cell.run.optim.lr for each in findings.searches if (cell := each.best)} == set[float]().union(
        *by_batch.values()
    )
    assert tuned.note(findings).startswith(
        "Every method is tuned once for all settings with the same budget: 3 trials ("
    )
