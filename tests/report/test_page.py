"""What the page shows at first sight: the answer, the reference that is chosen, test sets, colours, sizes."""

from __future__ import annotations

import json
import re

import pytest

from fpl_tune import report
from fpl_tune.report import answer, charts, curves, table
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import Reference, against

from ..conftest import there
from .conftest import amend, put


def embedded(text, key):
    return json.loads(text.partition(f'id="{key}">')[2].partition("</script>")[0])


def test_five_sections_the_last_two_folded_and_the_answer_first(make_store):
    text = report.build(make_store()).read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)">', text) == ["answer", "table", "curves", "robustness", "reproduce"]
    assert re.findall(r"<summary><h2>(\w+)", text) == ["Robustness", "Reproduce"]
    said = there(re.search(r'id="sentence">(.*?)</p>', text))
    assert said[1].startswith("n_ctx=8 is best on validation, with ")
    assert text.index('id="sentence"') < text.index('data-name="curve"') < text.index('class="sortable"')


def test_pages_of_small_studies_are_small_and_of_a_thousand_cells_bearable(make_store):
    assert report.build(make_store()).stat().st_size < 600e3
    rates = ", ".join(f"{0.001 * i:.3f}" for i in range(1, 501))
    body = f"axes: {{method.n_ctx: [2, 4], optim.lr: [{rates}]}}\nseeds: 1\n"
    assert report.build(make_store(body=body, name="large", rounds=2, clients=2)).stat().st_size < 2e6


def test_any_reference_can_be_chosen_on_the_page(make_store):
    body = "axes: {method: [promptfl, coop], optim.lr: [0.01, 0.1]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
    store = make_store(body=body)
    facts = Facts(store)
    found = embedded(report.build(store).read_text(encoding="utf-8"), "data")["references"]
    assert {"zeroshot", "promptfl", "coop"} <= found.keys()
    assert {cell.label for cell in facts.cells} <= found.keys()
    rows = against(facts, Reference(facts, "promptfl"))
    (at,) = [cell for cell in facts.own if cell.label == "coop, lr=0.1"]
    assert found["promptfl"][str(facts.keys[at.id])][0] == f"{100 * rows.loc[at.id, 'difference']:+.2f}"


def test_test_sets_beside_the_main_one_and_harmonic_means_are_columns(make_store):
    store = make_store()
    sets = ("test__base__acc_mean", "test__novel__acc_mean", "test__base_novel_harmonic_mean", "test__harmonic_mean")
    amend(store, **{name: lambda cell, i=i: 0.1 * i + 0.01 * cell.number for i, name in enumerate(sets, 3)})
    facts = Facts(store)
    found = table.table(facts, against(facts))
    row = dict(zip(found.header, (td.text for td in found.rows[0].cells), strict=True))
    assert row["HM(base, novel) (%)"] == "50.00"
    assert row["test base accuracy (%)"] == "30.00"
    assert {"HM(test, base, novel) (%)", "test novel accuracy (%)"} <= row.keys()
    other = Facts(store, metric="test/harmonic_mean")
    assert "test accuracy (%)" in table.table(other, against(other)).header


def test_the_number_of_seeds_of_each_cell_is_shown(make_store):
    facts = Facts(make_store(fill=lambda cell, seed: cell.number != 1 or seed < 3))
    found = table.table(facts, against(facts))
    at = found.header.index("seeds")
    assert [row.cells[at].text for row in found.rows] == ["3", "2 of 3", "3", "3"]


def test_colours_stay_when_series_join():
    first = charts.colours({"a": 0, "b": 1, "c": 2})["scale"]
    later = charts.colours({"new": 3, "c": 2, "a": 0, "b": 1})["scale"]
    before, after = (dict(zip(scale["domain"], scale["range"], strict=True)) for scale in (first, later))
    assert before.items() <= after.items()
    assert len(set(after.values())) == 4
    assert len(charts.colours({str(i): i for i in range(20)})["scale"]["range"]) == 20


def test_learning_curves_name_what_they_leave_out(make_store):
    rates = ", ".join(f"{0.01 * i:.2f}" for i in range(1, 13))
    facts = Facts(make_store(body=f"axes: {{optim.lr: [{rates}]}}\nseeds: 1\n"))
    part = there(curves.learning(facts, against(facts)))
    drawn = {row["series"] for row in part.charts["learning_test_acc_mean"][0]["data"]["values"]}
    left = {cell.label for cell in facts.own} - drawn
    assert len(left) == 4
    assert all(label in part.texts[0] for label in left)


def test_a_page_loads_itself_again_only_while_its_study_runs(make_store):
    store = make_store(fill=lambda cell, seed: cell.number < 2)
    running = report.build(store, running=True).read_text(encoding="utf-8")
    assert float(re.search(r'data-written="([\d.]+)"', running)[1]) > 1e9  # type: ignore[index]
    assert "So far, 2 of 4 cells done: " in running
    assert 'data-written="0"' in report.build(store).read_text(encoding="utf-8")


def test_cells_that_were_stopped_early_are_said_and_compared_with_nothing(make_store):
    store = make_store(fill=lambda cell, seed: cell.number != 1 or seed == 1)
    pruned = store.cells()[1]
    put(store, pruned, 1, status="pruned")
    facts = Facts(store)
    tests = against(facts)
    assert pruned.id not in tests.index
    assert len(tests) == 2
    assert not answer.sentence(facts, tests).startswith("So far")
    assert (
        "2 of 3 cells ran whole; the others were stopped early and are not compared."
        in answer.decided(facts, tests).texts
    )
    assert facts.basis.startswith("n = 3 seeds")


def test_methods_are_drawn_with_their_intervals(make_store):
    body = "axes: {variant: [{label: a, method.n_ctx: 2}, {label: b, method.n_ctx: 4}]}\nseeds: 3\n"
    facts = Facts(make_store(body=body))
    ((name, (drawn, _)),) = answer.main_chart(facts).items()
    assert name == "curve"
    for row in drawn["data"]["values"]:
        (cell,) = [cell for cell in facts.cells if cell.label == row["label"]]
        assert row["high"] - row["mean"] == pytest.approx(4.302652729911275 * facts.table.loc[cell.id, "sem"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FedPGP β=1", r"FedPGP $\beta$=1"),
        ("λ → Δ", r"$\lambda$ $\to$ $\Delta$"),
        ("Δ_1", r"$\Delta$\_1"),
        ("ρ²", r"$\rho$$^2$"),
    ],
)
def test_latex_has_symbols_for_greek_letters_and_signs(text, code):
    assert table.latex_text(text) == code
