"""Papers' printed figures beside ours: by method, protocol, domain and client, parameters, and the best of an axis."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fpl_tune.report import paper, sections
from fpl_tune.report.facts import Facts
from fpl_tune.report.printed import figures_of, plain, targets
from fpl_tune.report.significance import against_reference

from .conftest import amend, printed

PAPER = """axes: {method: [promptfl, coop]}
references: [{method: zeroshot}]
seeds: 2
report: {paper: {paper: pFedMoAP, table: 1, expected: "CoOp above PromptFL", defects: ["copied rows"]}}
"""


def test_printed_figures_stand_beside_ours_by_the_method_s_name(make_store):
    block = paper.beside(Facts(make_store(body=PAPER)))
    assert block is not None
    (part,) = block.parts
    rows = {row.label: row for row in part.rows}
    assert set(rows) == {"promptfl", "coop", "zeroshot"}
    table = printed("pFedMoAP", "1")
    expected = table[(table["method"] == "PromptFL") & (table["base"] != "average5")]["mean"].mean()
    assert rows["promptfl"].mean == pytest.approx(expected)
    assert not rows["promptfl"].comparable
    assert math.isnan(rows["promptfl"].gap)
    assert block.defects == ["copied rows"]


def test_a_study_without_a_paper_has_no_block(make_store):
    assert paper.beside(Facts(make_store())) is None


def test_targets_are_read_with_their_types_and_places():
    found = targets()
    assert len(found) > 1800
    assert found["mean"].dtype == float
    assert set(found["paper"]) == {"Fed-DPT", "FedAPT", "FedPGP", "pFedMoAP", "pFedPrompt"}
    place = found.set_index("dataset")[["base", "target", "source"]]
    assert tuple(place.loc["PACS/Art painting"].iloc[0]) == ("pacs", "artpainting", "")
    assert tuple(place.loc["DomainNet-10 target=Real source=Sketch"].iloc[0]) == ("domainnet10", "real", "sketch")


def test_printed_figures_of_several_protocols_and_metrics_find_their_cells(make_store):
    body = (
        "axes: {data.shots: [1, 16], variant: [{label: PromptFL, method: promptfl}, "
        "{label: FedAvg (ResNet-50), method: coop}]}\nseeds: 2\n"
        "report: {paper: {paper: Fed-DPT, table: 6, protocols: {shots=1: DN345_6C_VITB16 1-shot, "
        "shots=16: DN345_6C_VITB16 16-shot}}}\n"
    )
    block = paper.beside(Facts(make_store(body=body)))
    assert block is not None
    table = printed("Fed-DPT", "6")
    wanted = {
        (f"shots={shots}, {method}", mean)
        for protocol, method, mean in zip(table["protocol"], table["method"], table["mean"], strict=True)
        for shots in (1, 16)
        if protocol.endswith(f" {shots}-shot") and method in ("PromptFL", "FedAvg (ResNet-50)")
    }
    assert {(row.label, row.mean) for row in block.parts[0].rows} == wanted
    assert len(wanted) == 3, "whole models are printed for 16 shots only"
    names = {"test/acc_mean": "local acc", "test/novel/acc_mean": "novel acc"}
    asked = {"paper": "FedPGP", "table": "1", "metric": names}
    assert set(figures_of(asked, "test/novel/acc_mean")["metric"]) == {"novel acc"}
    assert figures_of(asked, "test/loss").empty
    assert figures_of({"paper": "pFedMoAP", "table": "1"}, "time/seconds").empty, "printed are accuracies"


def test_counts_of_parameters_stand_beside_those_in_millions(make_store):
    body = (
        "axes: {variant: [{label: FedCLIP, method: fedclip}, {label: CLIP-FC, method: clip_fc}]}\nseeds: 2\n"
        "report: {paper: {paper: FedAPT, table: 1, metric: {test/acc_mean: "
        '"global model top-1 on the domain test set, final round (%)", train/parameters: learnable parameters (M)}}}\n'
    )
    store = make_store(body=body)
    amend(store, train__parameters=lambda cell: 18624 if cell.label == "FedCLIP" else 9312)
    facts = Facts(store)
    block = paper.beside(facts)
    assert block is not None
    accuracy, parameters = block.parts
    assert (accuracy.unit, parameters.unit) == ("%", "M")
    assert {row.label: (row.ours, row.mean) for row in parameters.rows} == {
        "FedCLIP": (pytest.approx(0.018624), 0.52),
        "CLIP-FC": (pytest.approx(0.009312), 0.26),
    }
    section = sections.paper(facts, against_reference(facts))
    assert section is not None
    table = section.tables[1]
    assert table.header[:2] == ["parameters that a client learns", "ours (M)"]
    assert [td.text for td in table.rows[0]["cells"]][1:5] == ["0.019", "FedCLIP", "DomainNet-345", "0.520"]


SOURCES = """data: {train_per_class: 12, test_per_class: 3, shots: 4}
partition: {name: domain, evaluation: leave_one_domain_out, held_out: [sketch]}
axes:
  partition: {held_out: [[sketch], [photo]]}
  variant: [{label: CoOp, method: coop}, {label: FedPGP, method: fedpgp}]
seeds: 2
report:
  paper:
    paper: FedPGP
    table: 9
    metric: mean and std over source clients
    domains: acc of the source client model on the target domain (%)
"""


def test_single_clients_stand_beside_the_printed_ones_of_their_domains(make_store):
    store = make_store(body=SOURCES, clients=5)
    facts = Facts(store)
    block = paper.beside(facts)
    assert block is not None
    whole, by_domain = block.parts
    assert {row.dataset for row in whole.rows} == {"DomainNet-10 target=Sketch", "DomainNet-10 target=Real"}
    rows = {row.label: row for row in by_domain.rows}
    assert len(rows) == 4 * 5
    row = rows["held_out=photo, FedPGP, painting"]
    assert row.dataset == "DomainNet-10 target=Real source=Painting"
    table = printed("FedPGP", "9")
    wanted = table[(table["dataset"] == row.dataset) & (table["method"] == "FedPGP")]["mean"]
    assert row.mean == wanted.item()
    assert not row.comparable, "the drawn world is not DomainNet"
    (cell,) = [cell for cell in store.cells() if cell.label == "held_out=photo, FedPGP"]
    place = ["clipart", "infograph", "painting", "quickdraw", "sketch"].index("painting")
    ours = [100 * facts.clients(cell, seed)[place] for seed in (1, 2)]
    assert row.ours == pytest.approx(np.mean(ours))
    assert row.spread == pytest.approx(np.std(ours, ddof=1))


def test_domains_that_records_hold_stand_beside_the_printed_ones(make_store):
    body = (
        "axes: {variant: [{label: PromptFL, method: promptfl}]}\nseeds: 2\n"
        "report: {paper: {paper: Fed-DPT, table: 1}}\n"
    )
    store = make_store(body=body)
    amend(store, test__domain__clipart__acc_mean=0.25, test__domain__nowhere__acc_mean=0.5)
    block = paper.beside(Facts(store))
    assert block is not None
    (row,) = block.parts[1].rows
    table = printed("Fed-DPT", "1")
    wanted = table[(table["target"] == "clipart") & (table["method"].map(plain) == "promptfl")]["mean"]
    assert (row.label, row.ours, row.mean) == ("PromptFL, clipart", pytest.approx(25.0), wanted.item())


BEST = """axes: {method.alpha: [0.1, 1.08, 4.02], data.shots: [1, 16]}
seeds: 2
report:
  paper:
    paper: pFedPrompt
    table: 5
    metric: mean over clients of local test accuracy (%)
    best: {field: method.alpha, metric: best alpha, cells: {shots=1: pFedPrompt 1-shot, shots=16: pFedPrompt 16-shot}}
"""


def test_the_best_of_an_axis_is_validation_s_and_the_habit_stands_apart(make_store):
    peak = {1: 4.02, 16: 0.1}
    store = make_store(
        ["method=pfedprompt"],
        body=BEST,
        level=lambda cell: 0.8 - 0.1 * abs(cell.varied["method.alpha"] - peak[cell.varied["data.shots"]]),
    )
    facts = Facts(store)
    block = paper.beside(facts)
    assert block is not None
    chosen, habit = block.parts[-2:]
    assert "validation" in chosen.name
    assert "habit" in habit.name
    table = printed("pFedPrompt", "5")
    table = table[table["metric"] == "best alpha"]
    rows = {row.label: row for row in chosen.rows}
    assert {name: row.ours for name, row in rows.items()} == {"shots=1": 4.02, "shots=16": 0.1}
    wanted = table[table["method"] == "pFedPrompt 16-shot"]["mean"]
    assert rows["shots=16"].mean == pytest.approx(wanted.mean())
    assert rows["shots=16"].dataset == f"mean over {len(wanted)} data sets"
