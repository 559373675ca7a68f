"""The results as readers see them: rows, means over the seeds that count, and which cells are compared."""

import math

import pytest

from ..conftest import MakeStore


def test_a_summary_may_be_of_any_metric_of_the_records(make_store: MakeStore) -> None:
    store = make_store()
    found = [row["mean"] for row in store.table().summary(metric="train/loss")]
    assert found == pytest.approx([0.25] * 4)
    assert all(math.isnan(row["mean"]) for row in store.table().summary(metric="no/such"))


def test_a_reference_with_a_name_of_its_own_hides_no_cell_s(make_store: MakeStore) -> None:
    store = make_store(body="axes: {method: {n_ctx: [2, 4]}}\nreferences: [{label: CoOp, method: coop}]\n")
    assert store.table().frame().columns.is_unique
    assert [row["label"] for row in store.table().summary()] == ["n_ctx=2", "n_ctx=4", "CoOp, coop"]
