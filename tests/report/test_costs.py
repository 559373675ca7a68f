"""The table of costs: what a client learns, sends and takes, and how soon a method is near its end."""

import csv
import re

import numpy as np
import pytest

from fpl_tune import report
from fpl_tune.report import charts, costs

from .conftest import amend, findings_of, write

BODY = """
axes:
  method: [{label: Small, method: promptfl, method.n_ctx: 4}, promptfl, zeroshot]
  partition: [disjoint, iid]
seeds: 2
"""
SENT = {"Small": 400_000, "promptfl": 1_600_000, "zeroshot": 0}


def name_of(cell):
    return cell.label.partition(",")[0]


@pytest.fixture
def store(make_store):
    """Four rounds with ten clients each, except for the last one, in which five train; the first one takes longest."""
    made = make_store(body=BODY)
    for cell in made.cells():
        for seed in made.seeds(cell):
            history, up = made.history(cell, seed), 0
            for record in history:
                record["train/clients"] = 5 if record["round"] == 4 else 10
                up += record["train/clients"] * SENT[name_of(cell)]
                record |= {"comm/up_bytes": up, "comm/down_bytes": 2 * up}
                record["time/train_seconds"] = record["train/clients"] * (9.0 if record["round"] == 1 else 0.25)
            history[-1] |= {"cost/learned": SENT[name_of(cell)] // 4, "cost/sent": SENT[name_of(cell)] / 4}
            history[-1] |= {"cost/client_bytes": 3.0 * SENT[name_of(cell)], "cost/client_memory": 7_000_000}
            history[-1]["cost/client_flops"] = 1000.0 * SENT[name_of(cell)]
            write(made, cell, seed, history)
    return made


def test_costs_are_those_of_a_client_and_round_and_of_all_together(store):
    found = {(cost.method, cost.setting): cost.figures for cost in costs.of_methods(findings_of(store))}
    assert [*found] == [(method, setting) for method in SENT for setting in ("disjoint", "iid")]
    for (method, _), figures in found.items():
        sent = SENT[method]
        assert figures["parameters learned"] == figures["parameters sent"] == sent / 4
        assert (figures["MB"], figures["GFLOP"]) == pytest.approx((3 * sent / 1e6, sent / 1e6))
        assert figures["memory MB"] == 7
        assert figures["MB in total"] == pytest.approx(3 * 35 * sent / 1e6)
        assert figures["seconds"] == 0.25, "of the median round: the first one is slower"


def test_rounds_are_counted_to_nine_tenths_of_the_final_accuracy(store):
    cell = store.cells()[0]
    for seed, values in ((1, [0.2, 0.719, 0.72, 0.8]), (2, [0.6, 0.9, 0.3, 0.6])):
        history = store.history(cell, seed)
        for record, value in zip(history, values, strict=True):
            record["test/acc_mean"] = value
        write(store, cell, seed, history)
    figures = costs.of_methods(findings_of(store))[0].figures
    assert (figures["rounds"], figures["rounds std"]) == (2.0, pytest.approx(np.std([3, 1], ddof=1)))


def test_every_form_of_the_table_has_the_same_figures_and_the_cheapest_method_that_learns_in_bold(store):
    report.build(store)
    page, markdown, latex = (
        (store.folder / name).read_text(encoding="utf-8") for name in ("report.html", "costs.md", "costs.tex")
    )
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("| ")]
    texts = [[text.strip("*") for text in line] for line in lines]
    assert texts[2][:8] == ["Small", "disjoint", "100,000", "100,000", "1.2", "0.4", "7", "42"]
    assert lines[2][2:8] == ["**100,000**", "**100,000**", "**1.2**", "**0.4**", "7", "**42**"]
    assert {line[0] for line in lines if "**" in " ".join(line)} == {"Small"}
    plain = latex.replace(r"\textbf{", "").replace("}", "").replace(r"$\pm$", "±").replace("--", "–")
    assert all(" & ".join(row[:9]) in plain for row in texts[2:])
    assert latex.count("textbf") == markdown.count("**") // 2
    assert re.search(r"<h3>Costs</h3>.*?<strong>100,000</strong>", page, re.DOTALL)
    rows = [*csv.DictReader((store.folder / "costs.csv").read_text(encoding="utf-8").splitlines())]
    assert [(row["method"], float(row["MB in total"])) for row in rows[::2]] == [
        ("Small", 42.0), ("promptfl", 168.0), ("zeroshot", 0.0),
    ]  # fmt: skip


def test_figures_that_records_lack_are_dashes(store):
    for cell in store.cells():
        for seed in store.seeds(cell):
            history = store.history(cell, seed)
            for record in history:
                del record["train/clients"]
                record.pop("cost/client_flops", None)
            write(store, cell, seed, history)
    first = [td.text for td in costs.table(findings_of(store)).rows[0].cells]
    assert first[4:8] == ["1.2", "–", "7", "42"]


def test_other_studies_have_a_row_for_each_cell_or_for_the_best_of_many(make_store):
    few = make_store(body="axes: {method.n_ctx: [2, 4], optim.lr: [0.1, 0.2]}\nreferences: [{method: zeroshot}]\n")
    assert [c.method for c in costs.of_methods(findings_of(few))] == [cell.label for cell in few.cells()]
    rates = [i / 1000 for i in range(1, charts.MOST + 5)]
    many = make_store(body=f"axes: {{optim.lr: {rates}}}\nseeds: 1\n", name="many")
    amend(many, **{"val__acc_mean": lambda cell: cell.number / 100})
    named = [cost.method for cost in costs.of_methods(findings_of(many))]
    assert len(named) == charts.MOST
    assert named[0] == "lr=0.005"
