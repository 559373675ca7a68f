"""What is on the page: the answer, the reference that is chosen, test sets, charts, words, sizes."""

import json
import math
import re

import numpy as np
import pytest

from fpl_tune import report
from fpl_tune.core import formatting
from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.partition import class_counts
from fpl_tune.report import charts, curves, main_chart, reproduce, robustness, table
from fpl_tune.study import tracking
from fpl_tune.study.cells import Cell, field_text, shown
from fpl_tune.study.results import make_result

from ..conftest import there
from .conftest import amend, findings_of, put


def embedded(text, key):
    return json.loads(text.partition(f'id="{key}">')[2].partition("</script>")[0])


def test_five_sections_the_last_two_folded_and_the_answer_first(make_store):
    text = report.build(make_store()).read_text(encoding="utf-8")
    assert 'class="charts small"' not in text
    assert re.findall(r'<section id="(\w+)">', text) == ["answer", "table", "curves", "robustness", "reproduce"]
    assert re.findall(r"<summary><h2>(\w+)", text) == ["Robustness", "Reproduce"]
    said = there(re.search(r'id="sentence">(.*?)</p>', text))
    assert said[1].startswith("n_ctx = 8 is best, with ")
    assert f'<meta name="description" content="{said[1]}">' in text
    assert text.index('id="sentence"') < text.index('data-name="curve"') < text.index('class="sortable"')


def test_pages_of_small_studies_are_small(make_store):
    assert report.build(make_store()).stat().st_size < 600e3


@pytest.mark.system
def test_a_page_of_a_thousand_cells_is_bearable(make_store):
    rates = ", ".join(f"{0.001 * i:.3f}" for i in range(1, 501))
    body = f"axes: {{method.n_ctx: [2, 4], optim.lr: [{rates}]}}\nseeds: 1\n"
    assert report.build(make_store(body=body, name="large", rounds=2, clients=2)).stat().st_size < 2e6


def test_the_page_links_to_mlflow_where_that_holds_the_study(make_store):
    store = make_store()
    assert "fpl-tune ui" not in report.build(store).read_text(encoding="utf-8")
    tracking.write(store.folder, tracking.Tracked(experiment="3", parent="f" * 32))
    text = report.build(store).read_text(encoding="utf-8")
    (table_link, chart_link) = re.findall(r'href="(http[^"]+)"', text)
    assert table_link.startswith("http://127.0.0.1:5000/#/experiments/3/runs?")
    assert chart_link.endswith("compareRunsMode=CHART")


def test_any_reference_can_be_chosen_on_the_page(make_store):
    body = "axes: {method: [promptfl, coop], optim.lr: [0.01, 0.1]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
    store = make_store(body=body)
    findings = findings_of(store)
    found = embedded(report.build(store).read_text(encoding="utf-8"), "data")["references"]
    assert {"zeroshot", "promptfl", "coop"} <= found.keys()
    assert {cell.label for cell in findings.cells} <= found.keys()
    rows = compare(findings, "promptfl").frame
    (at,) = [cell for cell in findings.own if cell.label == "coop, lr=0.1"]
    assert found["promptfl"][str(findings.numbers[at.id])][0] == f"{100 * rows.loc[at.id, 'difference']:+.2f}"


def test_test_sets_beside_the_main_one_and_harmonic_means_are_columns(make_store):
    store = make_store()
    sets = ("test__base__acc_mean", "test__novel__acc_mean", "test__base_novel_harmonic_mean", "test__harmonic_mean")
    amend(store, **{name: lambda cell, i=i: 0.1 * i + 0.01 * cell.number for i, name in enumerate(sets, 3)})
    findings = findings_of(store)
    found = table.table(findings, compare(findings))
    row = dict(zip(found.header, (td.text for td in found.rows[0].cells), strict=True))
    assert row["HM(base, novel) (%)"] == "50.00"
    assert row["test base accuracy (%)"] == "30.00"
    assert {"HM(test, base, novel) (%)", "test novel accuracy (%)"} <= row.keys()
    other = findings_of(store, metric="test/harmonic_mean")
    assert "test accuracy (%)" in table.table(other, compare(other)).header


def test_the_number_of_seeds_of_each_cell_is_shown(make_store):
    findings = findings_of(make_store(fill=lambda cell, seed: cell.number != 1 or seed < 3))
    found = table.table(findings, compare(findings))
    at = found.header.index("seeds")
    assert [row.cells[at].text for row in found.rows] == ["3", "2 of 3", "3", "3"]


def test_colours_stay_when_series_join():
    first = charts.colours({"a": 0, "b": 1, "c": 2})["scale"]
    later = charts.colours({"new": 3, "c": 2, "a": 0, "b": 1})["scale"]
    before, after = (dict(zip(scale["domain"], scale["range"], strict=True)) for scale in (first, later))
    assert before.items() <= after.items()
    assert len(set(after.values())) == 4
    alone = charts.colours({"c": 2})["scale"]
    assert (alone["domain"], alone["range"]) == (["c"], [after["c"]]), "also where those before it are not drawn"
    assert len(charts.colours({str(i): i for i in range(20)})["scale"]["range"]) == 20


def test_one_series_has_no_legend_and_two_have():
    for count in (1, 2):
        legend = charts.colours({str(i): i for i in range(count)}).get("legend", "drawn")
        assert legend == (None if count == 1 else "drawn")


@pytest.mark.parametrize("kind", ["curve", "learning_test_acc_mean"])
def test_of_many_cells_the_best_by_validation_are_drawn_and_the_chart_says_so(make_store, kind):
    most = charts.MOST
    names = ", ".join(f"{{label: v{i:02d}, optim.lr: {0.001 * i}}}" for i in range(1, most + 7))
    store = make_store(body=f"axes: {{variant: [{names}]}}\nseeds: 1\n", level=lambda cell: 0.3 + 0.01 * cell.number)
    findings = findings_of(store)
    panels = (
        main_chart.drawn(findings) if kind == "curve" else there(curves.learning(findings, compare(findings))).charts
    )
    drawn, _ = panels[kind]
    assert {row["label"] for row in drawn["data"]["values"]} == {
        cell.label for cell in findings.best_first(findings.own)[:most]
    }
    assert drawn["title"] == f"The best {most} of {most + 6} on validation"


def test_an_axis_names_the_values_that_cells_have_and_none_where_it_is_one(make_store):
    body = "axes: {method.d_gating: [null, 8], optim.lr: [0.1, 0.2]}\nseeds: 1\n"
    findings = findings_of(make_store(["method=pfedmoap", "clip=vit_b16"], body=body))
    labels = there(curves.explore(findings, compare(findings))).charts["parallel"][0]["layer"][-1]["data"]["values"]
    assert [row["text"] for row in labels if row["axis"] == findings.names.title("method.d_gating")] == ["none", "8"]


def test_a_chart_has_the_references_before_a_cell_has_run(make_store):
    findings = findings_of(make_store(fill=lambda cell, seed: cell.is_reference))
    drawn, _ = main_chart.drawn(findings)["curve"]
    (level,) = drawn["data"]["values"]
    assert (level["series"], level["kind"], drawn["layer"][-1]["mark"]["type"]) == ("zeroshot", "level", "rule")


def test_only_axes_of_a_wide_range_are_logarithmic(make_store):
    for high, kind in ((0.02, None), (0.1, "log")):
        findings = findings_of(make_store(body=f"axes: {{optim.lr: [0.01, {high}]}}\nseeds: 1\n"))
        assert charts.channel(findings, "optim.lr", "x")["scale"].get("type") == kind
    assert charts.measured("test/acc_mean")["scale"].get("type") is None


def test_learning_curves_are_drawn_of_all_cells_beyond_the_colours_in_grey(make_store):
    rates = ", ".join(f"{0.01 * i:.2f}" for i in range(1, 13))
    findings = findings_of(make_store(body=f"axes: {{optim.lr: [{rates}]}}\nseeds: 1\n"))
    drawn, _ = there(curves.learning(findings, compare(findings))).charts["learning_test_acc_mean"]
    own = len(charts.COLOURS)
    assert {row["label"] for row in drawn["data"]["values"]} == {cell.label for cell in findings.own}
    best = [cell.label for cell in findings.best_first(findings.own)[:own]]
    scale = drawn["layer"][1]["encoding"]["color"]["scale"]
    assert scale["domain"] == [*best, f"{12 - own} others"]
    assert len({*scale["range"]}) == own + 1
    assert scale["range"][-1] == charts.GREY


def test_a_page_loads_itself_again_only_while_its_study_runs(make_store):
    store = make_store(fill=lambda cell, seed: cell.number < 2)
    running = report.build(store, running=True).read_text(encoding="utf-8")
    assert float(re.search(r'data-written="([\d.]+)"', running)[1]) > 1e9  # type: ignore[index]
    assert "So far, 2 of 4 cells done: " in running
    assert 'data-written="0"' in report.build(store).read_text(encoding="utf-8")


def test_methods_are_drawn_with_their_intervals(make_store):
    body = "axes: {variant: [{label: a, method.n_ctx: 2}, {label: b, method.n_ctx: 4}]}\nseeds: 3\n"
    findings = findings_of(make_store(body=body))
    ((name, (drawn, _)),) = main_chart.drawn(findings).items()
    assert name == "curve"
    for row in drawn["data"]["values"]:
        (cell,) = [cell for cell in findings.cells if cell.label == row["label"]]
        assert row["high"] - row["mean"] == pytest.approx(4.302652729911275 * findings.frame.loc[cell.id, "sem"])


def test_curve_goes_through_the_means_and_its_band_is_the_std(make_store):
    findings = findings_of(make_store())
    spec = main_chart.curve(findings, "method.n_ctx", findings.metric)
    assert spec["layer"][0]["mark"]["type"] == "area"
    rows = {row["number"]: row for row in spec["data"]["values"] if "kind" not in row}
    for cell in findings.own:
        values = list(findings.by_seed(cell, findings.metric).values())
        row, mean, std = rows[findings.numbers[cell.id]], np.mean(values), np.std(values, ddof=1)
        assert [row["mean"], row["low"], row["high"]] == pytest.approx([mean, mean - std, mean + std])
        assert row["best"] == (cell.id in findings.chosen)
    (level,) = (row for row in spec["data"]["values"] if "kind" in row)
    assert (level["kind"], level["series"]) == ("level", "zeroshot")


def test_an_axis_of_one_value_names_no_series(make_store):
    findings = findings_of(make_store(body="axes: {method: [promptfl], optim.lr: [0.01, 0.1]}\nseeds: 2\n"))
    spec = main_chart.curve(findings, "optim.lr", findings.metric)
    assert {row["series"] for row in spec["data"]["values"]} == {"cells"}


def test_names_are_rows_with_bars_the_best_on_top(make_store):
    body = "axes: {variant: [{label: a, method.n_ctx: 2}, {label: b, method.n_ctx: 4}], clip.dtype: [float32, float16]}"
    findings = findings_of(make_store(body=body))
    spec = main_chart.curve(findings, "variant", findings.metric)
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["rule", "point", "point"]
    assert spec["layer"][0]["encoding"]["y"]["sort"] == ["b", "a"]
    found = {(row["x"], row["series"]): row["mean"] for row in spec["data"]["values"]}
    for row in findings.frame.to_dict("records"):
        assert found[row["variant"], f"dtype={row['clip.dtype']}"] == pytest.approx(row["mean"])


def test_what_models_rely_on_is_drawn_with_its_standard_deviation(make_store):
    store = make_store()
    amend(store, diagnosis__attention=[0.4, 0.2, 0.2, 0.2])
    findings = findings_of(store)
    section = there(robustness.diagnoses(findings, compare(findings)))
    rows = section.charts["diagnosis_attention"][0]["data"]["values"]
    assert rows[0] == pytest.approx({"name": "1", "value": 40, "low": 40, "high": 40})


# -- formatting ----------------------------------------------------------------------------------------------


def test_formatting():
    assert formatting.quantity("test/acc_mean") == "test accuracy (%, mean over clients)"
    assert formatting.plus_minus(0.9761, 0.0011, "test/acc_mean") == "97.61 ± 0.11"
    assert formatting.plus_minus(0.9761, math.nan, "test/acc_mean") == "97.61"
    assert formatting.signed(-0.0123, "test/acc_mean") == "-1.23"
    assert formatting.signed(-0.00001, "test/acc_mean") == "+0.00"
    assert formatting.axis_name("lam") == "λ (lam)"
    assert [formatting.symbol(name) for name in ("lam", "lr")] == ["λ", "lr"]
    assert [shown(v, 3) for v in (0.0123456, 8, True, None, "a")] == ["0.0123", "8", "true", "none", "a"]
    cell = Cell("a" * 16, 0, "a", "cell", {"method.lam": 0.0123456}, {}, _rounds=1)
    assert [field_text(cell, name) for name in ("method.lam", "optim.lr")] == ["0.0123", "–"]
    assert formatting.titles(["method.lam", "optim.lr", "prune.lr"], ["x"]) == {
        "method.lam": "lam", "optim.lr": "optim.lr", "prune.lr": "prune.lr",
    }  # fmt: skip


# -- partition -----------------------------------------------------------------------------------------------


def test_the_partition_is_drawn_only_if_it_is_the_one_of_the_results(make_store):
    store = make_store(["partition=domain_dirichlet", "data.domains=[photo,sketch]"])
    findings = findings_of(store)
    comparisons = compare(findings)
    other = there(reproduce.partition(findings, comparisons))
    assert not other.charts
    for cell in store.cells():
        for seed in (1, 2, 3):
            put(store, cell, seed, split_hash=class_counts(cell.run, seed).hash)
    drawn = there(reproduce.partition(findings_of(store), comparisons))
    held = class_counts(store.cells()[0].run, 1)
    rows = drawn.charts["partition"][0]["data"]["values"]
    assert sum(row["images"] for row in rows) == held.counts.sum()
    assert len(rows) == (held.counts > 0).sum()


# -- what a report is asked for ------------------------------------------------------------------------------


METHODS = "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"


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
        report.build(make_store(body=METHODS), **asked)


def test_the_heat_map_of_a_grid_holds_its_cells(make_store):
    findings = findings_of(make_store(body="axes: {method.n_ctx: [2, 4], optim.lr: [0.01, 0.02, 0.1]}\nseeds: 1\n"))
    section = there(curves.grid(findings, compare(findings)))
    assert section.title == "Validation accuracy by lr and n_ctx"
    rows = section.charts["heat_map"][0]["data"]["values"]
    found = {(row["r"], row["c"]): row["validation"] for row in rows}
    assert found == {(f"{c.run.optim.lr:g}", str(c.varied["method.n_ctx"])): findings.frame.loc[c.id, "val"]
                     for c in findings.own}  # fmt: skip


def test_metrics_of_methods_have_a_column_and_a_curve(make_store):
    store = make_store(body="axes: {method: [promptfl, coop]}\nseeds: 2\n")
    promptfl = store.cells()[0]
    for seed in (1, 2):
        history = [{**record, "privacy/epsilon": 2.0 * record["round"]} for record in store.history(promptfl, seed)]
        store.put(promptfl, seed, make_result("done", history))
    findings = findings_of(store)
    found = table.table(findings, compare(findings))
    rows = [dict(zip(found.header, (td.text for td in row.cells), strict=True)) for row in found.rows]
    assert [row["privacy epsilon"] for row in rows] == ["8", "–"]
    section = there(curves.learning(findings, compare(findings)))
    rows = section.charts["learning_privacy_epsilon"][0]["data"]["values"]
    assert [row["mean"] for row in rows] == [2.0, 4.0, 6.0, 8.0]
    assert {row["series"] for row in rows} == {"promptfl"}, "coop has no such metric"


def test_clients_are_counted_from_one_and_commands_name_the_study_and_its_best_cell(make_store):
    findings = findings_of(make_store([]))
    comparisons = compare(findings)
    rows = there(robustness.clients(findings, comparisons)).charts["clients"][0]["data"]["values"]
    cell = there(findings.best)
    mine = [row["client"] for row in rows if row["name"] == findings.names.of(cell) and row["seed"] == 1]
    assert mine == list(range(1, len(findings.clients(cell, 1)) + 1))
    (code,) = reproduce.commands(findings, comparisons).code
    assert code.splitlines()[2:] == [
        f"fpl-tune show {findings.spec.name}", f"fpl-tune export {findings.spec.name} --cell best",
    ]  # fmt: skip
