"""The choice of a search runs on fresh seeds, and what is said of the search rests on them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.choice import choose, choose_finished
from fpl_tune.search.halving import design_of
from fpl_tune.study.cells import confirming_id
from fpl_tune.study.export import export
from fpl_tune.study.store import Store

from ..conftest import Compose, make_plan, there
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
        (("search.objectives=[val/acc_mean,comm/total_bytes]",), (), ()),
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
        (
            ("search.confirm=2", "search.objectives=[val/acc_mean,comm/total_bytes]"),
            (),
            "runs a search's best point again, but val/acc_mean and comm/total_bytes have none",
        ),
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
