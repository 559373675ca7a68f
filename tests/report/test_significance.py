"""Tests against a reference, and their correction."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.report.facts import Facts, interval
from fpl_tune.report.significance import against_reference, holm, wilcoxon


def signed_rank_by_enumeration(differences: np.ndarray) -> float:
    """Two-sided p over all 2^n signs, for differences without ties or zeros."""
    ranks = np.abs(differences).argsort().argsort() + 1
    seen = ranks[differences > 0].sum()
    middle = ranks.sum() / 2
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product([0, 1], repeat=len(ranks))
    ]
    return float(np.mean([abs(s - middle) >= abs(seen - middle) for s in sums]))


@pytest.mark.parametrize("seed", range(5))
def test_wilcoxon_equals_enumeration_of_signs(seed):
    differences = np.random.default_rng(seed).normal(0.3, 1, 8)
    assert wilcoxon(differences) == pytest.approx(signed_rank_by_enumeration(differences), abs=1e-12)


def test_degenerate_differences():
    assert wilcoxon(np.zeros(5)) == 1.0
    assert math.isnan(wilcoxon(np.array([])))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, math.nan, 0.5]).tolist() == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p):
    raw, corrected = np.array(p), holm(p)
    assert (corrected >= raw - 1e-15).all()
    assert (corrected <= np.minimum(raw * len(p), 1) + 1e-12).all()
    assert (np.diff(corrected[raw.argsort(kind="stable")]) >= -1e-15).all()


def test_a_reference_is_the_study_s_choice_else_the_first_reference(make_store):
    body = "axes: {method: {n_ctx: [2, 4]}}\nreferences: [{method: zeroshot}, {method: coop}]\nseeds: 2\n"
    assert Facts(make_store(body=body)).reference == "zeroshot"
    assert Facts(make_store(["report.reference=coop"], body=body)).reference == "coop"
    assert Facts(make_store(["report.reference='n_ctx=4'"], body=body)).reference == "n_ctx=4"
    alone = Facts(make_store(body="axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n"))
    assert alone.best is not None
    assert alone.reference == alone.best.label


def test_difference_is_paired_over_seeds_and_clients(make_store):
    store = make_store()
    facts = Facts(store)
    found = against_reference(facts)
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
    assert row["half"] == pytest.approx(4.302652729911275 * by_seed.std(ddof=1) / math.sqrt(3))  # t(0.975, 2)
    assert (row["clients"], row["seeds"]) == (10, 3)
    raw = [wilcoxon(np.stack([facts.clients(c, s) - facts.clients(reference, s) for s in (1, 2, 3)]).mean(0))
           for c in facts.own]  # fmt: skip
    assert found["p_clients"].tolist() == pytest.approx(holm(raw).tolist())


def test_seeds_with_another_split_are_not_paired(make_store):
    store = make_store()
    cell = store.cells()[0]
    result = store.result(cell, 2)
    assert result is not None
    store.put(cell, 2, store.history(cell, 2), {**result, "split_hash": "other"})
    assert against_reference(Facts(store)).loc[cell.id, "seeds"] == 2


def test_a_cell_is_tested_against_the_reference_at_its_own_place_of_the_axes(make_store):
    body = "axes: {method: {n_ctx: [2, 4]}, optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"
    facts = Facts(make_store(body=body))
    for cell in facts.own:
        other = facts.reference_of(cell)
        assert other is not None
        assert other.role == "reference"
        assert other.run.optim.lr == cell.run.optim.lr


def test_interval_needs_two_values():
    assert math.isnan(interval(0.1, 1))
    assert interval(1.0, 2) == pytest.approx(12.706204736432095)  # t(0.975, 1)
