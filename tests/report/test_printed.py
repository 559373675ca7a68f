"""Which printed figures stand beside ours: of the tuned method, times in one unit, averages over data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fpl_tune.report import paper, sections
from fpl_tune.report.facts import Facts
from fpl_tune.report.significance import against_reference
from fpl_tune.study.results import make_result

from .conftest import amend, printed

TUNED = """axes: {method.temperature: [0.01, 0.1, 1.0]}
references: [{method: zeroshot}]
seeds: 2
report:
  paper:
    paper: FedAPT
    table: 6
    cells:
      temperature=0.01: "FedAPT (tau->0: hard key choice)"
      best on validation: FedAPT (tuned tau, value lost in extraction)
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
    table = printed("FedAPT", "6")
    tuned = table[table["method"].str.contains("tuned")].set_index("target")["mean"]
    whole, by_domain = ({row.label: row for row in part.rows} for part in block.parts)
    assert set(whole) == {"temperature=0.01", "temperature=0.1 (best on validation)"}, "validation chose, not a test"
    row = whole["temperature=0.1 (best on validation)"]
    assert row.mean == pytest.approx(tuned.drop("clipart").mean()), "nobody's own domain is the unseen one"
    assert row.dataset == "mean over 5 domains of DomainNet-345"
    row = by_domain["temperature=0.1 (best on validation), clipart"]
    assert (row.ours, row.mean) == (pytest.approx(20.0), tuned["clipart"])
    (note,) = block.notes
    assert "highest validation accuracy" in note
    assert "rule “final”" in note


def test_nothing_is_best_before_all_have_run(make_store):
    store = make_store(ONE_UNSEEN, body=TUNED, fill=lambda cell, seed: cell.number != 2 or seed == 1)
    block = paper.beside(Facts(store))
    assert block is not None
    assert [row.label for row in block.parts[0].rows] == ["temperature=0.01"]


TIMES = """axes: {method.inference: [precomputed, exact]}
seeds: 2
report:
  metric: time/test_seconds
  paper:
    paper: FedAPT
    table: 8
    metric: {time/test_seconds: inference time}
    cells:
      inference=precomputed: FedAPT precomputed keys (seconds)
      inference=exact: FedAPT per-sample text encoding (minutes)
"""


@pytest.mark.parametrize("scale", [[], ["data=domainnet", "clip=vit_b32"]])
def test_times_of_domains_add_up_and_minutes_are_seconds(make_store, scale):
    store = make_store(["method=fedapt", "partition=global_domains", *scale], body=TIMES)
    amend(store, time__test_seconds=lambda cell: 8.5 if cell.label == "inference=exact" else 0.5)
    facts = Facts(store)
    block = paper.beside(facts)
    assert block is not None
    (part,) = block.parts
    assert part.unit == "s"
    assert {row.label: (row.ours, row.mean) for row in part.rows} == {
        "inference=precomputed": (0.5, pytest.approx(19.5 + 26 + 30 + 65 + 67 + 32)),
        "inference=exact": (8.5, pytest.approx(60 * (19 + 39 + 31 + 30 + 60 + 30))),
    }
    assert {row.dataset for row in part.rows} == {"sum over 6 domains of DomainNet-345"}
    assert not any(row.comparable for row in part.rows), "another machine"
    section = sections.paper(facts, against_reference(facts))
    assert section is not None
    assert any("on another machine" in text for text in section.texts)


def test_times_add_up_over_the_domains_that_ran(make_store):
    domains = ["data=domainnet", "clip=vit_b32", "data.domains=[clipart,sketch]"]
    store = make_store(["method=fedapt", "partition=global_domains", *domains], body=TIMES)
    amend(store, time__test_seconds=1.0)
    block = paper.beside(Facts(store))
    assert block is not None
    assert [row.mean for row in block.parts[0].rows] == [pytest.approx(19.5 + 32), pytest.approx(60 * (19 + 30))]


SETS = """axes:
  data: [oxford_pets, flowers102, dtd, caltech101, food101]
  variant: [{label: CoOp, method: coop}, {label: FedPGP, method: fedpgp}]
seeds: 2
report:
  metric: test/harmonic_mean
  paper:
    paper: FedPGP
    table: 1
    metric:
      test/harmonic_mean: HM(local,base,novel)
      test/acc_mean: local acc
      test/base/acc_mean: base acc
      test/novel/acc_mean: novel acc
"""
FIVE = ["oxford_pets", "flowers102", "dtd", "caltech101", "food101"]


def test_an_average_over_data_sets_stands_beside_ours(make_store):
    def accuracy(part: str, cell: Any, seed: int) -> float:
        number = FIVE.index(cell.run.data.name)
        return {"own": 0.9 - 0.1 * number, "base": 0.5 + 0.05 * number * seed, "novel": 0.4}[part]

    def harmonic(*values: float) -> float:
        return len(values) / sum(1 / value for value in values)

    store = make_store(["clip=vit_b16", "partition=base_to_novel"], body=SETS)
    parts = {"test/acc_mean": "own", "test/base/acc_mean": "base", "test/novel/acc_mean": "novel"}
    for cell in store.cells():
        for seed in (1, 2):
            history = store.history(cell, seed)
            history[-1] |= {name: accuracy(part, cell, seed) for name, part in parts.items()}
            history[-1]["test/harmonic_mean"] = harmonic(*(history[-1][name] for name in parts))
            store.put(cell, seed, history, make_result("done", history))
    block = paper.beside(Facts(store))
    assert block is not None
    table = printed("FedPGP", "1")
    table = table[(table["dataset"] == "Average-5") & (table["method"] == "FedPGP")].set_index("metric")["mean"]
    hm, own, base, _ = ({row.label: row for row in part.rows}["FedPGP, average"] for part in block.parts)
    assert [len(part.rows) for part in block.parts] == [12] * 4
    assert (own.ours, own.spread, own.mean) == (pytest.approx(70), pytest.approx(0), table["local acc"])
    seeds = [60.0, 70.0]
    assert (base.ours, base.spread) == (pytest.approx(65), pytest.approx(np.std(seeds, ddof=1)))
    assert hm.ours == pytest.approx(np.mean([harmonic(70, b, 40) for b in seeds])), "of averages, as the paper's"
    assert (hm.dataset, hm.mean) == ("Average-5", table["HM(local,base,novel)"])
    assert base.comparable
    assert base.gap == pytest.approx(65 - table["base acc"])
    assert len(block.notes) == 2


def test_an_average_needs_all_its_data_sets(make_store):
    run = {"CoOp": FIVE, "FedPGP": FIVE[1:]}
    store = make_store(
        ["clip=vit_b16", "partition=base_to_novel"],
        body=SETS,
        fill=lambda cell, seed: cell.run.data.name in run[cell.varied["variant"]["label"]],
    )
    block = paper.beside(Facts(store, metric="test/acc_mean"))
    assert block is not None
    assert [row.label for row in block.parts[0].rows if row.dataset == "Average-5"] == ["CoOp, average"]
    four = make_store(
        ["clip=vit_b16", "partition=base_to_novel", f"axes.data=[{','.join(FIVE[:4])}]"], body=SETS, name="four"
    )
    block = paper.beside(Facts(four, metric="test/acc_mean"))
    assert block is not None
    assert len(block.parts[0].rows) == 8
    assert "Average-5" not in {row.dataset for row in block.parts[0].rows}


def test_printed_averages_are_over_the_data_sets_printed_one_by_one():
    """The rule by which ours are averaged: means of accuracies, and their harmonic mean."""
    for table in ("1", "10"):
        found = printed("FedPGP", table)
        means = found[found["dataset"] != "Average-5"].groupby(["method", "metric"])["mean"].mean().unstack()
        average = found[found["dataset"] == "Average-5"].set_index(["method", "metric"])["mean"].unstack()
        parts = ["local acc", "base acc", "novel acc"]
        assert (means[parts] - average[parts]).abs().max(axis=None) < 0.21, "DTD's novel accuracy is a misprint"
        harmonic = 3 / (1 / average[parts]).sum(axis=1)
        assert (harmonic - average["HM(local,base,novel)"]).abs().max() < 0.02
        assert (means["HM(local,base,novel)"] - average["HM(local,base,novel)"]).abs().max() > 0.9
