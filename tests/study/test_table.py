"""The results as readers see them: rows, means over the seeds that count, and which cells are compared."""

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fpl_tune.study.cells import Role
from fpl_tune.study.results import COSTS, make_result, value_of

from ..conftest import MakeStore, drawn_history


def test_a_summary_may_be_of_any_metric_of_the_records(make_store: MakeStore) -> None:
    store = make_store()
    found = [row["mean"] for row in store.table().summary(metric="train/loss")]
    assert found == pytest.approx([0.25] * 4)
    assert all(math.isnan(row["mean"]) for row in store.table().summary(metric="no/such"))


def test_a_reference_with_a_name_of_its_own_hides_no_cell_s(make_store: MakeStore) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2, 4]}}\nreferences: [{label: CoOp, method: coop}]\n")
    assert store.table().frame().columns.is_unique
    assert [row["label"] for row in store.table().summary()] == ["n_ctx=2", "n_ctx=4", "CoOp, coop"]


def test_the_reference_describes_every_column_and_role_of_the_result_table(make_store: MakeStore) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
    table = make_store(["search.sampler=random", "search.trials=3"], body="axes: {}\n").table()
    columns = {*table.frame().columns, *get_args(Role)} - {*table.fields}
    assert {name for name in columns if f"`{name}`" not in text} == set()


def test_a_failed_seed_has_no_result_and_is_still_wanted(make_store: MakeStore) -> None:
    store = make_store()
    cell = store.cells()[0]
    history = store.history(cell, 2)
    store.put(cell, 2, make_result("failed", history, split_hash="split2"))
    status = store.table().status()
    assert (status["failed"], status["seeds"], status["seeds_wanted"]) == (1, 11, 12)


@pytest.mark.parametrize("rule", ["final", "best_val", "best_test", "mean_last5"])
def test_costs_are_those_of_the_whole_run_under_every_rule(rule: str) -> None:
    history = drawn_history(1, 0.5, rounds=4, clients=2)
    history[0] |= {"val/acc_mean": 0.9, "test/acc_mean": 0.9}
    assert value_of(history, "train/loss", rule) == (1.0 if rule.startswith("best") else pytest.approx(
        0.25 if rule == "final" else np.mean([1, 1 / 2, 1 / 3, 1 / 4])
    ))  # fmt: skip
    for name in COSTS:
        assert value_of(history, name, rule) == history[-1][name]
    assert value_of(history, "comm/total_bytes", rule) == 5000 * 4
    assert math.isnan(value_of(history[:0], "time/seconds", rule))
    assert math.isnan(value_of([{"round": 1}], "time/seconds", rule))


def test_a_seed_that_failed_in_its_first_round_cost_nothing() -> None:
    result = make_result("failed", [], error="out of memory")
    assert result.costs == dict.fromkeys(COSTS, 0)


def test_rows_have_the_values_of_the_fields_that_vary(make_store: MakeStore) -> None:
    """Bundles by their labels; other mappings and lists as JSON, which a column of text can hold."""
    body = """axes:
  method: [promptfl, {name: pfedmoap, lam: 0.5}]
  optim.betas: [[0.9, 0.99]]
  variant: [{label: few, data.shots: 2}, {data.shots: 4}]
"""
    frame = make_store(body=body).table().frame().drop_duplicates("cell")
    assert [*frame["method"]] == ["promptfl"] * 2 + ['{"name": "pfedmoap", "lam": 0.5}'] * 2
    assert {*frame["optim.betas"]} == {"[0.9, 0.99]"}
    assert [*frame["variant"]] == ["few", '{"data.shots": 4}'] * 2
