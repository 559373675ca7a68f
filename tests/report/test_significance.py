"""Tests against a reference, and their correction."""

# The stubs of pandas and scipy do not know the types of selected rows and of test results.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math

import numpy as np
import pytest

from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import against

from .conftest import put


def test_a_reference_is_the_study_s_choice_else_the_first_reference(make_store):
    body = "axes: {method: {n_ctx: [2, 4]}}\nreferences: [{method: zeroshot}, {method: coop}]\nseeds: 2\n"
    assert Facts(make_store(body=body)).reference.name == "zeroshot"
    assert Facts(make_store(["report.reference=coop"], body=body)).reference.name == "coop"
    assert Facts(make_store(["report.reference='n_ctx=4'"], body=body)).reference.name == "n_ctx=4"
    alone = Facts(make_store(body="axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n", name="alone"))
    assert alone.best is not None
    assert alone.reference.name == alone.best.label


def test_difference_is_paired_over_seeds_and_clients(make_store):
    store = make_store()
    facts = Facts(store)
    found = against(facts)
    reference = facts.references[0]
    cell = facts.cells[0]
    pairs = np.stack([
        np.array(store.history(cell, s)[-1]["clients/test"]) - np.array(store.history(reference, s)[-1]["clients/test"])
        for s in (1, 2, 3)
    ])  # fmt: skip
    assert reference.id not in found.index
    row = found.loc[cell.id]
    assert row["difference"] == pytest.approx(pairs.mean())
    by_seed = pairs.mean(1)
    half = 4.302652729911275 * by_seed.std(ddof=1) / math.sqrt(3)  # t(0.975, 2)
    assert row["high"] - row["difference"] == pytest.approx(row["difference"] - row["low"])
    assert row["high"] - row["difference"] >= half - 1e-12
    assert row["seeds"] == 3


def test_seeds_with_another_split_are_not_paired(make_store):
    store = make_store()
    cell = store.cells()[0]
    put(store, cell, 2, split_hash="other")
    assert against(Facts(store)).loc[cell.id, "seeds"] == 2


def test_a_cell_is_tested_against_the_reference_at_its_own_place_of_the_axes(make_store):
    body = "axes: {method: {n_ctx: [2, 4]}, optim: {lr: [0.01, 0.1]}}\nreferences: [{method: coop}, {method: zeroshot}]"
    facts, zero = (Facts(make_store(body=f"{body}\nseeds: 2\n"), reference=name) for name in (None, "zeroshot"))
    for cell in facts.own:
        other, untrained = facts.reference.of(cell), zero.reference.of(cell)
        assert other is not None
        assert untrained is not None
        assert other.role == "reference"
        assert other.run.optim.lr == cell.run.optim.lr
        assert untrained.label == "zeroshot", "there is one"


def test_without_references_a_cell_is_tested_against_the_best_of_its_setting(make_store):
    body = "axes: {data: {shots: [2, 4]}, method: {n_ctx: [2, 3, 4]}}\nseeds: 2\n"
    facts = Facts(make_store(body=body))
    best = {cell.run.data.shots: cell for cell in facts.own if cell.id in facts.chosen}
    assert best.keys() == {2, 4}
    assert len({cell.run.method.n_ctx for cell in best.values()}) == 1
    found = against(facts)
    others = [cell for cell in facts.own if cell.id not in facts.chosen]
    assert dict(found["reference"]) == {cell.id: best[cell.run.data.shots].id for cell in others}
    assert len(others) == 4


def test_a_metric_without_clients_is_compared_as_it_is(make_store):
    facts = Facts(make_store(), metric="train/loss")
    frame = facts.values
    assert set(frame["client"]) == {0}
    assert (frame["value"] == 0.25).all()
    assert "equal" not in set(against(facts)["verdict"])


def test_the_region_of_equivalence_is_the_study_s(make_store):
    level = lambda cell: 0.5  # noqa: E731
    wide = against(Facts(make_store(["report.rope=40"], level=level)))
    assert set(wide["verdict"]) == {"equal"}
    assert set(against(Facts(make_store(["report.rope=0"], level=level)))["verdict"]) == {"undecided"}
