"""The choice of a search runs on fresh seeds, and what is said of the search rests on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.choice import POINTS, choose, choose_finished
from fpl_tune.search.halving import design_of
from fpl_tune.study.cells import confirming_id
from fpl_tune.study.export import export
from fpl_tune.study.store import Store

from ..conftest import Asked, Compose, make_plan, there
from ..conftest import start_study as run_study

BODY = """
axes: {}
references: [{method: zeroshot}]
search: {sampler: random, trials: 5, only: [optim.lr], space: {optim.lr: {low: 0.0015, high: 0.5, log: true}}}
prune: {rule: null}
"""


pytestmark = pytest.mark.filterwarnings("ignore:Published points outside")


@pytest.mark.parametrize(
    ("overrides", "used", "seeds"),
    [
        ((), (), (3, 4)),
        (("seeds=3",), (), (4, 5, 6)),
        (("seeds=[2,5,9]",), (), (1, 3, 4)),
        (("seeds=1",), (1, 2, 3), (4,)),
        (("search.confirm=3",), (), (3, 4, 5)),
        (("search.confirm=[9,4]",), (), (9, 4)),
        (("search.confirm=0",), (), ()),
        (("search.confirm=null",), (), ()),
        (("search.objectives=[val/acc_mean,comm/total_bytes]",), (), (3, 4)),
    ],
)
def test_seeds_that_confirm_are_none_of_the_searchs(
    compose: Compose, overrides: tuple[str, ...], used: tuple[int, ...], seeds: tuple[int, ...]
) -> None:
    assert design_of(compose(BODY, *overrides), used).confirm == seeds


@pytest.mark.parametrize(
    ("overrides", "used", "message"),
    [
        (("search.confirm=[2,7]",), (), "it has used seed 2"),
        (("search.confirm=[7,8]",), (7, 8), "it has used seeds 7, 8"),
        (("search.confirm=-1",), (), "search.confirm must be"),
        (("search.confirm=[3,3]",), (), "search.confirm must be"),
    ],
)
def test_other_seeds_are_refused(
    compose: Compose, overrides: tuple[str, ...], used: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        design_of(compose(BODY, *overrides), used)


def points(store: Store) -> dict[str, Any]:
    """The cells that confirm the search, by role."""
    table = store.table()
    return {s.cell.role: s for s in table.rows.values() if s.cell.role in ("tuned", "published")}


def test_the_chosen_point_the_published_one_and_references_run_on_fresh_seeds(compose: Compose, tmp_path: Path) -> None:
    spec = compose(BODY)
    outcome = run_study(spec, root=tmp_path)
    store = Store.open(tmp_path, spec.name)
    table = store.table()
    trials = [row for row in table.rows.values() if row.cell.role == "trial"]
    best = there(choose(trials, "final", table.study)).cell
    cells = [row.cell for row in trials]
    tuned = points(store)["tuned"]
    assert tuned.cell.id == confirming_id(best.id)
    assert tuned.cell.run == best.run
    for stored in points(store).values():
        (trial,) = (trial for trial in cells if confirming_id(trial.id) == stored.cell.id)
        name = "published" if trial.published else f"trial {trial.trial_number}"
        assert stored.cell.label == f"promptfl ({name})"
    confirmed = {"tuned", "reference"} if best.published else {"tuned", "published", "reference"}
    seeds = {row.cell.role: [*row.results] for row in table.rows.values()}
    assert seeds == {"trial": [1, 2], **{role: [3, 4] for role in confirmed}}
    assert outcome.pending == 0
    assert choose_finished(table).cell.id == tuned.cell.id
    assert make_plan(spec, root=tmp_path).totals()["done"] == len(table.rows) == outcome.done
    again = run_study(spec, root=tmp_path)
    assert (again.done, again.skipped) == (0, outcome.done)
    rows = table.frame().query("cell == @tuned.cell.id")
    files = {path.name for path in export(store, tuned.cell, tmp_path / "out")}
    assert [*rows["seed"]] == [3, 4]
    assert {"prompts-seed3.safetensors", "prompts-seed4.safetensors", f"tiny-{tuned.cell.id}.yaml"} <= files
    assert "seeds:\n- 3\n- 4\n" in (tmp_path / "out" / f"tiny-{tuned.cell.id}.yaml").read_text()


def test_another_choice_is_confirmed_and_the_former_is_in_no_table(compose: Compose, tmp_path: Path) -> None:
    run_study(compose(BODY), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    before = points(store)["tuned"].cell
    for cell in store.cells():  # a trial that was not chosen is the best by now
        if cell.role == "trial" and confirming_id(cell.id) != before.id and not cell.published:
            for seed in (1, 2):
                result = there(store.result(cell, seed))
                rules = {name: {**rule, "val/acc_mean": 1.5} for name, rule in result.rules.items()}
                history = [{**record, "val/acc_mean": 1.5} for record in store.history(cell, seed)]
                store.put(cell, seed, replace(result, rules=rules, records=lambda history=history: history))
            other = cell
            break
    else:
        pytest.fail("the search has one trial")
    run_study(compose(BODY), root=tmp_path)
    assert points(store)["tuned"].cell.id == confirming_id(other.id)
    former = store.table().rows.get(before.id)  # this store was open during the run
    assert former is None or former.cell.role == "published"
    assert [*store.runs(before)] == [3, 4]


def test_fewer_seeds_confirm_on_seeds_that_no_suggestion_rests_on(compose: Compose, tmp_path: Path) -> None:
    run_study(compose(BODY), root=tmp_path)
    run_study(compose(BODY, "seeds=1"), root=tmp_path)
    assert [*points(Store.open(tmp_path, "tiny"))["tuned"].results] == [3]


FRONT = """
axes: {}
references: [{method: zeroshot}]
search:
  {sampler: random, trials: %s, objectives: [val/loss, comm/total_bytes], only: [protocol.rounds, optim.lr],
   space: {protocol.rounds: {low: 1, high: 12}, optim.lr: {low: 0.01, high: 0.02}}}
"""
"""Bytes grow with the rounds, and the loss falls."""


def test_the_points_of_a_front_run_on_fresh_seeds_and_the_front_rests_on_them(compose: Compose, tmp_path: Path) -> None:
    spec = compose(FRONT % 6)
    run_study(spec, root=tmp_path)
    store = Store.open(tmp_path, spec.name)
    table = store.table()
    trials = [row for row in table.rows.values() if row.cell.role == "trial"]
    front = there(choose(trials, "final", table.study))
    tuned = [row for row in table.rows.values() if row.cell.role == "tuned"]
    assert len(front.cells) > 1
    assert {row.cell.id for row in tuned} == {confirming_id(cell.id) for cell in front.cells}
    assert all([*row.results] == [3, 4] for row in tuned)
    assert len({row.cell.label for row in tuned}) == len(tuned)
    assert len({row.cell.number for row in table.rows.values()}) == len(table.rows)
    assert {cell.role for cell in there(choose(table.rows.values(), "final", table.study)).cells} == {"tuned"}
    assert run_study(spec, root=tmp_path).done == 0
    more = compose(FRONT % 9)  # the front may move, and what left it is in no table
    run_study(more, root=tmp_path)
    table = Store.open(tmp_path, spec.name).table()
    trials = [row for row in table.rows.values() if row.cell.role == "trial"]
    again = {confirming_id(cell.id) for cell in there(choose(trials, "final", table.study)).cells}
    assert {row.cell.id for row in table.rows.values() if row.cell.role == "tuned"} == again


def test_of_a_front_of_many_points_those_that_are_spread_run_again(compose: Compose) -> None:
    asked = Asked(compose(FRONT % 20))
    (search,) = asked.search.parts
    cells = asked.all()
    for i, cell in enumerate(cells):
        record = {"val/loss": 1 - i / 100, "val/acc_mean": 0.5, "test/acc_mean": 0.5, "comm/up_bytes": 1000 * i}
        history = [{"round": number + 1, "comm/down_bytes": 0, **record} for number in range(cell.rounds)]
        asked.note(cell, dict.fromkeys((1, 2), history))
    confirmed = search.confirmed(asked.rows)
    tuned = [cell for cell in confirmed if cell.role == "tuned"]
    assert len(tuned) == POINTS < len(cells)
    assert [tuned[0].id, tuned[1].id] == [confirming_id(cells[-1].id), confirming_id(cells[0].id)]
    assert len({cell.number for cell in [*cells, *confirmed]}) == len(cells) + len(confirmed)
