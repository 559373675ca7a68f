"""Reports of searched studies: trials named, ordered, coloured; the best of each search."""

import math

import numpy as np
import pytest

from fpl_tune import report
from fpl_tune.core.formatting import short
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.foresight import LEAST
from fpl_tune.findings.names import LONG
from fpl_tune.report import answer, charts, curves, search, table, tuned
from fpl_tune.report.front import scatter
from fpl_tune.search.halving import HALVING, resolved
from fpl_tune.study.results import make_result
from fpl_tune.study.schema import Effective

from ..conftest import Asked, drawn_history, there
from .conftest import amend, chosen_values, findings_of, store_of

BODY = """
axes: {method: [promptfl, fedprox]}
references: [{method: zeroshot}]
seeds: 2
search:
  {sampler: random, trials: 6, confirm: 0, space: {protocol.epochs: [1, 2], protocol.participation: [0.5, 1.0]}}
"""


@pytest.fixture
def searched(make_store):
    """A search over two methods, whose trials are better the larger their lr; promptfl has no μ."""
    store = make_store(body=BODY, name="search", rounds=3, fill=lambda cell, seed: False)
    asked = Asked(store.spec())
    cells = [*asked.search.references, *asked.all()]
    store.begin(store.spec(), cells, effective=Effective(halving=True, spaces=asked.search.files))
    for cell in cells:
        for seed in (1, 2):
            history = drawn_history(seed, 0.5 + 0.1 * cell.run.optim.lr, rounds=3, clients=8)
            store.put(cell, seed, make_result("done", history, split_hash=f"split{seed}"))
    return findings_of(store)


def test_tables_of_searches_go_from_the_best_down_and_name_trials_shortly(searched):
    found = table.table(searched, compare(searched))
    names, body = found.header, [row.cells for row in found.rows]
    val = [cells[names.index("validation accuracy (%)")].text for cells in body[:-1]]
    assert val == sorted(val, reverse=True)
    labels = [cells[0].text for cells in body]
    assert labels[-1] == "zeroshot"
    assert all(len(label) <= LONG for label in labels)
    assert len(set(labels)) == len(labels)
    assert names.index("epochs") < names.index("validation accuracy (%)"), "what is searched comes first"
    assert "status" not in names, "the same for all cells"


def test_the_best_of_each_search_is_chosen_by_validation(searched):
    chosen = chosen_values(searched)
    assert [*chosen] == ["promptfl", "fedprox"]
    for method, found in chosen.items():
        mine = [cell for cell in searched.own if searched.names.axes_label(cell) == method]
        best = max(mine, key=lambda cell: searched.frame.loc[cell.id, "val"])
        assert tuned.entries(searched)[method][""].mean == searched.frame.loc[best.id, "mean"]
        assert found["lr"] in ([f"{best.run.optim.lr:.3g}{mark}"] for mark in ("", "†"))


def test_published_trials_are_marked(searched):
    rows = table.table(searched, compare(searched)).rows
    marked = {row.number for row in rows if row.cells[0].text.endswith("(published)")}
    assert marked == {searched.numbers[cell.id] for cell in searched.own if cell.id in searched.published} != set()


def test_history_is_the_best_so_far_of_each_part(searched):
    best: dict[str, float] = {}
    line = search.history(searched)["layer"][1]["data"]["values"]
    trials = sorted(searched.own, key=lambda cell: searched.costs[cell.id])
    for row, cell in zip(line, trials, strict=True):
        best[searched.names.axes_label(cell)] = max(
            best.get(searched.names.axes_label(cell), 0), searched.frame.loc[cell.id, "val"]
        )
        assert row["objective"] == best[searched.names.axes_label(cell)]


def test_references_of_a_name_are_one_series_of_the_history(make_store):
    body = BODY.replace("axes: {", "axes: {partition: [disjoint, iid], ")
    store = make_store(body=body, name="search", rounds=3, fill=lambda cell, seed: False)
    asked = Asked(store.spec())
    cells = [*asked.search.references, *asked.all()]
    store.begin(store.spec(), cells)
    for cell in cells:
        store.put(cell, 1, make_result("done", drawn_history(1, 0.5, rounds=3, clients=8)))
    drawn = search.history(findings_of(store))
    (dashed,) = (layer for layer in drawn["layer"] if layer["mark"]["type"] == "rule")
    assert [row["series"] for row in dashed["data"]["values"]] == ["zeroshot"] * 2


def test_trials_are_numbered_in_each_search(searched):
    for part in ("promptfl", "fedprox"):
        mine = [cell for cell in searched.own if searched.names.axes_label(cell) == part]
        assert [cell.trial_number for cell in sorted(mine, key=lambda cell: cell.number)] == list(range(6))
    assert {row["label"] for row in charts.cell_rows(searched)} >= {"promptfl trial 0", "fedprox trial 0"}


def test_lines_of_parallel_coordinates_meet_an_axis_where_the_value_lies(searched):
    part = there(curves.explore(searched, compare(searched)))
    rows = part.charts["parallel"][0]["data"]["values"]
    scale = math.log if searched.names.logarithmic("optim.lr") else float
    rates = {searched.numbers[cell.id]: scale(cell.run.optim.lr) for cell in searched.own}
    low, high = min(rates.values()), max(rates.values())
    place = [short(axis) for axis in searched.axes].index("lr")
    places = {row["number"]: row["place"][place] for row in rows}
    assert places == pytest.approx({n: (rate - low) / (high - low) for n, rate in rates.items()}, abs=1e-4)


def test_importance_is_of_each_search_and_warns_of_a_sampler_that_learns(searched):
    section = there(curves.matters(searched, compare(searched)))
    assert section.texts[0].startswith("promptfl, fedprox: too few trials (")


HALVED = """
seeds: 2
search: {sampler: random, trials: 40, confirm: 0, only: [optim.lr]}
prune: {rule: halving, first_rung: 3, hedge: 2}
"""


@pytest.fixture
def hedged(make_store):
    """hedged(curve, ...): a halved search of nine rounds; curve(x, round) is the accuracy of a trial at x in [0, 1]."""
    made = []

    def make(curve, *overrides, diverges=()):
        name = f"search{len(made)}"
        made.append(name)
        store = make_store(["protocol.rounds=9", *overrides], body=HALVED, name=name, fill=lambda cell, seed: False)
        cells, halves = Asked(store.spec()).all(), resolved(store.spec()).rule == HALVING
        store.begin(store.spec(), cells, effective=Effective(halving=halves))
        drawn = np.random.default_rng(0).permutation(len(cells)) / len(cells)
        whole = [cell for cell in cells if cell.hedged or cell.published]
        for cell, x in zip(cells, drawn, strict=True):
            last = 9 if cell in whole else 3
            history = drawn_history(1, 0.5, rounds=last, clients=2)
            for record in history:
                record["val/acc_mean"] = float(curve(x, record["round"]))
            broken = cell.hedged and whole.index(cell) in diverges
            for seed in (1, 2) if cell.published else (1,):
                status = "diverged" if broken else "done" if last == 9 else "partial"
                store.put(cell, seed, make_result(status, history, split_hash=f"split{seed}"))
        store.end(complete=True, exhausted=())
        return findings_of(store)

    return make


def test_early_rounds_that_foresee_the_end_are_said_with_their_rank_correlation(hedged):
    findings = hedged(lambda x, number: 0.3 + 0.02 * number + 0.3 * x)
    (found,) = findings.foresights
    asked = [cell for cell in findings.own if cell.id not in findings.published]
    assert found.trials == len(asked) // 2 >= LEAST, "neither published points nor what a rung has chosen"
    assert found.by_round[3] == pytest.approx(1.0)
    comparisons = compare(findings)
    text = "after round 3 the rank correlation with the final score is 1.00, over "
    text += f"{found.trials} trials that passed every rung"
    assert f"Early rounds: {text}." in answer.decided(findings, comparisons).texts
    assert "Beware" not in answer.sentence(findings, comparisons)


def test_early_rounds_that_mislead_are_a_warning_in_the_answer_with_its_remedy(hedged):
    """Curves cross between rounds 5 and 6."""
    findings = hedged(lambda x, number: 0.5 + 0.3 * x * (1 if number > 5 else -1))
    comparisons = compare(findings)
    (found,) = findings.foresights
    assert answer.sentence(findings, comparisons).endswith(
        f" Beware: after round 3 the rank correlation with the final score is only -1.00, over {found.trials} trials "
        "that passed every rung, so halving may have stopped better ones. Set prune.first_rung=6 (1.00 there) or "
        "prune.rule=null."
    )
    assert not [text for text in answer.decided(findings, comparisons).texts if text.startswith("Early rounds")]
    report.build(store_of(findings))
    assert " Beware: after round 3 " in report.sentence(store_of(findings))


def test_where_no_later_round_foresees_the_end_the_remedy_is_to_stop_none_early(hedged):
    findings = hedged(lambda x, number: 0.5 + 0.3 * x * (1 if number == 9 else -1))
    assert answer.sentence(findings, compare(findings)).endswith("better ones. Set prune.rule=null.")


def test_trials_that_diverged_have_no_place_in_a_ranking_of_ends(hedged):
    findings = hedged(lambda x, number: 0.3 + 0.3 * x, diverges=range(6))
    (found,) = findings.foresights
    assert found.diverged > 0
    assert not answer.sentence(findings, compare(findings)).startswith("So far"), "they are over"
    (text,) = [text for text in answer.decided(findings, compare(findings)).texts if "completed" in text]
    assert f" of {len(findings.own)} trials completed; {found.diverged} diverged; the others were stopped early" in text
    assert f"that passed every rung ({found.diverged} that diverged left out)" in found.figures()
    before = hedged(lambda x, number: 0.3 + 0.3 * x)
    assert found.trials + found.diverged == before.foresights[0].trials


@pytest.mark.parametrize(
    ("curve", "overrides"),
    [
        (lambda x, number: 0.3 + 0.3 * x, ["search.trials=14"]),
        (lambda x, number: 0.5, []),
        (lambda x, number: 0.3 + 0.3 * x, ["prune.hedge=null"]),
        (lambda x, number: 0.3 + 0.3 * x, ["prune.rule=null"]),
    ],
    ids=["few trials", "no differences", "no hedge", "no halving"],
)
def test_of_early_rounds_nothing_is_said_without_grounds(hedged, curve, overrides):
    assert hedged(curve, *overrides).foresights == []


def test_a_front_is_said_and_marked_and_nothing_is_best(searched, make_store):
    several = "search.objectives=[val/acc_mean,comm/total_bytes]"
    cells = store_of(searched).cells()
    store = make_store([several], body=BODY, name="search", fill=lambda cell, seed: False)
    store.begin(store.spec(), cells, effective=Effective(halving=True))
    amend(store, comm__up_bytes=lambda cell: 1e6 * cell.run.optim.lr)
    findings = findings_of(store)
    comparisons = compare(findings)
    front = there(findings.choice)
    assert findings.best is None
    counted = front.by.replace("val/acc_mean and comm/total_bytes", "validation accuracy and communication")
    assert answer.sentence(findings, comparisons).endswith(f". {counted}.")
    marked = {row.number for row in table.table(findings, comparisons).rows if row.kind == "best"}
    assert marked == {findings.numbers[cell.id] for cell in front.cells}
    assert f"{front.by} (bold): no cell is best" in table.note(findings, comparisons)
    assert [*answer.decided(findings, comparisons).charts] == ["front_communication", "history"]
    line = search.history(findings)["layer"][1]
    val = max(findings.frame.loc[cell.id, "val"] for cell in findings.own)
    assert line["encoding"]["y"]["title"] == "validation accuracy", "the first objective"
    assert max(row["objective"] for row in line["data"]["values"]) == val
    points = scatter(findings, "comm/total_bytes")["data"]["values"]
    assert {row["number"] for row in points if row.get("best")} == marked
    history = store.history(cells[-1], 1)[:1]
    for seed in (1, 2):
        store.forget(cells[-1], seed)
    store.put(cells[-1], 1, make_result("partial", history))
    store.end(complete=True, exhausted=())
    later = findings_of(store)
    assert later.pruned == {cells[-1].id}
    drawn = {row.get("number") for row in scatter(later, "comm/total_bytes")["data"]["values"]}
    assert drawn - {None} == {later.numbers[cell.id] for cell in later.own if cell.id not in later.pruned}
    assert findings.crossed is None
    assert tuned.panel(findings, comparisons) is None
    report.build(store)
    assert "no cell is best" in (store.folder / "report.html").read_text()
