"""Parts of a report: importance, Pareto front, papers' figures, words, figures."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.container import ErrorbarContainer

from fpl_tune import methods
from fpl_tune.errors import ConfigError
from fpl_tune.report import canvas, charts, figures, searches, sections, tables, words
from fpl_tune.report.facts import Facts
from fpl_tune.report.importance import importance
from fpl_tune.report.significance import against_reference
from fpl_tune.study.partition import shares

# -- importance ----------------------------------------------------------------------------------------------


def test_a_conditional_field_is_judged_where_it_exists(make_store):
    """`n_ctx` moves promptfl; coop lies elsewhere and has no such choice here."""
    body = (
        "axes: {bundle: [{method.n_ctx: 2, label: a}, {method.n_ctx: 4, label: b}], optim: {lr: [0.01, 0.1, 1.0]}}\n"
        "seeds: 1\n"
    )
    store = make_store(body=body, level=lambda cell: 0.3 if "a" in cell.label.split(",")[0] else 0.9)
    found = importance(Facts(store)).set_index("field")["share"]
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


def test_svg_follows_the_page_and_carries_no_date(make_store):
    facts = Facts(make_store())
    text = canvas.svg(figures.axis_curve(facts, "method.n_ctx"), "curve")
    assert canvas.INK not in text
    assert "var(--ink)" in text
    assert "<dc:date>" not in text
    assert not re.search(r'<g id="', text)
    assert text == canvas.svg(figures.axis_curve(facts, "method.n_ctx"), "curve")


def test_names_have_bars_and_are_not_joined(make_store):
    facts = Facts(
        make_store(body="axes: {variant: [{label: a, method.n_ctx: 2}, {label: b, method.n_ctx: 4}]}\nseeds: 3\n")
    )
    ax = figures.axis_curve(facts, "variant").axes[0]
    own = facts.table.loc[[cell.id for cell in facts.own]]
    (drawn,) = ax.containers
    assert isinstance(drawn, ErrorbarContainer)
    points, _, (bars,) = drawn.lines
    assert points.get_linestyle() == "None"
    assert points.get_ydata() == pytest.approx(own["mean"].tolist())
    reach = [segment[1, 1] - segment[0, 1] for segment in bars.get_segments()]
    assert reach == pytest.approx((2 * own["std"]).tolist())
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]


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


# -- words ---------------------------------------------------------------------------------------------------


def test_words():
    assert words.quantity("test/acc_mean") == "test accuracy (%, mean over clients)"
    assert words.plus_minus(0.9761, 0.0011, "test/acc_mean") == "97.61 ± 0.11"
    assert words.plus_minus(0.9761, math.nan, "test/acc_mean") == "97.61"
    assert words.signed(-0.0123, "test/acc_mean") == "-1.23"
    assert words.p_value(0.0004) == "< 0.001"
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
    assert set(drawn.drawn) == {"partition", "partition_seed2", "partition_seed3", "domains"}
    assert [fold["open"] for fold in drawn.folds.values()] == [True, False, False]
    assert "seed 2" in drawn.drawn["partition_seed2"][1]
    held = shares(store.cells()[0].run, 1)
    ax = drawn.drawn["partition"][0].axes[0]
    assert sum(len(np.asarray(c.get_offsets())) for c in ax.collections) == (held.counts > 0).sum()


# -- what others are tested against --------------------------------------------------------------------------


METHODS = "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"


def test_a_reference_of_a_method_that_is_an_axis_too_keeps_its_name(make_store):
    facts = Facts(make_store(body=METHODS))
    assert facts.reference == "zeroshot"
    for cell in facts.own:
        other = facts.reference_of(cell)
        assert other is not None
        assert methods.name_of(other.run.method) == "zeroshot"
        assert other.run.optim.lr == cell.run.optim.lr
    assert not any(facts.is_reference(cell) for cell in facts.own)


def test_a_value_of_an_axis_can_be_the_reference(make_store):
    """Each cell meets the one that differs from it in that field alone; the cells of the value meet nobody."""
    store = make_store(body=METHODS)
    facts = Facts(store, reference="promptfl")
    tests = against_reference(facts)
    for cell in facts.own:
        other = facts.reference_of(cell)
        assert other is not None
        assert (methods.name_of(other.run.method), other.run.optim.lr) == ("promptfl", cell.run.optim.lr)
        assert (cell.id in tests.index) == (methods.name_of(cell.run.method) == "fedpgp")
    for cell in facts.own:
        if cell.id in tests.index:
            other = facts.reference_of(cell)
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


def test_of_many_lines_eight_are_drawn_and_the_best_is_among_them(make_store):
    rates = [round(0.01 * i, 2) for i in range(1, 12)]
    body = f"axes: {{method: {{n_ctx: [2, 4]}}, optim: {{lr: {rates}}}}}\nseeds: 2\n"
    facts = Facts(make_store(body=body, level=lambda cell: 0.9 if cell.run.optim.lr == 0.05 else 0.5))
    (ax,) = figures.axis_curve(facts, "method.n_ctx").axes
    names = [line.get_label() for line in ax.lines if str(line.get_label()).startswith("lr=")]
    assert len(names) == 8
    assert "lr=0.05" in names


def many_names(make_store):
    names = [f"v{i:02}" for i in range(13)]
    variants = ", ".join(f"{{label: {name}, optim.lr: {0.01 * (i + 1)}}}" for i, name in enumerate(names))
    body = f"axes: {{method: {{n_ctx: [2, 4]}}, variant: [{variants}]}}\nreferences: [{{method: zeroshot}}]\nseeds: 2\n"
    return names, Facts(make_store(body=body, level=lambda cell: 0.3 + (cell.run.optim.lr * 700 % 13) / 26))


def test_many_names_are_rows_the_best_on_top(make_store):
    names, facts = many_names(make_store)
    (ax,) = figures.axis_curve(facts, "variant").axes
    rows = [label.get_text() for label in ax.get_yticklabels()]
    table = facts.table.loc[[cell.id for cell in facts.own]]
    mean = table.groupby("variant")["mean"].mean()
    assert sorted(rows) == names
    assert rows == mean.sort_values().index.tolist() != names
    assert len(ax.containers) == 2, "a colour for each length of the context"
    for drawn, (_, part) in zip(ax.containers, table.groupby("method.n_ctx"), strict=True):
        assert isinstance(drawn, ErrorbarContainer)
        x, y = (np.asarray(part) for part in drawn.lines[0].get_data())
        found = {rows[round(row)]: value for row, value in zip(y.tolist(), x.tolist(), strict=True)}
        assert found == pytest.approx(part.set_index("variant")["mean"].to_dict())
    assert facts.best is not None
    ring = next(line for line in ax.lines if line.get_label() == "best by validation")
    assert np.asarray(ring.get_xdata()) == pytest.approx([facts.table.loc[facts.best.id, "mean"]])
    assert rows[round(float(np.asarray(ring.get_ydata())[0]))] == facts.table.loc[facts.best.id, "variant"]


def test_a_heat_map_of_many_columns_is_upright(make_store):
    names, facts = many_names(make_store)
    (ax,) = figures.heat_map(facts, "method.n_ctx", "variant", facts.own).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "4"]
    assert ax.yaxis_inverted(), "names are read from the top"
    grid = np.asarray(ax.images[0].get_array())
    for cell in facts.own:
        n_ctx = methods.as_dict(cell.run.method)["n_ctx"]
        place = names.index(facts.table.loc[cell.id, "variant"]), [2, 4].index(n_ctx)
        assert grid[place] == pytest.approx(facts.table.loc[cell.id, "mean"])


def test_bars_tell_their_values_and_where_equal_shares_lie():
    (ax,) = charts.bars(["a", "b"], [25.0, 75.0], "share (%)", spread=[1.0, 2.0], equal=50.0).axes
    assert [text.get_text() for text in ax.texts] == ["25.0", "75.0"]
    assert ax.get_legend_handles_labels()[1] == ["equal shares, 50"]


def test_heat_maps_are_of_the_numbers_one_for_each_value_of_a_third_axis(make_store):
    body = (
        "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}, data: {shots: [1, 2, 4]}}\n"
        "references: [{method: zeroshot}]\nseeds: 1\n"
    )
    facts = Facts(make_store(body=body))
    section = searches.pairs(facts, against_reference(facts))
    assert section is not None
    assert section.title == "lr and shots"
    assert [caption.split(".")[0] for _, caption in section.drawn.values()] == ["method=promptfl", "method=fedpgp"]
    images = [figure.axes[0].images[0] for figure, _ in section.drawn.values()]
    assert images[0].get_clim() == images[1].get_clim()
    for image, method in zip(images, ("promptfl", "fedpgp"), strict=True):
        grid = np.asarray(image.get_array())
        for cell in facts.own:
            if methods.name_of(cell.run.method) == method:
                place = [0.01, 0.1].index(cell.run.optim.lr), [1, 2, 4].index(int(cell.varied["data.shots"]))
                assert grid[place] == pytest.approx(facts.table.loc[cell.id, "mean"])


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
    body = tables.rows(facts, against_reference(facts))
    head = tables.header(facts)
    assert [row.cells[head.index("privacy epsilon")] for row in body] == ["8", "–"]
    assert [row.cells[head.index("reader accuracy (%)")] for row in body] == ["25.00", "–"]
    assert not [name for name in head if "domain1" in name]
    section = sections.learning(facts, against_reference(facts))
    assert section is not None
    (ax,) = section.drawn["learning_privacy_epsilon"][0].axes
    assert np.asarray(ax.lines[0].get_ydata()).tolist() == [2.0, 4.0, 6.0, 8.0]
    assert ax.get_legend_handles_labels()[1] == ["promptfl"], "coop has no such figure"
    assert facts.best is not None
    assert facts.best.label == "coop"
    drawn, caption = section.drawn["learning_reader_parts"]
    assert caption.startswith("promptfl, reader by part")
    assert drawn.axes[0].get_legend_handles_labels()[1] == ["domain1"]


def test_a_figure_that_no_shown_cell_has_draws_no_empty_chart(make_store):
    rates = [round(0.01 * i, 2) for i in range(1, 13)]
    store = make_store(body=f"axes: {{optim: {{lr: {rates}}}}}\nseeds: 2\n", level=lambda cell: cell.run.optim.lr)
    worst = store.cells()[0]
    history = [{**record, "privacy/epsilon": 1.0} for record in store.history(worst, 1)]
    store.put(worst, 1, history, store.result(worst, 1))
    facts = Facts(store)
    assert "privacy/epsilon" in facts.extra
    section = sections.learning(facts, against_reference(facts))
    assert section is not None
    assert not [name for name in section.drawn if "privacy" in name]
