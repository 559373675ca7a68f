"""Parts of a report: importance, Pareto front, papers' figures, words, figures."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune import methods
from fpl_tune.core import formatting
from fpl_tune.core.errors import ConfigError
from fpl_tune.report import answer, charts, curves, reproduce, robustness, table
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import against
from fpl_tune.study.partition import shares

from .conftest import amend

# -- importance ----------------------------------------------------------------------------------------------


def test_a_conditional_field_is_judged_where_it_exists(make_store):
    """`n_ctx` moves promptfl; coop lies elsewhere and has no such choice here."""
    body = (
        "axes: {bundle: [{method.n_ctx: 2, label: a}, {method.n_ctx: 4, label: b}], optim: {lr: [0.01, 0.1, 1.0]}}\n"
        "seeds: 1\n"
    )
    store = make_store(body=body, level=lambda cell: 0.3 if "a" in cell.label.split(",")[0] else 0.9)
    found = curves.importance(Facts(store)).set_index("field")["share"]
    assert found["bundle"] > 0.9
    assert found["bundle"] > found["optim.lr"]


# -- figures -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_front_is_what_nothing_dominates(points):
    cost, gain = zip(*points, strict=True)
    front = charts.pareto_front(cost, gain)
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


def test_curve_goes_through_the_means_and_its_band_is_the_std(make_store):
    facts = Facts(make_store())
    spec = answer.sweep(facts, "method.n_ctx", facts.metric)
    assert spec["layer"][0]["mark"]["type"] == "area"
    rows = {row["number"]: row for row in spec["data"]["values"]}
    for cell in facts.own:
        values = list(facts.by_seed(cell, facts.metric).values())
        row, mean, std = rows[facts.keys[cell.id]], np.mean(values), np.std(values, ddof=1)
        assert [row["mean"], row["low"], row["high"]] == pytest.approx([mean, mean - std, mean + std])
        assert row["best"] == (cell.id in facts.chosen)
    (level,) = spec["layer"][-1]["data"]["values"]
    assert level["series"] == "zeroshot"


def test_names_have_bars_and_are_not_joined(make_store):
    body = "axes: {variant: [{label: a, method.n_ctx: 2}, {label: b, method.n_ctx: 4}]}\nseeds: 3\n"
    facts = Facts(make_store(body=body))
    spec = answer.sweep(facts, "variant", facts.metric)
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rule", "point", "point"]
    assert spec["layer"][0]["encoding"]["x"]["sort"] == ["a", "b"]
    assert [row["x"] for row in spec["data"]["values"]] == ["a", "b"]


def test_a_uniform_gate_is_said_in_words(make_store):
    store = make_store()
    amend(store, diagnosis__attention=[0.26, 0.24, 0.25, 0.25])
    facts = Facts(store)
    section = robustness.diagnoses(facts, against(facts))
    assert section is not None
    assert "uses all 4 equally (25.0 % each)" in section.texts[0]
    amend(store, diagnosis__attention=[0.4, 0.2, 0.2, 0.2])
    other = robustness.diagnoses(Facts(store), against(facts))
    assert other is not None
    assert other.texts == []


# -- formatting ----------------------------------------------------------------------------------------------


def test_formatting():
    assert formatting.quantity("test/acc_mean") == "test accuracy (%, mean over clients)"
    assert formatting.plus_minus(0.9761, 0.0011, "test/acc_mean") == "97.61 ± 0.11"
    assert formatting.plus_minus(0.9761, math.nan, "test/acc_mean") == "97.61"
    assert formatting.signed(-0.0123, "test/acc_mean") == "-1.23"
    assert formatting.p_value(0.0004) == "< 0.001"
    assert formatting.axis_name("method.lam") == "λ (lam)"


@given(st.text(alphabet="a\\{}$&#%_~^", max_size=12))
def test_latex_text_leaves_no_bare_special_character(text):
    escaped = table.latex_text(text)
    for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        escaped = escaped.replace(known, "")
    assert not re.search(r"(?<!\\)[{}$&#%_~^]", escaped)


# -- partition -----------------------------------------------------------------------------------------------


def test_the_partition_is_drawn_only_if_it_is_the_one_of_the_results(make_store):
    store = make_store(["partition=domain_dirichlet", "data.domains=[photo,sketch]"])
    facts = Facts(store)
    empty = against(facts)
    other = reproduce.partition(facts, empty)
    assert other is not None
    assert not other.charts
    for cell in store.cells():
        for seed in (1, 2, 3):
            result = store.result(cell, seed)
            assert result is not None
            store.put(cell, seed, store.history(cell, seed), {**result, "split_hash": shares(cell.run, seed).hash})
    drawn = reproduce.partition(Facts(store), empty)
    assert drawn is not None
    assert set(drawn.charts) == {"partition", "partition_seed2", "partition_seed3", "domains"}
    assert "seed 2" in drawn.charts["partition_seed2"][1]
    held = shares(store.cells()[0].run, 1)
    rows = drawn.charts["partition"][0]["data"]["values"]
    assert sum(row["images"] for row in rows) == held.counts.sum()
    assert len(rows) == (held.counts > 0).sum()


# -- what others are tested against --------------------------------------------------------------------------


METHODS = "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"


def test_a_reference_of_a_method_that_is_an_axis_too_keeps_its_name(make_store):
    facts = Facts(make_store(body=METHODS))
    assert facts.reference.name == "zeroshot"
    for cell in facts.own:
        other = facts.reference.of(cell)
        assert other is not None
        assert methods.name_of(other.run.method) == "zeroshot"
        assert other.run.optim.lr == cell.run.optim.lr
    assert not any(facts.reference.holds(cell) for cell in facts.own)


def test_a_value_of_an_axis_can_be_the_reference(make_store):
    """Each cell meets the one that differs from it in that field alone; the cells of the value meet nobody."""
    store = make_store(body=METHODS)
    facts = Facts(store, reference="promptfl")
    tests = against(facts)
    for cell in facts.own:
        other = facts.reference.of(cell)
        assert other is not None
        assert (methods.name_of(other.run.method), other.run.optim.lr) == ("promptfl", cell.run.optim.lr)
        assert (cell.id in tests.index) == (methods.name_of(cell.run.method) == "fedpgp")
    for cell in facts.own:
        if cell.id in tests.index:
            other = facts.reference.of(cell)
            assert other is not None
            gain = facts.table.loc[cell.id, "mean"] - facts.table.loc[other.id, "mean"]
            assert tests.loc[cell.id, "difference"] == pytest.approx(gain, abs=1e-9)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"reference": "zeroshott"}, "zeroshot"),
        ({"rule": "best"}, "no reporting rule 'best'. Did you mean 'best_val'"),
        ({"metric": "x/y"}, "test/acc_mean"),
    ],
)
def test_what_a_report_is_asked_for_must_be_there(make_store, asked, words):
    with pytest.raises(ConfigError, match=words):
        Facts(make_store(body=METHODS), **asked)


def many_names(make_store):
    names = [f"v{i:02}" for i in range(13)]
    variants = ", ".join(f"{{label: {name}, optim.lr: {0.01 * (i + 1)}}}" for i, name in enumerate(names))
    body = f"axes: {{method: {{n_ctx: [2, 4]}}, variant: [{variants}]}}\nreferences: [{{method: zeroshot}}]\nseeds: 2\n"
    return names, Facts(make_store(body=body, level=lambda cell: 0.3 + (cell.run.optim.lr * 700 % 13) / 26))


def test_many_names_are_rows_the_best_on_top(make_store):
    names, facts = many_names(make_store)
    spec = answer.sweep(facts, "variant", facts.metric)
    table = facts.table.loc[[cell.id for cell in facts.own]]
    order = table.groupby("variant")["mean"].mean().sort_values(ascending=False).index.tolist()
    point = spec["layer"][1]["encoding"]
    assert point["y"]["sort"] == order != names
    assert {row["series"] for row in spec["data"]["values"]} == {"n_ctx=2", "n_ctx=4"}
    found = {(row["x"], row["series"]): row["mean"] for row in spec["data"]["values"]}
    for row in table.to_dict("records"):
        assert found[row["variant"], f"n_ctx={row['method.n_ctx']:g}"] == pytest.approx(row["mean"])


def test_a_heat_map_of_many_columns_is_upright(make_store):
    names, facts = many_names(make_store)
    spec = curves.heat_map(facts, "method.n_ctx", "variant", facts.own)
    place = spec["layer"][0]["encoding"]
    assert (place["y"]["sort"], place["x"]["sort"]) == (names, ["2", "4"])
    grid = {(row["r"], row["c"]): row["validation"] for row in spec["data"]["values"]}
    for cell in facts.own:
        key = facts.table.loc[cell.id, "variant"], f"{facts.table.loc[cell.id, 'method.n_ctx']:g}"
        assert grid[key] == facts.table.loc[cell.id, "val"]


def test_bars_have_their_values_and_a_line_where_shares_are_equal():
    rows = [
        {"name": "a", "value": 25.0, "low": 24.0, "high": 26.0},
        {"name": "b", "value": 75.0, "low": 73, "high": 77},
    ]
    _, text, whiskers, equal = charts.bars(rows, "share (%)", equal=50.0)["layer"]
    assert text["encoding"]["text"] == {"field": "value", "format": ".1f"}
    assert whiskers["encoding"]["x2"] == {"field": "high"}
    assert equal["encoding"]["x"] == {"datum": 50.0}


def test_heat_maps_are_of_the_numbers_one_for_each_value_of_a_third_axis(make_store):
    body = (
        "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}, data: {shots: [1, 2, 4]}}\n"
        "references: [{method: zeroshot}]\nseeds: 1\n"
    )
    facts = Facts(make_store(body=body))
    section = curves.pairs(facts, against(facts))
    assert section is not None
    assert section.title == "Validation accuracy by lr and shots"
    assert [caption.split(".")[0] for _, caption in section.charts.values()] == ["method=promptfl", "method=fedpgp"]
    specs = [spec for spec, _ in section.charts.values()]
    domains = [spec["layer"][0]["encoding"]["color"]["scale"]["domain"] for spec in specs]
    assert domains[0] == domains[1]
    for spec, method in zip(specs, ("promptfl", "fedpgp"), strict=True):
        grid = {(row["r"], row["c"]): row["mean"] for row in spec["data"]["values"]}
        own = [cell for cell in facts.own if methods.name_of(cell.run.method) == method]
        for cell in own:
            key = f"{cell.run.optim.lr:g}", str(cell.varied["data.shots"])
            assert grid[key] == pytest.approx(facts.table.loc[cell.id, "mean"])
        assert len(grid) == len(own) == 6


def test_figures_of_methods_have_a_column_and_those_of_parts_a_curve(make_store):
    store = make_store(body="axes: {method: [promptfl, coop]}\nseeds: 2\n")
    for cell in store.cells()[:1]:
        for seed in (1, 2):
            history = [
                {
                    **record,
                    "privacy/epsilon": 2.0 * record["round"],
                    "reader/domain1/acc_mean": 0.5,
                    "reader/acc_mean": 0.25,
                }
                for record in store.history(cell, seed)
            ]
            store.put(cell, seed, history, store.result(cell, seed))
    facts = Facts(store)
    found = table.table(facts, against(facts))
    rows = [dict(zip(found.header, (td.text for td in row.cells), strict=True)) for row in found.rows]
    assert [row["privacy epsilon"] for row in rows] == ["8", "–"]
    assert [row["reader accuracy (%)"] for row in rows] == ["25.00", "–"]
    assert not [name for name in found.header if "domain1" in name]
    section = curves.learning(facts, against(facts))
    assert section is not None
    rows = section.charts["learning_privacy_epsilon"][0]["data"]["values"]
    assert [row["mean"] for row in rows] == [2.0, 4.0, 6.0, 8.0]
    assert {row["series"] for row in rows} == {"promptfl"}, "coop has no such metric"
    assert facts.best is not None
    assert facts.best.label == "coop"
    drawn, caption = section.charts["learning_reader_parts"]
    assert caption.startswith("promptfl, reader by part")
    assert {row["series"] for row in drawn["data"]["values"]} == {"domain1"}


def test_a_figure_that_no_shown_cell_has_draws_no_empty_chart(make_store):
    rates = [round(0.01 * i, 2) for i in range(1, 13)]
    store = make_store(body=f"axes: {{optim: {{lr: {rates}}}}}\nseeds: 2\n", level=lambda cell: cell.run.optim.lr)
    worst = store.cells()[0]
    history = [{**record, "privacy/epsilon": 1.0} for record in store.history(worst, 1)]
    store.put(worst, 1, history, store.result(worst, 1))
    facts = Facts(store)
    assert "privacy/epsilon" in facts.extra
    section = curves.learning(facts, against(facts))
    assert section is not None
    assert not [name for name in section.charts if "privacy" in name]
