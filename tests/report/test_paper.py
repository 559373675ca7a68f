"""Papers' printed values beside ours: by data set, domain and client, in their units, averaged, best of an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fpl_tune.report import paper
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import against
from fpl_tune.study.results import make_result

from .conftest import amend

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


def parts(store, **asked):
    block = paper.beside(Facts(store, **asked))
    assert block is not None
    return block.parts


def test_printed_values_stand_beside_the_cell_of_their_label(make_store):
    store = make_store(body=PAPER)
    block = paper.beside(Facts(store))
    assert block is not None
    (part,) = block.parts
    rows = {row.label: row for row in part.rows}
    assert set(rows) == {"promptfl", "coop"}
    assert rows["promptfl"].mean == pytest.approx((54.11 + 77.31) / 2), "without the average"
    assert (rows["promptfl"].method, rows["promptfl"].dataset) == ("PromptFL", "mean over 2 data sets")
    assert (rows["coop"].mean, rows["coop"].std, rows["coop"].dataset) == (44.23, 0.63, "dtd")
    assert not rows["coop"].comparable, "the drawn world is not DTD"
    assert math.isnan(rows["coop"].gap)
    assert (block.source, block.defects) == ("pFedMoAP, Table 1", ["copied rows"])


def test_a_study_without_a_paper_has_no_block(make_store):
    assert paper.beside(Facts(make_store())) is None


def test_a_gap_is_given_on_the_paper_s_own_data(make_store):
    store = make_store(["clip=rn50", "data=dtd", "partition=classes"], body=PAPER)
    rows = {row.label: row for row in parts(store)[0].rows}
    assert rows["coop"].comparable
    assert rows["coop"].gap == pytest.approx(rows["coop"].ours - 44.23)
    assert rows["promptfl"].mean == 54.11


def test_counts_of_parameters_stand_beside_those_in_millions(make_store):
    body = (
        "axes: {variant: [{label: FedCLIP, method: fedclip}, {label: CLIP-FC, method: clip_fc}]}\nseeds: 2\n"
        "report: {paper: {paper: FedAPT, table: 1, results: [{cell: FedCLIP, domainnet345/average: 60.1}, "
        "{cell: FedCLIP, of: train/parameters, domainnet345: 0.52}, "
        "{cell: CLIP-FC, of: train/parameters, domainnet345: 0.26}]}}\n"
    )
    store = make_store(body=body)
    amend(store, train__parameters=lambda cell: 18624 if cell.label == "FedCLIP" else 9312)
    facts = Facts(store)
    accuracy, parameters = parts(store)
    assert (accuracy.unit, parameters.unit) == ("%", "M")
    assert {row.label: (row.ours, row.mean) for row in parameters.rows} == {
        "FedCLIP": (pytest.approx(0.018624), 0.52),
        "CLIP-FC": (pytest.approx(0.009312), 0.26),
    }
    section = paper.paper(facts, against(facts))
    assert section is not None
    table = section.tables[1]
    assert table.header[:2] == ["parameters that a client learns", "ours (M)"]
    assert [td.text for td in table.rows[0].cells][1:5] == ["0.019", "FedCLIP", "domainnet345", "0.520"]


SOURCES = """data: {train_per_class: 12, test_per_class: 3, shots: 4}
partition: {name: domain, evaluation: leave_one_domain_out, held_out: [sketch]}
axes:
  partition: {held_out: [[sketch], [photo]]}
  variant: [{label: FedPGP, method: fedpgp}]
seeds: 2
report:
  paper:
    paper: FedPGP
    table: 9
    results:
      - {cell: FedPGP, domainnet10/sketch: 80, domainnet10/real: 81}
      - {cell: FedPGP, of: domains, domainnet10/real<painting: 71, domainnet10/real<sketch: 72,
         domainnet10/sketch<real: 73}
"""


def test_single_clients_stand_beside_the_printed_ones_of_their_domains(make_store):
    store = make_store(body=SOURCES, clients=5)
    facts = Facts(store)
    whole, by_domain = parts(store)
    assert {row.label: row.dataset for row in whole.rows} == {
        "held_out=sketch, FedPGP": "domainnet10/sketch",
        "held_out=photo, FedPGP": "domainnet10/real",
    }
    rows = {row.label: row for row in by_domain.rows}
    assert {label: row.mean for label, row in rows.items()} == {
        "held_out=photo, FedPGP, painting": 71,
        "held_out=photo, FedPGP, sketch": 72,
        "held_out=sketch, FedPGP, photo": 73,
    }
    row = rows["held_out=photo, FedPGP, painting"]
    assert not row.comparable, "the drawn world is not DomainNet"
    (cell,) = [cell for cell in store.cells() if cell.label == "held_out=photo, FedPGP"]
    place = ["clipart", "infograph", "painting", "quickdraw", "sketch"].index("painting")
    ours = [100 * facts.clients(cell, seed)[place] for seed in (1, 2)]
    assert (row.ours, row.spread) == (pytest.approx(np.mean(ours)), pytest.approx(np.std(ours, ddof=1)))


def test_domains_that_records_hold_stand_beside_the_printed_ones(make_store):
    body = (
        "axes: {variant: [{label: PromptFL, method: promptfl}]}\nseeds: 2\n"
        "report: {paper: {paper: Fed-DPT, table: 1, results: "
        "[{cell: PromptFL, domainnet345/clipart: 76.0, domainnet345/average: 63.2}]}}\n"
    )
    store = make_store(body=body)
    amend(store, test__domain__clipart__acc_mean=0.25, test__domain__nowhere__acc_mean=0.5)
    (row,) = parts(store)[1].rows
    assert (row.label, row.ours, row.mean) == ("PromptFL, clipart", pytest.approx(25.0), 76.0)


BEST = """axes: {method.alpha: [0.1, 1.08, 4.02], data.shots: [1, 16]}
seeds: 2
report:
  paper:
    paper: pFedPrompt
    table: 5
    best:
      field: method.alpha
      results:
        shots=1: {as: one shot, dtd: 4.51, caltech101: 3.77}
        shots=16: {as: sixteen shots, dtd: 0.59, caltech101: 0.59}
"""


def test_the_best_of_an_axis_is_validation_s_and_the_habit_stands_apart(make_store):
    peak = {1: 4.02, 16: 0.1}
    store = make_store(
        ["method=pfedprompt"],
        body=BEST,
        level=lambda cell: 0.8 - 0.1 * abs(cell.varied["method.alpha"] - peak[cell.varied["data.shots"]]),
    )
    chosen, habit = parts(store)
    assert "validation" in chosen.name
    assert "habit" in habit.name
    rows = {row.label: row for row in chosen.rows}
    assert {name: row.ours for name, row in rows.items()} == {"shots=1": 4.02, "shots=16": 0.1}
    assert rows["shots=1"].mean == pytest.approx((4.51 + 3.77) / 2)
    assert (rows["shots=16"].method, rows["shots=16"].dataset) == ("sixteen shots", "mean over 2 data sets")


TUNED = """axes: {method.temperature: [0.01, 0.1, 1.0]}
references: [{method: zeroshot}]
seeds: 2
report:
  paper:
    paper: FedAPT
    table: 6
    results:
      - {cell: temperature=0.01, as: hard, domainnet345/clipart: 70, domainnet345/real: 80}
      - {cell: best on validation, as: tuned, domainnet345/clipart: 71, domainnet345/real: 81, domainnet345/sketch: 61}
"""
ONE_UNSEEN = ["method=fedapt", "partition=unseen_domain"]


def test_the_cell_that_validation_chose_stands_beside_the_tuned_method(make_store):
    level = lambda cell: {0.1: 0.8, None: 0.9}.get(cell.varied.get("method.temperature"), 0.5)  # noqa: E731
    store = make_store(ONE_UNSEEN, body=TUNED, level=level)
    amend(
        store,
        test__acc_mean=lambda cell: 0.1 if cell.label == "temperature=0.1" else 0.6,
        test__domain__clipart__acc_mean=lambda cell: 0.2 if cell.label == "temperature=0.1" else 0.7,
    )
    block = paper.beside(Facts(store))
    assert block is not None
    whole, by_domain = ({row.label: row for row in part.rows} for part in block.parts)
    assert set(whole) == {"temperature=0.01", "temperature=0.1 (best on validation)"}, "validation chose, not a test"
    row = whole["temperature=0.1 (best on validation)"]
    assert row.mean == pytest.approx((81 + 61) / 2), "the unseen domain is nobody's own"
    assert row.dataset == "mean over 2 domains of domainnet345"
    row = by_domain["temperature=0.1 (best on validation), clipart"]
    assert (row.ours, row.mean) == (pytest.approx(20.0), 71)
    (note,) = block.notes
    assert "highest validation accuracy" in note
    assert "rule “final”" in note


def test_nothing_is_best_before_all_have_run(make_store):
    store = make_store(ONE_UNSEEN, body=TUNED, fill=lambda cell, seed: cell.number != 2 or seed == 1)
    assert [row.label for row in parts(store)[0].rows] == ["temperature=0.01"]


TIMES = """axes: {method.inference: [precomputed, exact]}
seeds: 2
report:
  metric: time/test_seconds
  paper:
    paper: FedAPT
    table: 8
    results:
      - {cell: inference=precomputed, domainnet345/clipart: 19.5, domainnet345/sketch: 32, domainnet345/real: 67}
      - {cell: inference=exact, domainnet345/clipart: 1140, domainnet345/sketch: 1800, domainnet345/real: 3600}
"""


@pytest.mark.parametrize("scale", [[], ["data=domainnet", "clip=vit_b32"]])
def test_times_of_domains_add_up(make_store, scale):
    store = make_store(["method=fedapt", "partition=global_domains", *scale], body=TIMES)
    amend(store, time__test_seconds=lambda cell: 8.5 if cell.label == "inference=exact" else 0.5)
    facts = Facts(store)
    (part,) = parts(store)
    assert part.unit == "s"
    assert {row.label: (row.ours, row.mean) for row in part.rows} == {
        "inference=precomputed": (0.5, pytest.approx(118.5)),
        "inference=exact": (8.5, pytest.approx(6540)),
    }
    assert {row.dataset for row in part.rows} == {"sum over 3 domains of domainnet345"}
    assert not any(row.comparable for row in part.rows), "another machine"
    section = paper.paper(facts, against(facts))
    assert section is not None
    assert any("on another machine" in text for text in section.texts)


def test_times_add_up_over_the_domains_that_ran(make_store):
    domains = ["data=domainnet", "clip=vit_b32", "data.domains=[clipart,sketch]"]
    store = make_store(["method=fedapt", "partition=global_domains", *domains], body=TIMES)
    amend(store, time__test_seconds=1.0)
    assert [row.mean for row in parts(store)[0].rows] == [pytest.approx(19.5 + 32), pytest.approx(1140 + 1800)]


FIVE = ["oxford_pets", "flowers102", "dtd", "caltech101", "food101"]
NAMES = ("test/harmonic_mean", "test/acc_mean", "test/base/acc_mean", "test/novel/acc_mean")
SETS = f"""axes:
  data: [{", ".join(FIVE)}]
  variant: [{{label: CoOp, method: coop}}, {{label: FedPGP, method: fedpgp}}]
seeds: 2
report:
  metric: test/harmonic_mean
  paper:
    paper: FedPGP
    table: 1
    results:
""" + "".join(
    f"      - {{cell: {cell}, of: {name}, average: {10 + i}, {', '.join(f'{data}: {20 + i}' for data in FIVE)}}}\n"
    for i, name in enumerate(NAMES)
    for cell in ("CoOp", "FedPGP")
)


def test_an_average_over_data_sets_stands_beside_ours(make_store):
    def accuracy(part: str, cell: Any, seed: int) -> float:
        number = FIVE.index(cell.run.data.name)
        return {"own": 0.9 - 0.1 * number, "base": 0.5 + 0.05 * number * seed, "novel": 0.4}[part]

    def harmonic(*values: float) -> float:
        return len(values) / sum(1 / value for value in values)

    store = make_store(["clip=vit_b16", "partition=base_to_novel"], body=SETS)
    measured = {"test/acc_mean": "own", "test/base/acc_mean": "base", "test/novel/acc_mean": "novel"}
    for cell in store.cells():
        for seed in (1, 2):
            history = store.history(cell, seed)
            history[-1] |= {name: accuracy(part, cell, seed) for name, part in measured.items()}
            history[-1]["test/harmonic_mean"] = harmonic(*(history[-1][name] for name in measured))
            store.put(cell, seed, history, make_result("done", history))
    block = paper.beside(Facts(store))
    assert block is not None
    hm, own, base, _ = ({row.label: row for row in part.rows}["FedPGP, average"] for part in block.parts)
    assert [len(part.rows) for part in block.parts] == [12] * 4
    assert (own.ours, own.spread, own.mean) == (pytest.approx(70), pytest.approx(0), 11)
    seeds = [60.0, 70.0]
    assert (base.ours, base.spread) == (pytest.approx(65), pytest.approx(np.std(seeds, ddof=1)))
    assert hm.ours == pytest.approx(np.mean([harmonic(70, b, 40) for b in seeds])), "of averages, as the paper's"
    assert (hm.dataset, hm.mean) == ("average", 10)
    assert base.comparable
    assert base.gap == pytest.approx(65 - 12)
    assert len(block.notes) == 2


def test_an_average_needs_all_its_data_sets(make_store):
    run = {"CoOp": FIVE, "FedPGP": FIVE[1:]}
    store = make_store(
        ["clip=vit_b16", "partition=base_to_novel"],
        body=SETS,
        fill=lambda cell, seed: cell.run.data.name in run[cell.varied["variant"]["label"]],
    )
    rows = parts(store, metric="test/acc_mean")[0].rows
    assert [row.label for row in rows if row.dataset == "average"] == ["CoOp, average"]
    four = make_store(
        ["clip=vit_b16", "partition=base_to_novel", f"axes.data=[{','.join(FIVE[:4])}]"], body=SETS, name="four"
    )
    rows = parts(four, metric="test/acc_mean")[0].rows
    assert len(rows) == 8
    assert "average" not in {row.dataset for row in rows}
