"""Papers' printed values beside ours: by data set, domain and client, in their units, averaged."""

import math

import numpy as np
import pytest

from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.report import paper
from fpl_tune.study.results import make_result

from ..conftest import there
from .conftest import amend, findings_of

PAPER = """axes: {method: [promptfl, coop]}
references: [{method: zeroshot}]
seeds: 2
report:
  paper:
    paper: pFedMoAP
    table: 1
    expected: CoOp above PromptFL
    defects: [copied rows]
    results:
      - {cell: promptfl, as: PromptFL, average: 80, dtd: 54.11 ± 0.22, food101: 77.31 ± 1.64}
      - {cell: coop, as: CoOp, dtd: 44.23 ± 0.63}
      - {cell: nobody, dtd: 1}
"""


def beside(store, metric="test/acc_mean"):
    """Rows of a metric by label and place."""
    return {(row.label, row.place): row for row in paper.beside(findings_of(store))[metric]}


def test_cells_on_other_data_stand_beside_the_mean_of_the_printed_values_without_a_gap(make_store):
    store = make_store(body=PAPER)
    rows = beside(store)
    assert set(rows) == {("promptfl", "mean over 2 places"), ("coop", "dtd")}
    row = rows["promptfl", "mean over 2 places"]
    assert (row.mean, row.method) == (pytest.approx((54.11 + 77.31) / 2), "PromptFL"), "without the average"
    assert math.isnan(row.gap)
    findings = findings_of(store)
    part = paper.paper(findings, compare(findings))
    assert part is not None
    assert part.title == "Beside the paper: pFedMoAP, Table 1"
    assert part.texts[0] == "Expected: CoOp above PromptFL"
    assert "Known reason for a gap: copied rows" in part.texts
    plain = findings_of(make_store(name="plain"))
    assert paper.paper(plain, compare(plain)) is None


def test_orders_are_compared_over_three_rows_and_more(make_store):
    """Kendall's correlation: of three pairs, two are ordered as printed."""
    levels = {"promptfl": 0.5, "coop": 0.6, "fedpgp": 0.55}
    for methods, said in ((["promptfl", "coop"], ""), ([*levels], " +0.33.")):
        printed = ", ".join(f"{{cell: {name}, dtd: {70 + i}}}" for i, name in enumerate(methods))
        body = f"axes: {{method: [{', '.join(methods)}]}}\nseeds: 2\nreport: {{paper: {{results: [{printed}]}}}}\n"
        findings = findings_of(make_store(body=body, name=f"with{len(methods)}", level=lambda cell: levels[cell.label]))
        texts = there(paper.paper(findings, compare(findings))).texts
        correlations = [text for text in texts if text.startswith("Kendall's rank correlation")]
        assert len(correlations) == bool(said)
        assert all(text.endswith(said) for text in correlations)


def test_a_gap_is_given_on_the_paper_s_own_data(make_store):
    rows = beside(make_store(["clip=rn50", "data=dtd", "partition=classes"], body=PAPER))
    assert set(rows) == {("promptfl", "dtd"), ("coop", "dtd")}
    row = rows["coop", "dtd"]
    assert (row.mean, row.std) == (44.23, 0.63)
    assert row.gap == pytest.approx(row.ours - 44.23)
    other = beside(make_store(["clip=rn50", "data=food101", "partition=classes"], body=PAPER, name="other"))
    assert math.isnan(other["coop", "dtd"].gap), "of another data set"


def test_counts_of_parameters_stand_beside_those_in_millions(make_store):
    body = (
        "axes: {variant: [{label: FedCLIP, method: fedclip}]}\nseeds: 2\n"
        "report: {paper: {results: [{cell: FedCLIP, of: cost/learned, domainnet345: 0.52}]}}\n"
    )
    store = make_store(body=body)
    amend(store, cost__learned=18624)
    row = beside(store, "cost/learned")["FedCLIP", "domainnet345"]
    assert (row.ours, row.mean) == (pytest.approx(0.018624), 0.52)


def test_a_metric_of_which_nothing_ran_has_no_table(make_store):
    body = PAPER.replace("{cell: nobody, dtd: 1}", "{cell: nobody, of: cost/learned, dtd: 1}")
    findings = findings_of(make_store(body=body))
    assert list(paper.beside(findings)) == [findings.metric]


CLIENTS = """axes: {partition.held_out: [[sketch], [real]], method: [fedpgp, coop]}
seeds: 2
report: {paper: {results: [{cell: fedpgp, domainnet10/sketch: 80, domainnet10/average: 82,
  domainnet10/real<painting: 71, domainnet10/sketch<painting: 72}]}}
"""


def test_clients_stand_beside_the_printed_ones_of_their_domain(make_store, monkeypatch):
    class Held:
        domains = ("painting", "clipart", "painting")

    store = make_store(["clip=vit_b16", "data=domainnet10", "partition=leave_one_domain_out"], body=CLIENTS, clients=3)
    monkeypatch.setattr(Findings, "class_counts", lambda self, cell, seed: Held)
    findings = findings_of(store)
    rows = {row.place: row for row in paper.beside(findings)["test/acc_mean"]}
    sketch, real = (cell for cell in findings.cells if cell.label.endswith("fedpgp"))
    assert rows["domainnet10/sketch"].ours == pytest.approx(100 * findings.spread(sketch, findings.metric)[0])
    ours = [100 * findings.clients(real, seed)[[0, 2]].mean() for seed in (1, 2)]
    row = rows["domainnet10/real<painting"]
    assert (row.ours, row.spread) == (pytest.approx(np.mean(ours)), pytest.approx(np.std(ours, ddof=1)))
    both = [findings.by_seed(cell, findings.metric) for cell in (sketch, real)]
    average = [100 * np.mean([own[seed] for own in both]) for seed in (1, 2)]
    assert rows["domainnet10/average"].ours == pytest.approx(np.mean(average)), "over the domains held out"
    assert len(rows) == 4


TIMES = """axes: {variant: [{label: fast, method.n_ctx: 2}]}
seeds: 2
report: {metric: time/test_seconds, paper: {results: [
  {cell: fast, domainnet345/clipart: 19.5, domainnet345/real: 67},
  {cell: fast, of: test/acc_mean, domainnet345/clipart: 76}]}}
"""


def test_domains_that_records_hold_stand_beside_the_printed_ones_and_times_give_no_gap(make_store):
    store = make_store(["data=domainnet", "clip=vit_b32", "partition=global_domains"], body=TIMES)
    amend(store, time__test_seconds=8.5, test__domain__clipart__acc_mean=0.25)
    row = beside(store)["fast", "domainnet345/clipart"]
    assert (row.ours, row.gap) == (pytest.approx(25.0), pytest.approx(25.0 - 76))
    row = beside(store, "time/test_seconds")["fast", "mean over 2 places"]
    assert (row.ours, row.mean) == (8.5, pytest.approx((19.5 + 67) / 2))
    assert math.isnan(row.gap), "another machine"


TUNED = """axes: {method.temperature: [0.01, 0.1]}
seeds: 2
report: {paper: {results: [{cell: best on validation, as: tuned, dtd: 71}]}}
"""


def test_the_cell_that_validation_chose_stands_beside_the_tuned_method(make_store):
    store = make_store(["method=fedapt"], body=TUNED, level=lambda cell: 0.8 if "0.1" in cell.label else 0.5)
    assert list(beside(store)) == [("temperature=0.1", "dtd")]


def test_an_average_over_data_sets_stands_beside_ours(make_store):
    body = (
        "axes: {data: [dtd, food101], variant: [{label: CoOp, method: coop}]}\nseeds: 2\n"
        "report: {paper: {results: [{cell: CoOp, average: 60, dtd: 50, food101: 70}]}}\n"
    )
    store = make_store(["clip=vit_b16"], body=body)
    for cell in store.cells():
        for seed in (1, 2):
            history = store.history(cell, seed)
            history[-1]["test/acc_mean"] = 0.5 + 0.1 * cell.number * seed
            store.put(cell, seed, make_result("done", history))
    row = beside(store)["CoOp, mean over 2 cells", "average"]
    assert (row.ours, row.mean) == (pytest.approx(100 * np.mean([0.55, 0.6])), 60)
    assert row.gap == pytest.approx(row.ours - 60)
