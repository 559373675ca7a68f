"""What a study decides: sections of the page, figures recomputed by other code, rules of selection, bad input."""

# The stubs of pandas and scipy do not know the types of selected rows and of test results.
# pyright: reportAttributeAccessIssue=false

import itertools
import math

import numpy as np
import pytest

from fpl_tune.findings.comparisons import compare
from fpl_tune.report import answer, curves, robustness, table

from ..conftest import there
from .conftest import amend, findings_of, put

SWEEP = """axes: {method.n_ctx: [1, 2, 4, 8]}
references: [{method: zeroshot}]
seeds: 3
"""


METHODS = """axes: {method: [promptfl, fedpgp, coop, fedprox]}
references: [{method: zeroshot}]
seeds: 3
"""


def clients(store, label, seed):
    (cell,) = [cell for cell in store.cells() if cell.label == label]
    return store.history(cell, seed)[-1]["clients/test"]


def test_the_numbers_of_a_comparison_recomputed(make_store):
    """Difference and interval of a comparison, from the records by hand."""
    store = make_store(body=SWEEP, level=lambda cell: 0.5 + 0.02 * cell.number)
    findings = findings_of(store)
    comparisons = compare(findings, "zeroshot")
    gaps = []
    for seed in (1, 2, 3):
        ours, theirs = clients(store, "n_ctx=8", seed), clients(store, "zeroshot", seed)
        gaps.append(sum(x - y for x, y in zip(ours, theirs, strict=True)) / len(ours))
    mean = sum(gaps) / 3
    table = np.array([[np.mean(clients(store, c.label, s)) for s in (1, 2, 3)] for c in store.cells()])
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    reference = [c.label for c in store.cells()].index("zeroshot")
    differences = np.delete(table, reference, 0) - table[reference]
    pooled = max(2 * (rest**2).sum() / 8, differences.var(axis=1, ddof=1).mean())
    corrected = 3.2060 * math.sqrt(pooled / 3)  # t(1 - 0.05 / 8, 8)
    own = float(np.var(gaps, ddof=1))
    halfway = 4.3147 * math.sqrt((pooled + own) / 2 / 3)  # t(1 - 0.05 / 8, 4)
    half = max(corrected, halfway, 4.302652729911275 * math.sqrt(own / 3))
    (cell,) = [c for c in store.cells() if c.label == "n_ctx=8"]
    row = comparisons.frame.loc[cell.id]
    assert row["difference"] == pytest.approx(mean)
    assert (row["low"], row["high"]) == (pytest.approx(mean - half, abs=1e-4), pytest.approx(mean + half, abs=1e-4))
    assert row["seeds"] == 3
    assert findings.references[0].id not in comparisons.frame.index


def test_the_page_says_what_is_decided_and_how_wide_the_intervals_are(make_store):
    findings = findings_of(make_store(body=METHODS, level=lambda cell: 0.5 + 0.03 * cell.number))
    comparisons = compare(findings)
    text = answer.decided(findings, comparisons).texts[0]
    width = 100 * ((comparisons.frame["high"] - comparisons.frame["low"]) / 2).median()
    number = comparisons.frame["verdict"].value_counts()
    order = ("better", "worse", "equal", "identical", "undecided")
    told = ", ".join(f"{number[verdict]} {verdict}" for verdict in order if verdict in number)
    assert text == f"Compared with zeroshot: {told} ({findings.basis}). The median interval is ± {width:.2f} points."
    losses = findings_of(make_store(body=METHODS), metric="train/loss")
    (text,) = (text for text in answer.decided(losses, compare(losses)).texts if text.startswith("Compared with"))
    assert "point" not in text, "of accuracies alone"
    gap = comparisons.frame.loc[findings.best.id, "difference"] if findings.best else 0
    assert f"{100 * gap:+.2f} points against zeroshot" in answer.sentence(findings, comparisons)


@pytest.mark.parametrize("of_reference", [False, True])
def test_a_run_that_lies_apart_is_said_once(make_store, of_reference):
    store = make_store(body=SWEEP)
    cell = store.cells()[-1 if of_reference else 1]
    history = store.history(cell, 2)
    history[-1]["clients/test"] = [value - 0.3 for value in history[-1]["clients/test"]]
    put(store, cell, 2, records=lambda: history)
    findings = findings_of(store)
    texts = answer.decided(findings, compare(findings, "zeroshot")).texts
    (text,) = (text for text in texts if "is an outlier, -" in text)
    compared = "n_ctx=1, n_ctx=2, n_ctx=4 and 1 more" if of_reference else "n_ctx=2"
    assert text.startswith(f"{compared}: seed 2 is an outlier, -"), text


def test_what_is_said_of_comparisons_follows_the_order_of_cells(make_store):
    store = make_store(body=SWEEP)
    for number, seed in ((0, 3), (1, 1)):
        history = store.history(cell := store.cells()[number], seed)
        history[-1]["clients/test"] = [value - 0.3 for value in history[-1]["clients/test"]]
        put(store, cell, seed, records=lambda history=history: history)
    findings = findings_of(store)
    texts = [text for text in answer.decided(findings, compare(findings, "zeroshot")).texts if "outlier" in text]
    assert [text.partition(" is an ")[0] for text in texts] == ["n_ctx=1: seed 3", "n_ctx=2: seed 1"]


def test_ties_of_the_choice_are_said(make_store):
    findings = findings_of(make_store(body=SWEEP, level=lambda cell: 0.5))
    said = "On validation the choice ties with n_ctx=2, n_ctx=4, n_ctx=8; the smaller values are taken."
    assert said in answer.decided(findings, compare(findings)).texts


def test_the_gain_over_several_data_sets_is_a_mean(make_store):
    body = "axes: {data: [dtd, food101], method: [promptfl, coop]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
    findings = findings_of(make_store(["clip=vit_b16"], body=body, level=lambda cell: 0.4 + 0.1 * (cell.number % 2)))
    comparisons = compare(findings)
    gap = 100 * comparisons.frame.loc[findings.chosen, "difference"].mean()
    said = answer.sentence(findings, comparisons)
    mean = 100 * findings.frame.loc[findings.chosen, "mean"].mean()
    assert said.startswith(f"coop is best on validation over 2 settings, with a mean of {mean:.2f} % test accuracy")
    verdicts = said.partition(f"; {gap:+.2f} points against zeroshot on average: ")[2].rstrip(".").split(", ")
    counts = comparisons.frame.loc[findings.chosen, "verdict"].value_counts().to_dict()
    assert sorted(verdicts) == sorted(f"{verdict} in {number}" for verdict, number in counts.items())


def test_settings_without_the_reference_are_counted(make_store):
    body = "axes: {data: [dtd, food101], method: [promptfl, coop]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"

    def ran(cell, seed):
        return cell.candidate or cell.varied["data"] != "dtd"

    store = make_store(["clip=vit_b16"], body=body, fill=ran, level=lambda cell: 0.4 + 0.1 * (cell.number % 2))
    findings = findings_of(store)
    said = answer.sentence(findings, compare(findings))
    assert said.endswith(" against zeroshot on average: identical in 1, not compared in 1.")


def test_one_seed_is_said_and_no_figure_is_made_of_it(make_store):
    findings = findings_of(make_store(["seeds=1"], body=METHODS))
    comparisons = compare(findings)
    assert set(comparisons.frame["verdict"]) == {"undecided"}
    assert comparisons.frame[["low", "high"]].isna().to_numpy().all()
    assert "(one seed: no interval)" in answer.sentence(findings, comparisons)


def test_what_other_rules_of_reporting_add_is_a_mean_over_cells(make_store):
    store = make_store(body=METHODS, fill=lambda cell, seed: cell.number != 1 or seed < 3)
    findings = findings_of(store)
    added = []
    for rule in ("best_test", "mean_last5"):
        gaps = []
        for cell in store.cells():
            stored = [run.rules for run in store.row(cell).results.values()]
            gaps.append(np.mean([rules[rule]["test/acc_mean"] - rules["final"]["test/acc_mean"] for rules in stored]))
        added.append(f"{100 * np.mean(gaps):+.2f}")
    (text,) = there(robustness.rules(findings, compare(findings))).texts
    assert text.endswith(f"{added[0]} for the best test round, {added[1]} for the mean of the last five evaluated "
                         "rounds.")  # fmt: skip
    seconds = findings_of(store, metric="time/seconds")
    assert robustness.rules(seconds, compare(seconds)) is None


def test_nothing_explains_what_does_not_vary_and_few_trials_say_so(make_store):
    body = "axes: {method.n_ctx: [1, 2, 4], optim.lr: [0.1, 0.2]}\nseeds: 2\n"
    findings = findings_of(make_store(body=body, level=lambda cell: 0.1 + 0.2))
    section = there(curves.matters(findings, compare(findings)))
    assert section.texts == ["no share of n_ctx, lr: the metric does not vary."]
    assert not section.charts


def test_data_sets_are_compared_by_rank(make_store):
    body = "axes: {data: [oxford_pets, dtd, food101], method: [promptfl, coop, fedpgp]}\nseeds: 2\n"
    findings = findings_of(make_store(["clip=vit_b16"], body=body, level=lambda cell: 0.4 + 0.1 * (cell.number % 3)))
    section = there(table.settings(findings, compare(findings)))
    rows = [[td.text for td in row.cells] for row in section.tables[0].rows]
    assert [row[:2] for row in rows] == [["fedpgp", "1.00"], ["coop", "2.00"], ["promptfl", "3.00"]]
    mine = [findings.by_seed(cell, findings.metric).values() for cell in findings.cells if "fedpgp" in cell.label]
    assert rows[0][2] == f"{100 * np.mean([*itertools.chain(*mine)]):.2f}"


@pytest.mark.parametrize(("metric", "first"), [("test/acc_mean", "fedpgp"), ("test/ece", "promptfl"),
                                               ("test/acc_std", "promptfl")])  # fmt: skip
def test_the_first_rank_over_settings_is_the_best_value_in_the_metrics_direction(make_store, metric, first):
    body = "axes: {data: [oxford_pets, dtd], method: [promptfl, coop, fedpgp]}\nseeds: 2\n"
    store = make_store(["clip=vit_b16"], body=body, level=lambda cell: 0.4 + 0.1 * (cell.number % 3))
    amend(store, **{name: lambda cell: 0.1 + 0.1 * (cell.number % 3) for name in ("test__ece", "test__acc_std")})
    findings = findings_of(store, metric=metric)
    (ranks,) = there(table.settings(findings, compare(findings))).tables
    assert [td.text for td in ranks.rows[0].cells][:2] == [first, "1.00"]


def test_one_setting_has_no_ranks(make_store):
    body = "axes: {partition.alpha: [0.1, 1.0], method: [promptfl, coop]}\nseeds: 2\n"
    for alphas, ranked in (((0.1,), False), ((0.1, 1.0), True)):
        store = make_store(
            ["partition=dirichlet"],
            body=body,
            fill=lambda cell, seed, run=alphas: cell.varied["partition.alpha"] in run,
        )
        findings = findings_of(store)
        assert (table.settings(findings, compare(findings)) is not None) == ranked


def test_cells_on_other_partitions_are_not_compared(make_store):
    """Neither a verdict nor advice on seeds would mean anything; cells without a seed in common still say so."""
    store = make_store(["seeds=2"], body=SWEEP)
    apart = store.cells()[0]
    for seed in (1, 2):
        put(store, apart, seed, split_hash="other")
    findings = findings_of(store)
    comparisons = compare(findings)
    assert apart.id not in comparisons.frame.index
    assert comparisons.not_compared == 1
    assert "Not compared: 1 cell on other seeds, data or partitions." in table.cells(findings, comparisons).texts


def test_settings_that_are_not_ranked_are_compared_with_the_reference_of_each(make_store):
    body = "axes: {partition.alpha: [0.1, 1.0]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
    findings = findings_of(make_store(body=body, level=lambda cell: 0.4 + 0.2 * cell.candidate + 0.1 * cell.number))
    comparisons = compare(findings)
    said = answer.sentence(findings, comparisons)
    assert findings.choice is None
    for cell in findings.own:
        (base,) = [
            one for one in findings.references if one.varied["partition.alpha"] == cell.varied["partition.alpha"]
        ]
        mean, test = findings.frame["mean"], comparisons.frame.loc[cell.id]
        assert test["reference"] == base.id
        gap = 100 * (mean[cell.id] - mean[base.id])
        assert f"{100 * mean[cell.id]:.2f} % at {cell.label} ({gap:+.2f} points: {test['verdict']})" in said
    assert "in parentheses against zeroshot there. Values of data and partitions are not ranked" in said


def test_a_reference_that_is_a_cell_is_shown_with_its_label(make_store):
    body = "axes: {optim.lr: [0.1, 0.2]}\nreferences: [{label: usual, optim.lr: 0.1}]\nseeds: 3\n"
    findings = findings_of(make_store(body=body))
    shown = [row.cells[0].text for row in table.table(findings, compare(findings)).rows]
    assert shown == ["lr=0.1 (reference usual)", "lr=0.2"]


def test_one_seed_against_a_reference_has_no_interval(make_store):
    body = "axes: {optim.lr: [0.1, 0.2]}\nreferences: [{method: zeroshot}]\nseeds: 1\n"
    findings = findings_of(make_store(body=body))
    assert "against zeroshot (one seed: no interval)" in " ".join(answer.decided(findings, compare(findings)).texts)
