"""Parts of a report: importance, Pareto front, papers' figures, words, figures."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.report import canvas, figures, paper, sections, tables, words
from fpl_tune.report.facts import Facts
from fpl_tune.report.importance import explained, importance
from fpl_tune.report.significance import against_reference
from fpl_tune.study.partition import shares

# -- importance ----------------------------------------------------------------------------------------------


def test_a_field_that_says_everything_and_one_that_says_nothing():
    rng = np.random.default_rng(0)
    level = np.repeat([0.0, 1.0, 2.0], 40)
    other = np.tile([0, 1], 60)
    metric = level + 0.01 * rng.standard_normal(120)
    assert explained(level.tolist(), metric.tolist()) > 0.99
    assert explained(other.tolist(), metric.tolist()) < 0.05


def test_omega_squared_by_hand():
    """Two groups (1, 3) and (5, 7): between 16, within 4 with 2 degrees of freedom, total 20."""
    assert explained(["a", "a", "b", "b"], [1, 3, 5, 7]) == pytest.approx((16 - 1 * 2) / (20 + 2))


def test_what_cannot_be_told_is_nan():
    assert math.isnan(explained(["a", "a"], [1, 2]))
    assert math.isnan(explained(["a", "b"], [1, 2]))
    assert math.isnan(explained(["a", "a", "b"], [1, 1, 1]))


def test_a_conditional_field_is_judged_where_it_exists(make_store):
    """`n_ctx` moves promptfl; coop lies elsewhere and has no such choice here."""
    body = (
        "axes: {bundle: [{method.n_ctx: 2, label: a}, {method.n_ctx: 4, label: b}], optim: {lr: [0.01, 0.1, 1.0]}}\n"
        "seeds: 1\n"
    )
    store = make_store(body=body, level=lambda cell: 0.3 if "a" in cell.label.split(",")[0] else 0.9)
    found = importance(Facts(store)).set_index("field")["explained"]
    assert found["bundle"] > 0.9
    assert found["bundle"] > found["optim.lr"]


# -- figures -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_front_is_what_nothing_dominates(points):
    cost, gain = zip(*points, strict=True)
    front = figures.pareto_front(cost, gain)
    better = {
        i
        for i in range(len(points))
        if not any(
            cost[j] <= cost[i] and gain[j] >= gain[i] and (cost[j] < cost[i] or gain[j] > gain[i])
            for j in range(len(points))
        )
    }
    assert {points[i] for i in front} == {points[i] for i in better}
    assert len({points[i] for i in front}) == len(front)


def test_svg_follows_the_page_and_carries_no_date(make_store):
    facts = Facts(make_store())
    text = canvas.svg(figures.axis_curve(facts, "method.n_ctx"), "curve")
    assert canvas.INK not in text
    assert "var(--ink)" in text
    assert "<dc:date>" not in text
    assert not re.search(r'<g id="', text)
    assert text == canvas.svg(figures.axis_curve(facts, "method.n_ctx"), "curve")


def test_curve_goes_through_the_means_and_its_band_is_the_std(make_store):
    facts = Facts(make_store())
    ax = figures.axis_curve(facts, "method.n_ctx").axes[0]
    own = facts.table.loc[[cell.id for cell in facts.own]]
    assert ax.lines[0].get_ydata() == pytest.approx(own["mean"].tolist())
    band = np.asarray(ax.collections[0].get_paths()[0].vertices)
    assert band[:, 1].max() == pytest.approx((own["mean"] + own["std"]).max())
    legend = ax.get_legend()
    assert legend is not None
    assert "zeroshot" in [text.get_text() for text in legend.get_texts()]


# -- papers --------------------------------------------------------------------------------------------------

PAPER = """axes: {method: [promptfl, coop]}
references: [{method: zeroshot}]
seeds: 2
report: {paper: {paper: pFedMoAP, table: 1, expected: "CoOp above PromptFL", defects: ["copied rows"]}}
"""


def test_printed_figures_stand_beside_ours_by_the_method_s_name(make_store):
    facts = Facts(make_store(body=PAPER))
    block = paper.beside(facts)
    assert block is not None
    rows = {row.label: row for row in block.rows}
    assert set(rows) == {"promptfl", "coop", "zeroshot"}
    printed = paper.targets()
    table = printed[(printed["paper"] == "pFedMoAP") & (printed["table"] == "1")]
    expected = table[(table["method"] == "PromptFL") & (table["dataset"] != "Average")]["mean"].mean()
    assert rows["promptfl"].mean == pytest.approx(expected)
    assert not rows["promptfl"].comparable
    assert math.isnan(rows["promptfl"].gap)
    assert block.defects == ["copied rows"]


def test_a_study_without_a_paper_has_no_block(make_store):
    assert paper.beside(Facts(make_store())) is None


def test_targets_are_read_with_their_types():
    printed = paper.targets()
    assert len(printed) > 1800
    assert printed["mean"].dtype == float
    assert set(printed["paper"]) == {"Fed-DPT", "FedAPT", "FedPGP", "pFedMoAP", "pFedPrompt"}


# -- words ---------------------------------------------------------------------------------------------------


def test_words():
    assert words.quantity("test/acc_mean") == "test accuracy (%, mean over clients)"
    assert words.plus_minus(0.9761, 0.0011, "test/acc_mean") == "97.61 ± 0.11"
    assert words.plus_minus(0.9761, math.nan, "test/acc_mean") == "97.61"
    assert words.signed(-0.0123, "test/acc_mean") == "-1.23"
    assert words.p_value(0.0004) == "< 0.001"
    assert words.duration(125) == "2 min 05 s"
    assert words.duration(7380) == "2 h 03 min"
    assert words.axis_name("method.lam") == "λ (lam)"


@given(st.text(alphabet="a\\{}$&#%_~^", max_size=12))
def test_latex_text_leaves_no_bare_special_character(text):
    escaped = tables.latex_text(text)
    for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        escaped = escaped.replace(known, "")
    assert not re.search(r"(?<!\\)[{}$&#%_~^]", escaped)


# -- partition -----------------------------------------------------------------------------------------------


def test_the_partition_is_drawn_only_if_it_is_the_one_of_the_results(make_store):
    store = make_store(["partition=domain_dirichlet", "data.domains=[photo,sketch]"])
    facts = Facts(store)
    empty = against_reference(facts)
    other = sections.domains(facts, empty)
    assert other is not None
    assert not other.drawn
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            store.put(cell, seed, store.history(cell, seed), {**result, "split_hash": shares(cell.run, seed).hash})
    drawn = sections.domains(Facts(store), empty)
    assert drawn is not None
    assert set(drawn.drawn) == {"partition", "domains"}
    held = shares(store.cells()[0].run, 1)
    ax = drawn.drawn["partition"][0].axes[0]
    assert sum(len(np.asarray(c.get_offsets())) for c in ax.collections) == (held.counts > 0).sum()
