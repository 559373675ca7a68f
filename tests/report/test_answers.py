"""The first sentence of the page, on studies whose truth is known: plateaus, peaks, gains, ties and collapses."""

import re

import pytest

from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import gap, joined, upper
from fpl_tune.findings.comparisons import TREND, compare
from fpl_tune.report import answer, charts, curves, main_chart, search, sweep, table
from fpl_tune.study.cells import label
from fpl_tune.study.results import make_result

from ..conftest import there
from .conftest import SEARCH, findings_of, named, reach, store_of

AXIS = """axes: {optim.lr: [0.001, 0.002, 0.005, 0.01, 0.02, 0.05]}
references: [{method: zeroshot}]
seeds: 5
"""


def said(findings):
    return answer.sentence(findings, compare(findings))


def along(make_store, values, body=AXIS, noise=0.001, overrides=()):
    """The findings of a sweep whose cells have these levels, in the axis' order; the reference lies far below."""
    store = make_store(overrides, body=body, clients=4)
    reach(store, lambda cell: dict(enumerate(values)).get(cell.number, 0.2), lambda cell: noise)
    return findings_of(store)


# -- sweeps --------------------------------------------------------------------------------------------------


def test_a_plateau_and_where_it_ends(make_store):
    findings = along(make_store, [0.9, 0.9, 0.9, 0.9, 0.87, 0.8])
    assert findings.kind == "sweep"
    text = said(findings)
    assert re.match(r"lr from 0.001 to 0.01 equal within ± 1 point \((89.9|90.0) to 90.[01] %\); ", text), text
    assert re.search(r"accuracy falls from lr = 0.02 on \(8[67].\d, (79.9|80.0|80.1) %\)\.$", text), text


def test_a_peak_at_the_edge_says_that_the_axis_ends_there(make_store):
    text = said(along(make_store, [0.6, 0.65, 0.7, 0.75, 0.8, 0.9]))
    assert text.startswith("lr = 0.05 is best, with 90.")
    assert "accuracy is lower up to lr = 0.02 (" in text
    assert text.endswith("The best value is the largest that was tried.")
    text = said(along(make_store, [0.9, 0.8, 0.75, 0.7, 0.65, 0.6]))
    assert "accuracy falls from lr = 0.002 on (" in text
    assert text.endswith("The best value is the smallest that was tried.")


def test_a_peak_in_the_middle_has_two_sides(make_store):
    text = said(along(make_store, [0.7, 0.8, 0.9, 0.9, 0.8, 0.7]))
    assert text.startswith("lr from 0.005 to 0.01 equal within ± 1 point (")
    assert "lower up to lr = 0.002 (" in text
    assert "falls from lr = 0.02 on (" in text


def test_an_axis_without_effect_makes_no_difference(make_store):
    text = said(along(make_store, [0.9] * 6))
    assert text.startswith("lr makes no difference: all 6 values from 0.001 to 0.05 are equal within ± 1 point (")


def test_noise_leaves_values_that_cannot_be_told_apart(make_store):
    text = said(along(make_store, [0.5] * 6, noise=0.03))
    assert text.startswith("lr from 0.001 to 0.05 do not differ significantly with 5 seeds (")


def test_a_value_that_collapses_is_worse_and_does_not_hide_the_others(make_store):
    text = said(along(make_store, [0.9, 0.9, 0.1, 0.9, 0.9, 0.9]))
    assert "worse at 0.005 (" in text or "up to lr = 0.005" in text
    text = said(along(make_store, [0.9, 0.9, 0.9, 0.9, 0.9, 0.1]))
    assert text.startswith("lr from 0.001 to 0.02 equal within ± 1 point (")
    assert re.search(r"; accuracy falls to (10\.\d|9\.\d) % at lr = 0\.05\.$", text)


def test_references_do_not_widen_the_comparisons_of_an_axis(make_store):
    """A reference whose seeds vary fifty times as much leaves the intervals of the axis' cells as they are."""
    steady = along(make_store, [0.9, 0.9, 0.9, 0.9, 0.87, 0.8])
    store = make_store(body=AXIS, clients=4, name="wild")
    levels = dict(enumerate([0.9, 0.9, 0.9, 0.9, 0.87, 0.8]))
    reach(store, lambda cell: levels.get(cell.number, 0.2), lambda cell: 0.05 if cell.is_reference else 0.001)
    wild = findings_of(store)
    own = [cell.id for cell in wild.own if cell.id not in wild.chosen]
    for end in ("low", "high"):
        assert compare(wild).frame.loc[own, end].tolist() == pytest.approx(compare(steady).frame.loc[own, end].tolist())


@pytest.mark.parametrize(
    ("overrides", "body", "words"),
    [
        ([], "axes: {optim.lr: [0.01, 0.1]}\nseeds: 4\n", "lr makes no difference: all 2 values from 0.01 to 0.1"),
        (["seeds=1"], AXIS, "; one seed cannot separate the values ("),
        ([], "axes: {clip.dtype: [float32, float16]}\nseeds: 3\n", "is best on validation, with "),
        ([], "axes: {optim.lr: [0.01]}\nseeds: 3\n", "is best on validation, with "),
    ],
)
def test_few_values_one_seed_and_names_have_a_true_sentence(make_store, overrides, body, words):
    assert words in said(along(make_store, [0.9] * 6, body=body, overrides=overrides))


def test_missing_cells_are_left_out_and_said(make_store):
    store = make_store(body=AXIS, clients=4, fill=lambda cell, seed: cell.number != 2)
    reach(store, lambda cell: 0.9 if cell.number < 5 else 0.5)
    text = said(findings_of(store))
    assert text.startswith("So far, 6 of 7 cells done: lr from 0.001 to 0.02 equal within")
    assert "0.005" not in text


def test_where_a_sweep_falls_the_table_says_so_too(make_store):
    findings = along(make_store, [0.9, 0.9, 0.885, 0.88, 0.87, 0.86], noise=0.012)
    comparisons, result = compare(findings), there(findings.sweep.result)
    verdicts = comparisons.frame["verdict"]
    assert {verdicts[key] for key in (*result.lower, *result.upper)} == {TREND, "worse"}
    assert {key for key in verdicts.index[verdicts == TREND]} <= {*result.lower, *result.upper}
    assert f"{TREND}: the interval contains 0" in table.note(findings, comparisons)
    others = compare(findings, "zeroshot")
    assert TREND not in {*others.frame["verdict"]}


def test_an_ablation_says_what_changes_from_its_reference_in_each_setting(make_store):
    split = "split: [{label: disjoint, partition: disjoint}, {label: equal, partition: iid}]"
    variants = "variant: [{label: full}, {label: short, method.n_ctx: 4}, {label: long, method.n_ctx: 32}]"
    for body, settings in ((f"{{{variants}, {split}}}", ["disjoint", "equal"]), (f"{{{variants}}}", [""])):
        store = make_store(body=f"axes: {body}\nreport: {{reference: full}}\nseeds: 3\n", clients=4)
        reach(store, lambda cell: 0.8 - 0.05 * (cell.number > 1) - 0.1 * (cell.number % 2))
        findings = findings_of(store)
        tests, parts = compare(findings).frame, said(findings).removesuffix(".").split("; ")
        assert parts[0].startswith("full reaches ")
        assert [part.split(" ")[0] for part in parts] == ["full", "short", "long"]
        for name, part in zip(("short", "long"), parts[1:], strict=True):
            for setting, text in zip(settings, part.split("), "), strict=True):
                where = f" in {setting}" if setting else ""
                label = ", ".join(filter(None, [name, setting]))
                test = tests.loc[there(next((c.id for c in findings.cells if c.label == label), None))]
                assert f"{gap(test['difference'], findings.metric)}{where} (" in text
                assert f": {test['verdict']}" in text


def test_of_many_comparisons_with_the_reference_the_decided_ones_are_named(make_store):
    split = "split: [{label: disjoint, partition: disjoint}, {label: equal, partition: iid}]"
    lengths = "".join(f", {{label: n{n}, method.n_ctx: {n}}}" for n in (2, 3, 4, 5, 6))
    body = f"axes: {{variant: [{{label: full}}{lengths}], {split}}}\nreport: {{reference: full}}\nseeds: 5\n"
    store = make_store(body=body, clients=4)
    reach(store, lambda cell: 0.8 - 0.2 * ("n4, disjoint" in cell.label), lambda cell: 0.01)
    findings = findings_of(store)
    verdicts = compare(findings).frame["verdict"].value_counts()
    assert verdicts["worse"] == 1
    text = said(findings)
    assert [name for name in ("n2", "n3", "n4", "n5", "n6") if f"{name} " in text] == ["n4"]
    assert text.endswith(f": worse); elsewhere {joined([f'{n} {v}' for v, n in verdicts.items() if v != 'worse'])}.")


def test_a_sweep_over_settings_is_of_the_mean_over_them(make_store):
    body = "axes: {data: [dtd, food101], optim.lr: [0.001, 0.01, 0.1]}\nseeds: 5\n"
    store = make_store(["clip=vit_b16"], body=body, clients=4)
    level = {0.001: 0.8, 0.01: 0.8, 0.1: 0.7}
    reach(store, lambda cell: level[cell.run.optim.lr] - (0.3 if cell.run.data.name == "dtd" else 0))
    text = said(findings_of(store))
    assert text.startswith("Over 2 settings, lr from 0.001 to 0.01 equal within ± 1 point (6")
    assert re.search(
        r"accuracy falls to 5[45]\.\d % at lr = 0\.1\. The best value is the smallest that was tried\.$", text
    )


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ({("dtd", 0.001)}, "Over 2 settings, lr makes no difference: all 2 values from 0.01 to 0.1 are equal"),
        ({("dtd", 0.001), ("food101", 0.01)}, "lr = 0.1 alone has results in all 2 settings: "),
        (
            {("dtd", 0.001), ("food101", 0.01), ("dtd", 0.1)},
            "No value is chosen, since none has results in every setting.",
        ),
    ],
)
def test_values_of_a_sweep_are_compared_over_the_same_settings(make_store, missing, text):
    """dtd is harder by 30 points: a value that lacks it would seem to be the best one."""
    body = "axes: {data: [dtd, food101], optim.lr: [0.001, 0.01, 0.1, 1.0]}\nseeds: 5\n"

    def ran(cell, seed):
        return cell.run.optim.lr < 1 and (cell.run.data.name, cell.run.optim.lr) not in missing

    store = make_store(["clip=vit_b16"], body=body, clients=4, fill=ran)
    reach(store, lambda cell: 0.5 if cell.run.data.name == "dtd" else 0.8)
    findings = findings_of(store)
    whole = [lr for lr in (0.001, 0.01, 0.1) if not any(lr == other for _, other in missing)]
    compared = [[cell.run.optim.lr for cell in group] for group in findings.sweep.cells_by_value]
    assert compared == [[lr] * 2 for lr in whole]
    assert [*findings.sweep.means.values()] == pytest.approx([0.65] * len(whole), abs=0.002)
    assert text in said(findings)


def test_intervals_of_a_sweep_are_explained_where_there_are_any(make_store):
    for overrides in ([], ["seeds=1"]):
        findings = along(make_store, [0.9, 0.9, 0.87, 0.8, 0.7, 0.6], overrides=overrides)
        texts = " ".join(there(answer.decided(findings, compare(findings))).texts)
        assert ("The median interval is ±" in texts) == (not overrides)
        assert ("Intervals compare values one by one" in texts) == (not overrides)


def test_the_chart_of_a_sweep_is_scaled_to_its_cells(make_store):
    findings = along(make_store, [0.9, 0.9, 0.9, 0.9, 0.87, 0.85])
    drawn, _ = main_chart.drawn(findings)["curve"]
    y = drawn["layer"][1]["encoding"]["y"]
    low, high = y["scale"]["domain"]
    assert 0.8 < low < 0.85 < 0.9 < high < 0.95
    (text,) = (row["text"] for row in drawn["data"]["values"] if "text" in row)
    assert text.startswith("↓ zeroshot ")
    near = along(make_store, [0.3, 0.25, 0.22, 0.21, 0.2, 0.15])
    drawn, _ = main_chart.drawn(near)["curve"]
    assert not [layer for layer in drawn["layer"] if layer["mark"]["type"] == "text"]
    assert drawn["layer"][-1]["mark"]["type"] == "rule", "a reference among the cells is a dashed line"


def test_the_best_cell_of_a_sweep_is_its_reference_and_the_first_reference_that_of_a_table(make_store):
    findings = along(make_store, [0.9, 0.91, 0.9, 0.9, 0.87, 0.8])
    assert compare(findings).reference.name == there(findings.best).label
    comparisons = compare(findings)
    (said,) = sweep.references(findings, comparisons)
    row = comparisons.frame.loc[findings.references[0].id]
    bounds = f"{-100 * row['high']:+.2f} to {-100 * row['low']:+.2f}"
    assert f"{-100 * row['difference']:+.2f} points against zeroshot (95 % interval {bounds}: better)" in said
    body = "axes: {method: [promptfl, coop, fedpgp]}\nreferences: [{method: zeroshot}]\nseeds: 3\n"
    assert compare(findings_of(make_store(body=body))).reference.name == "zeroshot"


# -- searches ------------------------------------------------------------------------------------------------


def test_a_search_without_gain_says_so(trials):
    findings = trials(lambda cell, published: 0.9 if published else 0.8)
    text = said(findings)
    assert text.startswith("No trial was better on validation than the published setting, which reaches 9")
    assert 0 < len(findings.published) < len(findings.own) - len(findings.published)
    assert text.endswith(f"({len(findings.own) - len(findings.published)} other trials).")


def test_without_a_published_trial_that_completed_there_is_no_gain(trials):
    first = len(trials(lambda cell, published: 0.8).published)
    stopped = trials(lambda cell, published: 0.8, early=lambda number: number < first)
    assert said(stopped).endswith("no published setting completed.")


def test_the_objective_that_chooses_is_named_below_the_table(trials):
    for metric, chosen in (("val/acc_mean", "validation accuracy"), ("train/loss", "train/loss")):
        findings = trials(lambda cell, published: 0.8 + 0.01 * cell.number, overrides=[f"search.objectives=[{metric}]"])
        assert f"The best cell (bold) is chosen by {chosen}" in table.note(findings, compare(findings))


def test_a_gain_on_the_seeds_that_chose_has_its_interval_and_cost_and_is_said_to_be_too_good(trials):
    findings = trials(lambda cell, published: 0.8 if published else 0.9 if cell.number == 5 else 0.7)
    best = there(findings.best)
    text = said(findings)
    mean, std = findings.spread(best, findings.metric)
    assert text.startswith(
        f"{upper(named(best))} is best on validation, with {100 * mean:.2f} ± {100 * std:.2f} % test"
    )
    assert " on the seeds that chose it (optimistic), found after " in text
    found = there(re.search(r" (\S+) of (\S+) full trials; tuning gained \+(\S+) points against the published setting "
                            r"\(95 % interval (\S+ to \S+): better\)\.$", text))  # fmt: skip
    assert found.groups()[:2] == (f"{findings.costs[best.id]:.2g}", f"{max(findings.costs.values()):.2g}")
    assert float(found[3]) == pytest.approx(10, abs=0.3)
    row = compare(findings, there(findings.searches[0].published).label).frame.loc[best.id]
    assert found[4] == f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}"
    assert compare(findings).reference.title == "the published setting"


@pytest.mark.parametrize(
    ("costly", "cheap", "said_of_it"),
    [
        (0.9, 0.85, r"local epochs 10 instead of 5; at no higher cost, trial (\d+) gains \+[45]\.\d+ points on the "
                    r"seeds that chose it"),
        (0.9, 0.7, "local epochs 10 instead of 5; no completed trial that costs no more was better on validation"),
        (0.7, 0.9, None),
    ],
)  # fmt: skip
def test_a_gain_that_costs_more_is_said_with_the_gain_at_no_higher_cost(trials, costly, cheap, said_of_it):
    only = "only: [optim.lr, protocol.epochs], space: {protocol.epochs: [5, 10]}"
    body = f"seeds: 3\nsearch: {{sampler: random, trials: 10, confirm: 0, {only}}}\n"

    def level(cell, published):
        return 0.8 if published else costly if cell.run.protocol.epochs == 10 else cheap

    findings = trials(level, body=body)
    _, _, more = said(findings).partition("). It costs more than the published setting: ")
    if said_of_it is None:
        assert more == ""
        return
    found = there(re.fullmatch(rf"{said_of_it}\.", more))
    if found.groups():
        (trial,) = (cell for cell in findings.own if cell.trial_number == int(found[1]))
        assert trial.run.protocol.epochs == 5


def test_fields_of_the_chosen_trial_stand_beside_the_published_values_that_differ(trials):
    space = "{protocol.epochs: [5, 2], optim.batch: {low: 8, high: 16, when: {protocol.epochs: [2]}}}"
    only = "[optim.lr, protocol.epochs, optim.batch]"
    body = f"seeds: 3\nsearch: {{sampler: random, trials: 14, confirm: 0, only: {only}, space: {space}}}\n"
    findings = trials(lambda cell, published: 0.8 + 0.1 * (cell.run.protocol.epochs == 2), body=body)
    best = there(findings.best)
    text, *_ = search.texts(findings)
    assert text.startswith(f"Trial {best.trial_number}: ")
    fields = text.rstrip(".").partition(": ")[2].split(", ")
    assert {"epochs 2 (published 5)", f"batch {best.run.optim.batch}"} < {*fields}, "the published one has no batch"


def test_a_trial_is_named_by_what_is_searched_and_not_by_where_it_ran(trials):
    search = "{sampler: random, trials: 6, confirm: 0, only: [optim.lr]}"
    body = f"axes: {{partition.alpha: [1.0]}}\nseeds: 3\nsearch: {search}\n"
    findings = trials(lambda cell, published: 0.8 if published else 0.9, body, overrides=["partition=dirichlet"])
    best = there(findings.best)
    assert said(findings).startswith(f"lr = {best.run.optim.lr:.3g} (trial {best.trial_number}) is best on validation")


def test_a_gain_on_validation_that_the_test_set_does_not_show_is_none(trials):
    findings = trials(lambda cell, published: 0.8 if published else 0.7 + 0.15 * (cell.number == 5))
    best = there(findings.best)
    for seed in (1, 2, 3):
        history = store_of(findings).history(best, seed)
        history[-1] |= {"test/acc_mean": 0.75, "clients/test": [0.75] * 4}
        store_of(findings).put(best, seed, make_result("done", history, split_hash=f"split{seed}"))
    text = said(findings_of(store_of(findings)))
    assert text.startswith(f"Trial {best.trial_number} is best on validation, with 75.00 ± 0.00 % test accuracy")
    found = re.search(r"; tuning gained nothing: -[45]\.\d+ points against the published setting \((.*)\)\.$", text)
    assert re.fullmatch(r"95 % interval -\S+ to -\S+: worse", there(found)[1])


def test_cost_counts_the_rounds_of_trials_that_were_stopped_early(trials):
    findings = trials(lambda cell, published: 0.8, early=lambda number: number % 2 == 1)
    full = findings.spec.rounds * 3
    ran = [sum(r.rounds for r in store_of(findings).row(cell).results.values()) / full
           for cell in sorted(findings.own, key=lambda cell: cell.number)]  # fmt: skip
    assert sorted(findings.costs.values()) == pytest.approx([sum(ran[: i + 1]) for i in range(len(ran))])


def test_one_whole_trial_claims_nothing(trials):
    text = said(trials(lambda cell, published: 0.8, early=lambda number: number > 0))
    assert text.startswith("Only the published setting has completed, with 80.") or text.startswith(
        "Only the published setting has completed, with 79."
    )
    assert text.endswith("too early to judge tuning.")


def test_trials_that_were_stopped_early_are_drawn_where_they_stood(trials):
    findings = trials(lambda cell, published: 0.8, early=lambda number: number > 3)
    rows = {row["number"]: row for row in charts.cell_rows(findings)}
    for cell in findings.own:
        row = rows[findings.numbers[cell.id]]
        assert row["objective"] == pytest.approx(store_of(findings).history(cell, 1)[-1]["val/acc_mean"], abs=0.02)
        assert (row["status"] == "pruned") == (cell.id in findings.pruned)


def test_importance_is_of_all_trials_at_equal_rounds_and_finds_what_matters(trials):
    body = SEARCH.replace("trials: 14", "trials: 60")
    findings = trials(lambda cell, published: 0.5 + 0.4 * (cell.run.protocol.epochs == 2), body=body,
                   early=lambda number: number % 3 == 2)  # fmt: skip
    rounds, values = search.early(findings, findings.own)
    assert rounds == 2
    assert values.keys() == {cell.id for cell in findings.own}
    assert search.early(findings, []) == (0, {})
    for cell in findings.own:
        assert values[cell.id] == store_of(findings).history(cell, 1)[1]["val/acc_mean"]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_trial_that_broke_in_its_first_round_takes_no_round_from_the_others(trials, status):
    findings = trials(lambda cell, published: 0.5 + 0.01 * cell.number, early=lambda number: number == 3)
    before, (broken, *others), store = search.early(findings, findings.own)[1], findings.own, store_of(findings)
    store.put(broken, 1, make_result(status, store.history(broken, 1)[:1]))
    rounds, values = search.early(findings_of(store), findings.own)
    assert rounds == 2
    worst = {broken.id: min(before[cell.id] for cell in others)} if status == "diverged" else {}
    assert values == {**{cell.id: before[cell.id] for cell in others}, **worst}


def test_a_field_that_decides_is_told_from_chance(trials):
    body = SEARCH.replace("trials: 14", "trials: 40")
    findings = trials(lambda cell, published: 0.5 + 0.2 * (cell.run.protocol.epochs == 1), body=body)
    part = there(search.matters(findings))
    assert "of seed 1, those that were stopped early too; more than chance: epochs" in part.texts[0]
    rows = part.charts["importance"][0]["data"]["values"]
    by_field = {row["name"]: row["value"] for row in rows if row["series"] == "fANOVA"}
    assert max(by_field, key=lambda name: by_field[name]) == "epochs"
    assert by_field["epochs"] > 80


def test_few_trials_say_nothing_of_importance(trials):
    findings = trials(lambda cell, published: 0.8 + 0.01 * cell.number, body=SEARCH.replace("14", "4"))
    assert there(search.matters(findings)).texts == [
        f"too few trials ({len(findings.own)}): at least 10 with different values, and 3 for each field, are needed."
    ]


def test_every_searched_field_has_a_slice_with_the_published_value(trials):
    findings = trials(lambda cell, published: 0.8)
    part = there(search.slices(findings))
    fields = [axis for axis in findings.axes]
    assert list(part.charts) == [f"slice_{axis.replace('.', '_')}" for axis in fields]
    assert part.small
    rate, _ = part.charts["slice_optim_lr"]
    assert rate["layer"][0]["mark"]["type"] == "rule"
    published = {findings.by_id[key].run.optim.lr for key in findings.published}
    assert {row["optim_lr"] for row in rate["layer"][0]["data"]["values"]} == published
    assert rate["layer"][0]["encoding"]["x"]["scale"] == {"type": "log"}


def test_fields_of_one_name_are_told_apart(trials):
    only = "only: [optim.lr, method.lr]"
    body = f"axes: {{method: [fedavgm]}}\nseeds: 3\nsearch: {{sampler: random, trials: 4, confirm: 0, {only}}}\n"
    findings = trials(lambda cell, published: 0.8 if published else 0.9, body=body)
    drawn = there(search.slices(findings)).charts
    for name in ("method.lr", "optim.lr"):
        spec, caption = drawn[f"slice_{name.replace('.', '_')}"]
        assert caption == spec["layer"][-1]["encoding"]["x"]["title"] == name
    said = answer.sentence(findings, compare(findings))
    assert "method.lr = " in said
    assert "optim.lr = " in said


def test_searches_of_several_methods_are_compared_at_equal_budgets(trials):
    body = "axes: {method: [promptfl, fedprox]}\nreferences: [{method: zeroshot}]\n" + SEARCH.replace("14", "6")
    findings = trials(
        lambda cell, published: 0.2 if cell.is_reference else 0.8 + 0.1 * ("mu" in label(cell.varied)), body=body
    )
    text = said(findings)
    assert re.fullmatch(
        r"Tuned, fedprox is best on validation, with (90\.|89\.).* test accuracy on the seeds that chose it "
        r"\(optimistic\); \+(9|10)\.\d+ points against promptfl, the next on validation "
        r"\(95 % interval \+\d.*: better\)\.", text,
    ), text  # fmt: skip
    assert "fedprox against each of the others: 2 better." in there(answer.decided(findings, compare(findings))).texts
    assert search.leads(findings).startswith("Ahead on validation at equal cost: fedprox from ")
    assert search.leads(findings).endswith("the lead never changes.")
    assert compare(findings).reference.name == "zeroshot"


def test_a_lead_that_changes_is_said_with_its_cost(trials):
    body = "axes: {method: [promptfl, fedprox]}\n" + SEARCH.replace("14", "6")

    def level(cell, published):
        return 0.7 if "mu" not in label(cell.varied) else 0.6 if published else 0.8

    findings = trials(level, body=body)
    text = search.leads(findings)
    found = there(re.fullmatch(r"Ahead on validation at equal cost: promptfl from (\S+) full trials on, "
                               r"fedprox from (\S+) full trials on; 1 change of the lead\.", text))  # fmt: skip
    assert float(found[1]) < float(found[2])
    assert there(curves.history(findings, compare(findings))).charts.keys() == {"history"}


# -- tables --------------------------------------------------------------------------------------------------


def test_cells_that_are_not_told_apart_share_a_letter(make_store):
    body = "axes: {method: [promptfl, coop, fedpgp, fedprox]}\nreferences: [{method: zeroshot}]\nseeds: 6\n"
    store = make_store(body=body, clients=4)
    reach(store, lambda cell: [0.9, 0.9, 0.7, 0.9, 0.2][cell.number], lambda cell: 0.003)
    findings = findings_of(store)
    letters = {cell.label: findings.letters[cell.id] for cell in findings.cells}
    assert letters == {"promptfl": "a", "coop": "a", "fedprox": "a", "fedpgp": "b", "zeroshot": "c"}
    text = said(findings)
    others = {"promptfl", "coop", "fedprox"} - {there(findings.best).label}
    assert {cell.label for cell in findings.same_group} == others
    assert all(other in text.partition("It does not differ significantly from ")[2] for other in others)
    assert "fedpgp" not in text.partition("It does not differ significantly from ")[2]
    found = table.table(findings, compare(findings))
    at = found.header.index("group")
    assert [row.cells[at].text for row in found.rows] == ["a", "a", "b", "a", "c"]


def test_the_choice_is_compared_with_each_of_the_others(make_store):
    body = "axes: {method: [promptfl, coop, fedpgp]}\nreferences: [{method: zeroshot}]\nseeds: 4\n"
    store = make_store(body=body, clients=4)
    reach(store, lambda cell: [0.9, 0.8, 0.7, 0.2][cell.number])
    findings = findings_of(store)
    part = there(table.each(findings, compare(findings)))
    assert part.title == "promptfl against each"
    rows = {row.cells[0].text: [td.text for td in row.cells[1:]] for row in part.tables[0].rows}
    assert {name: row[2] for name, row in rows.items()} == dict.fromkeys(("coop", "fedpgp", "zeroshot"), "better")
    assert float(rows["coop"][0]) == pytest.approx(10, abs=0.5)
    low, high = map(float, rows["coop"][1].split(" to "))
    assert low < float(rows["coop"][0]) < high


def test_ranks_are_over_settings_of_any_kind(make_store):
    body = "axes: {partition.alpha: [0.1, 0.3, 0.5, 1, 5], method: [promptfl, coop, fedpgp]}\nseeds: 2\n"
    store = make_store(["partition=dirichlet"], body=body, clients=4)
    reach(store, lambda cell: 0.5 + 0.1 * (cell.number % 3))
    findings = findings_of(store)
    part = there(table.settings(findings, compare(findings)))
    assert part.texts[0].startswith("Mean ranks over 5 settings (alpha); ranks that differ by less than 1.48 (Nemenyi")
    rows = [[td.text for td in row.cells] for row in part.tables[0].rows]
    assert [row[0] for row in rows] == ["fedpgp", "coop", "promptfl"]
    assert [row[3] for row in rows] == ["no significant difference", "no significant difference", "worse"]


def test_cells_that_tie_on_validation_are_said(make_store):
    body = "axes: {optim.lr: [0.1, 0.2, 0.4]}\nseeds: 2\n"
    findings = findings_of(make_store(body=body, level=lambda cell: 0.5))
    assert "All 3 cells tie on validation, which cannot choose between them. Use more" in said(findings)
    findings = findings_of(make_store(body=body, level=lambda cell: 0.5 + 0.02 * cell.number))
    assert "tie on validation" not in said(findings)


def test_two_seeds_are_too_few_to_separate_values_that_lie_apart(make_store):
    findings = along(make_store, [0.5, 0.6, 0.4, 0.6, 0.4, 0.5], noise=0.1, overrides=["seeds=2"])
    assert "2 seeds are too few to separate the values of " in said(findings)


def test_a_metric_of_the_study_that_no_record_has_is_an_error(make_store):
    store = make_store(body="axes: {optim.lr: [0.01, 0.1]}\nseeds: 2\nreport: {metric: test/unseen/acc_mean}\n")
    with pytest.raises(ConfigError, match="No record holds the metric 'test/unseen/acc_mean'"):
        findings_of(store)
