"""Tuned methods by settings, on a study whose searches are confirmed: figures recomputed, on every surface."""

import csv
import html
import itertools
import json
import math
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fpl_tune import analysis, api, config, report
from fpl_tune.cli.show import print_results
from fpl_tune.config import Study
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.formatting import upper
from fpl_tune.findings.choice import choose
from fpl_tune.findings.comparisons import compare, offered_references
from fpl_tune.findings.findings import Findings
from fpl_tune.report import answer, latex, table, tuned
from fpl_tune.report.search import histories
from fpl_tune.search.halving import design_of
from fpl_tune.search.space import Param
from fpl_tune.study.cells import Cell, confirming_id
from fpl_tune.study.results import make_result
from fpl_tune.study.schema import Effective
from fpl_tune.study.store import Store

from ..conftest import Asked, drawn_history, there
from .conftest import chosen_values, findings_of, named, store_of, typeset

HEAD = """
defaults: [/study, override /partition: dirichlet, _self_]
references: [{method: zeroshot}]
protocol: {rounds: 2}
seeds: 3
search: {sampler: random, trials: 5, space: {protocol.epochs: [2, 5, 10]}}
"""
AXES = "axes: {partition.alpha: [0.5, 5.0], method: [promptfl, fedprox]}\n"
FRESH = (4, 5, 6)
"""The seeds that confirm: the smallest ones that are no seed of the study."""
LEVELS = {
    ("promptfl", 0.5): (0.80, 0.70), ("fedprox", 0.5): (0.74, 0.76),
    ("promptfl", 5.0): (0.82, 0.84), ("fedprox", 5.0): (0.84, 0.80),
    ("zeroshot", 0.5): (0.60, 0.60), ("zeroshot", 5.0): (0.60, 0.60),
}  # fmt: skip
"""Validation and test accuracy of a method at an alpha: the better one by validation is not that by the test set."""
CLIENTS = 4


def method_of(cell: Cell) -> str:
    """The method's name on the axes, or its own."""
    varied = {**cell.varied.get("variant", {}), **cell.varied}
    return str(varied.get("method", cell.node["method"]["name"]))


def history(cell: Cell, seed: int) -> list[dict[str, Any]]:
    """Records of two rounds around the level of a method; published points are worse, apart from one search's."""
    method, alpha = method_of(cell), cell.varied.get("partition.alpha", 0.5)
    rng = np.random.default_rng([cell.number, seed])
    lower = 0.04 * (cell.published and (method, alpha) != ("fedprox", 5.0)) + 0.02 * (seed not in FRESH)
    lower += 0.03 * (cell.role == "trial" and not cell.published and (method, alpha) == ("fedprox", 5.0))
    records = drawn_history(seed, 0.5, rounds=2, clients=CLIENTS)
    for kind, level in zip(("val", "test"), LEVELS[method, alpha], strict=True):
        for record in records:
            early = 0.2 * (method == "promptfl" and record["round"] == 1)
            of_clients = level - lower - early + 0.005 * rng.standard_normal() + 0.02 * rng.standard_normal(CLIENTS)
            record |= {f"{kind}/acc_mean": float(of_clients.mean()), f"clients/{kind}": of_clients.tolist()}
    return records


def put(store: Store, cell: Cell, seed: int, records: list[dict[str, Any]] | None = None) -> None:
    """Stores a seed of a cell, on the partition of its setting."""
    records = history(cell, seed) if records is None else records
    result = make_result("done", records, split_hash=f"split {seed} {cell.varied.get('partition.alpha')}")
    store.put(cell, seed, replace(result, finished=f"2026-05-01T10:{cell.number % 60:02d}:00+00:00"))


@dataclass
class Made:
    """What makes the store of a searched study."""

    spec: Study
    root: Path

    def store(self, *, confirmed: bool | float = True) -> Store:
        """The store with the results of its trials and references and, unless it is not confirmed, of its choices; for
        a number, of those at this alpha."""
        store, asked = Store(self.root, self.spec.name), Asked(self.spec)
        design = design_of(self.spec)
        cells = [*asked.search.references, *asked.all()]
        effective = Effective(confirm=[*design.confirm], spaces=asked.search.files)
        store.begin(self.spec, cells, effective=effective)
        for cell in cells:
            for seed in design.seeds_of(cell):
                put(store, cell, seed)
        rows = [*store.table().rows.values()]
        for part in asked.search.parts if confirmed else ():
            for cell in part.confirmed([row for row in rows if part.shares(row.cell)]):
                if isinstance(confirmed, float) and part.varied["partition.alpha"] != confirmed:
                    continue
                store.add(cell, {})
                for seed in design.confirm:
                    put(store, cell, seed)
        return store


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """compose(body, *overrides): a study to be searched, in a folder of its own."""

    def make(body: str = AXES, *overrides: str) -> Made:
        root = tmp_path_factory.mktemp("tuned")
        (root / "tuned.yaml").write_text(HEAD + body)
        return Made(config.compose_study(str(root / "tuned.yaml"), overrides), root)

    return make


@pytest.fixture(scope="module")
def kept(compose: Any) -> Store:
    """A confirmed study of two methods in two settings, which tests only read."""
    return compose().store()


@pytest.fixture
def store(kept: Store, tmp_path: Path) -> Store:
    """A copy of the confirmed study, which a test may change."""
    shutil.copytree(kept.folder, tmp_path / kept.folder.name)
    return Store(tmp_path, kept.folder.name)


@pytest.fixture
def findings(kept: Store) -> Findings:
    """What is said of the confirmed study."""
    return findings_of(kept)


def said(findings: Findings) -> str:
    return answer.sentence(findings, compare(findings))


def cells_of(findings: Findings, role: str) -> dict[tuple[str, str], Cell]:
    """The cells of a role by method and column; the cell of a chosen published point has both roles."""
    cells = [c for c in findings.cells if c.role == role or (role == "published" == c.role)]
    return {(method_of(c), f"alpha={c.varied['partition.alpha']:g}"): c for c in cells}


def accuracies(findings: Findings, cell: Cell) -> dict[int, float]:
    """Test accuracies of a cell by seed, from its records."""
    store = store_of(findings)
    return {seed: store.history(cell, seed)[-1]["test/acc_mean"] for seed in store.seeds(cell)}


METHODS, COLUMNS = ["promptfl", "fedprox", "zeroshot"], ["alpha=0.5", "alpha=5"]


def places(findings: Findings) -> dict[tuple[str, str], Cell]:
    """The cells of the table by method and column."""
    return {**cells_of(findings, "tuned"), **cells_of(findings, "reference")}


# -- the table -----------------------------------------------------------------------------------------------


def test_what_is_confirmed_stands_before_the_trials(findings):
    roles = [cell.role for cell in findings.listed]
    first = len(findings.entries)
    assert {*roles[:first]} == {"tuned", "published", "reference"}
    assert {*roles[first:]} == {"trial"}


def test_means_and_deviations_are_over_the_fresh_seeds_alone(findings):
    assert findings.confirmed
    rows, cells = tuned.entries(findings), places(findings)
    assert list(rows) == METHODS
    for (method, column), cell in cells.items():
        tests = accuracies(findings, cell)
        assert tuple(tests) == FRESH
        entry = rows[method][column]
        assert (entry.mean, entry.std) == pytest.approx((np.mean([*tests.values()]), np.std([*tests.values()], ddof=1)))
        assert entry.seeds == len(FRESH)


def test_the_last_column_is_the_mean_over_settings_seed_by_seed(findings):
    rows, cells = tuned.entries(findings), places(findings)
    assert tuned.column_titles(findings) == [*COLUMNS, "mean"]
    for method in METHODS:
        by_seed = np.mean([[*accuracies(findings, cells[method, column]).values()] for column in COLUMNS], axis=0)
        entry = rows[method]["mean"]
        assert (entry.mean, entry.std, entry.seeds) == (
            pytest.approx(by_seed.mean()), pytest.approx(by_seed.std(ddof=1)), len(FRESH)
        )  # fmt: skip


def validated(findings: Findings, cell: Cell) -> float:
    """Mean validation accuracy of a cell, from its records."""
    store = store_of(findings)
    return float(np.mean([store.history(cell, seed)[-1]["val/acc_mean"] for seed in store.seeds(cell)]))


def bold(findings: Findings) -> dict[str, list[str]]:
    """The methods that are bold in each column."""
    body = tuned.table(findings)
    return {title: [row.cells[0].text for row in body.rows if row.cells[i].bold] for i, title in
            enumerate(body.header) if i}  # fmt: skip


@pytest.mark.parametrize("confirmed", [True, 0.5])
def test_ranks_and_means_over_settings_that_share_their_trials_are_of_confirmed_points_alone(compose, confirmed):
    """The trials of a point have the same values in all settings, on the seeds that chose it."""
    findings = findings_of(compose(AXES, "search.across=settings").store(confirmed=confirmed))
    section = there(table.settings(findings, compare(findings)))
    ranks = [[td.text for td in row.cells] for row in section.tables[0].rows]
    means = tuned.frame(findings)["over settings mean"].dropna()
    assert [*means.index] == (["promptfl", "fedprox", "zeroshot"] if confirmed is True else ["zeroshot"])
    assert {row[0]: row[2] for row in ranks} == {method: f"{100 * mean:.2f}" for method, mean in means.items()}
    assert section.texts[0].endswith("left out: promptfl, fedprox.") == (confirmed is not True)


def test_bold_is_what_validation_on_the_fresh_seeds_chooses_and_not_the_best_test_mean(findings):
    cells, rows = cells_of(findings, "tuned"), tuned.entries(findings)
    val = {key: validated(findings, cell) for key, cell in cells.items()}
    expected = {column: [max(METHODS[:2], key=lambda m, c=column: val[m, c])] for column in COLUMNS}
    mean = [max(METHODS[:2], key=lambda m: sum(val[m, column] for column in COLUMNS))]
    assert bold(findings) == {**expected, "mean": mean}
    best_test = {c: max(METHODS, key=lambda m, c=c: rows[m][c].mean) for c in COLUMNS}
    assert all(best_test[column] not in expected[column] for column in COLUMNS)


def permuted(store: Store) -> Store:
    """Test figures that are dealt out anew among all cells and seeds, in every round."""
    where = [(cell, seed) for cell in store.cells() for seed in store.seeds(cell)]
    records = [store.history(cell, seed) for cell, seed in where]
    order = np.random.default_rng(3).permutation(len(where))
    drawn = [[{n: r[n] for n in ("test/acc_mean", "clients/test")} for r in records[i]] for i in order]
    for (cell, seed), own, tests in zip(where, records, drawn, strict=True):
        put(store, cell, seed, [{**r, **t} for r, t in zip(own, reversed(tests), strict=True)])
    return store


@pytest.mark.parametrize("rule", ["final", "best_val", "best_test", "mean_last5"])
def test_test_figures_decide_neither_what_is_chosen_nor_what_is_bold(kept, store, rule):
    before = Findings(kept.spec(), kept.table(), rule=rule)
    after = Findings(store.spec(), permuted(store).table(), rule=rule)
    assert tuned.entries(before) != tuned.entries(after)
    assert bold(before) == bold(after)
    assert before.chosen == after.chosen
    assert tuned.values(before) == tuned.values(after)
    assert tuned.at_edges(before) == tuned.at_edges(after)
    assert [cell.id for _, cell in before.tuned] == [cell.id for _, cell in after.tuned]


def over_settings(findings: Findings) -> pd.DataFrame:
    """Means over settings by method and seed."""
    cells = places(findings)
    rows = [
        (method, seed, np.mean([accuracies(findings, cells[method, column])[seed] for column in COLUMNS]))
        for method in METHODS for seed in FRESH
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=pd.Index(["cell", "seed", "value"]))


def test_letters_are_those_of_all_pairs_of_a_column(findings):
    rows, cells = tuned.entries(findings), places(findings)
    for column in COLUMNS:
        ids = {cells[method, column].id: method for method in METHODS}
        letters = analysis.letters(findings.values.loc[findings.values["cell"].isin(ids)])
        assert {method: rows[method][column].letters for method in METHODS} == {
            ids[str(key)]: text for key, text in letters.items()
        }
    joint = analysis.letters(over_settings(findings))
    assert {method: rows[method]["mean"].letters for method in METHODS} == joint.to_dict()


def test_letters_are_of_the_level_and_the_rows_that_are_compared(findings, store):
    """Without the results of a method, the others have the letters of a comparison without it."""
    lost = places(findings)["zeroshot", COLUMNS[0]]
    for seed in FRESH:
        store.forget(lost, seed)
    rows = tuned.entries(findings_of(store))
    ids = {places(findings)[method, COLUMNS[0]].id: method for method in METHODS[:2]}
    letters = analysis.letters(findings.values.loc[findings.values["cell"].isin(ids)])
    assert {m: row[COLUMNS[0]].letters for m, row in rows.items() if COLUMNS[0] in row} == {
        ids[str(key)]: text for key, text in letters.items()
    }


def test_a_search_that_used_less_of_the_budget_is_marked_and_no_sentence_says_that_it_is_the_same(findings, store):
    assert "with the same budget: 5 trials" in tuned.note(findings)
    tuned_cell = cells_of(findings, "tuned")["fedprox", "alpha=5"]
    trials = [cell for cell in store.cells() if cell.search == tuned_cell.search and cell.role == "trial"]
    chosen = there(tuned_cell.suggestion).params
    store.remove(next(cell for cell in trials if not cell.published and there(cell.suggestion).params != chosen))
    fewer = findings_of(store)
    assert "same budget" not in tuned.note(fewer)
    assert f"‡: the search has used less of the budget: {trials[0].search} ({len(trials) - 1})." in tuned.note(fewer)
    marked = {(m, c) for m, row in tuned.entries(fewer).items() for c, entry in row.items() if entry.short}
    assert marked == {("fedprox", "alpha=5"), ("fedprox", "mean")}


# -- gains and comparisons -----------------------------------------------------------------------------------


def paired(findings: Findings, one: Cell, other: Cell) -> float:
    """Mean difference of two cells over the seeds of both, in points."""
    ours, theirs = accuracies(findings, one), accuracies(findings, other)
    return 100 * float(np.mean([ours[seed] - theirs[seed] for seed in FRESH]))


def test_gains_are_paired_over_the_fresh_seeds(findings):
    chosen, start = cells_of(findings, "tuned"), cells_of(findings, "published")
    rows = {row.cells[0].text: [td.text for td in row.cells[1:]] for row in there(tuned.gains(findings)).rows}
    assert list(rows) == METHODS[:2]
    same = 0
    for method, column in itertools.product(METHODS[:2], COLUMNS):
        text, cell = rows[method][COLUMNS.index(column)], chosen[method, column]
        if cell.published:
            same += 1
            assert (text, (method, column) in start) == ("published chosen", False)
            continue
        gap = paired(findings, cell, start[method, column])
        low, high = map(float, there(re.fullmatch(rf"\{gap:+.2f} \((\S+) to (\S+)\): \w+", text)).groups())
        assert low < gap < high
    assert same == 1


@pytest.mark.parametrize("asked", [None, "fedprox"])
def test_one_method_less_each_of_the_others_by_setting_and_over_settings(kept, asked):
    spec = kept.spec()
    findings = findings_of(kept)
    compared, cells = there(tuned.against(findings, asked)), places(findings)
    mine = compared.method
    assert mine == (asked or bold(findings)["mean"][0])
    assert spec.report.reference is None
    for other in METHODS:
        if other == mine:
            assert other not in compared.by_setting
            continue
        gaps = [paired(findings, cells[mine, column], cells[other, column]) for column in COLUMNS]
        found = [100 * compared.by_setting[other][column]["difference"] for column in COLUMNS]
        assert found == pytest.approx(gaps)
        over = compared.over_settings[other]
        assert 100 * over["difference"] == pytest.approx(np.mean(gaps))
        assert over["low"] < over["difference"] < over["high"]
        verdict = "better" if over["low"] > 0 else "worse" if over["high"] < 0 else "undecided"
        assert over["verdict"] == verdict


def test_the_reference_of_the_report_is_compared_with_each_of_the_others(kept, compose):
    store = compose(AXES, "report.reference=fedprox").store()
    findings = findings_of(store)
    comparisons = compare(findings)
    (table,) = there(tuned.each(findings, comparisons)).tables
    assert there(tuned.each(findings, comparisons)).title == "fedprox against each"
    assert [row.cells[0].text for row in table.rows] == ["promptfl", "zeroshot"]
    assert "; fedprox has +" in said(findings) or "; fedprox has -" in said(findings)
    assert "; fedprox has " not in said(findings_of(kept))


def test_the_reference_that_is_asked_for_is_compared_with_each_of_the_others(kept, tmp_path):
    page = report.build(kept, tmp_path, reference="fedprox").read_text()
    assert "fedprox against each" in page
    assert "promptfl against each" not in page


def test_a_reference_that_trains_nothing_is_compared_in_each_setting_of_the_protocol(compose):
    store = compose("axes: {protocol.participation: [0.5, 1.0], method: [promptfl, fedprox]}\n").store()
    findings = findings_of(store)
    compared = there(tuned.against(findings, "promptfl"))
    (zeroshot,) = findings.references
    for cell in (cell for _, cell in findings.tuned if method_of(cell) == "promptfl"):
        gap = compared.by_setting["zeroshot"][f"participation={cell.varied['protocol.participation']:g}"]
        assert 100 * gap["difference"] == pytest.approx(paired(findings, cell, zeroshot))


def test_a_method_that_is_tuned_is_also_a_reference_where_it_is_not(compose):
    store = compose(AXES, "references=[{method: zeroshot}, {method: promptfl}]").store()
    findings = findings_of(store)
    assert list(there(findings.crossed).rows) == ["promptfl", "fedprox", "promptfl (not tuned)", "zeroshot"]
    report.build(store)
    assert "promptfl (not tuned)" in there(tuned.against(findings, "promptfl")).over_settings


# -- chosen values -------------------------------------------------------------------------------------------


def scaled(low: float, high: float, at: float, log: bool) -> float:
    """The place of a value in its range, from 0 to 1."""
    low, high, at = np.log([low, high, at]) if log else (low, high, at)
    return (at - low) / (high - low)


@given(low=st.floats(1e-6, 10), ratio=st.floats(2, 1e4), share=st.floats(0, 1), log=st.booleans(), whole=st.booleans())
def test_a_value_near_an_end_of_its_range_is_at_an_edge(low, ratio, share, log, whole):
    if whole:
        low = math.ceil(low)
        high = low + math.ceil(ratio)
        distribution = IntDistribution(low, high, log=log)
        value = round(low + share * (high - low))
    else:
        high, value = low * ratio, low * ratio**share if log else low * (1 + share * (ratio - 1))
        distribution = FloatDistribution(low, high, log=log)
    value = min(max(value, low), high)
    place = scaled(low, high, value, log)
    if min(abs(place - tuned.EDGE), abs(place - 1 + tuned.EDGE)) > 1e-9:
        near = place < tuned.EDGE or place > 1 - tuned.EDGE
        assert tuned.at_edge(Param("optim.lr", distribution), value) == near
    for end in (low, high):
        assert tuned.at_edge(Param("optim.lr", distribution), end)


@given(st.lists(st.integers(-50, 50) | st.floats(-50, 50), min_size=1, max_size=6, unique=True))
def test_the_outer_ones_of_three_numbers_and_more_are_at_an_edge(choices):
    for value in choices:
        outer = len(choices) > 2 and value in (min(choices), max(choices))
        assert tuned.at_edge(Param("method.n_ctx", CategoricalDistribution(choices)), value) == outer


@pytest.mark.parametrize("choices", [(True, False), (None, 1, 2), ("a", "b", "c"), ([1], [2], [3])])
def test_choices_that_are_no_numbers_have_no_edge(choices):
    distribution = CategoricalDistribution([json.dumps(c) if isinstance(c, list) else c for c in choices])
    assert not any(tuned.at_edge(Param("method.x", distribution), value) for value in distribution.choices)


def test_values_at_an_end_of_their_range_are_marked_and_named_in_the_sentence(findings, kept):
    parts = {repr(part.varied): part for part in Asked(kept.spec()).search.parts}
    texts = chosen_values(findings)
    marked = set[str]()
    for part in parts.values():
        (cell,) = (cell for _, cell in findings.tuned if cell.search == part.label)
        column = COLUMNS.index(f"alpha={cell.varied['partition.alpha']:g}")
        found = {name: values[column] for name, values in texts[method_of(cell)].items() if values[column] != "–"}
        params = {param.name: param.distribution for param in part.space.params}
        assert {*found} == {n.rpartition(".")[2] for n in there(cell.suggestion).params}
        for name, value in there(cell.suggestion).params.items():
            text = found[name.rpartition(".")[2]]
            of = params[name]
            if isinstance(of, CategoricalDistribution):
                numbers = [float(str(choice)) for choice in of.choices]
                edge = value in (min(numbers), max(numbers)) and len(numbers) > 2
            else:
                assert isinstance(of, IntDistribution | FloatDistribution)
                place = scaled(of.low, of.high, value, of.log)
                edge = min(place, 1 - place) <= tuned.EDGE
            assert text.endswith("†") == edge
            assert float(text.strip("†")) == pytest.approx(float(value), rel=0.01)
            if edge:
                marked.add("μ" if name == "method.mu" else name.rpartition(".")[2])
    assert marked
    named = tuned.at_edges(findings)
    for name in marked:
        assert re.search(rf"\b{name}\b", named)
    assert named in there(answer.decided(findings, compare(findings))).texts
    assert named.endswith(". Widen search.space to see whether more can be gained.")


def test_chosen_values_that_cost_more_than_the_published_ones_are_named_with_what_they_cost(findings):
    more = {}
    for each in findings.searches:
        mine, other = there(each.tuned).run, there(each.published).run
        epochs = mine.protocol.epochs, other.protocol.epochs
        more[each.label] = [f"local epochs {epochs[0]:g} instead of {epochs[1]:g}"] * (epochs[0] > epochs[1])
    texts = there(tuned.details(findings, compare(findings))).texts
    said_of = {label: [t for t in texts if t.startswith(f"{label} costs more than the published")] for label in more}
    assert any(more.values())
    assert {label: bool(of) for label, of in said_of.items()} == {label: bool(own) for label, own in more.items()}
    assert all(part in of for label, (of,) in ((k, v) for k, v in said_of.items() if v) for part in more[label])
    named = re.search(
        r"The chosen values of ((?:(?!The chosen).)*) cost more than those before tuning \((.*)\)\.$",
        " ".join(there(answer.decided(findings, compare(findings))).texts), re.MULTILINE,
    )  # fmt: skip
    assert there(named)[1] == "; ".join(label for label, own in more.items() if own)


def test_a_field_that_the_study_fixes_by_a_single_choice_is_no_chosen_value(compose):
    findings = findings_of(compose("axes: {partition.alpha: [0.5, 5.0]}\n", "search.space.optim.batch=[16]").store())
    assert all(there(cell.suggestion).params["optim.batch"] == 16 for _, cell in findings.tuned)
    assert {*chosen_values(findings)["promptfl"]} == {"lr", "n_ctx", "epochs"}


@pytest.mark.system
def test_both_tables_compile(store):
    report.build(store)
    typeset(store.folder, "table", "values")


def test_each_setting_has_a_history_also_if_signs_alone_tell_them_apart(compose):
    where = "[{label: <1, partition.alpha: 0.5}, {label: '>1', partition.alpha: 5.0}]"
    findings = findings_of(compose(f"axes: {{where: {where}}}\n", "references=[]").store(confirmed=False))
    assert [caption for _, caption in histories(findings).charts.values()] == ["<1", ">1"]


# -- what is missing -----------------------------------------------------------------------------------------


def test_a_setting_without_a_result_is_a_dash_and_nothing_raises(store, findings):
    for seed in FRESH:
        store.forget(places(findings)["promptfl", COLUMNS[0]], seed)
    left = findings_of(store)
    rows = {row.cells[0].text: [td.text for td in row.cells[1:]] for row in tuned.table(left).rows}
    assert [text == "–" for text in rows["promptfl"]] == [True, False, True]
    assert "–" not in rows["fedprox"]
    assert "Tuned, fedprox alone has results in all 2 settings: a mean of " in said(left)
    report.build(store)
    print_results(store, "final", "table")
    assert api.StudyResults(store).summary().loc["promptfl", f"{COLUMNS[1]} seeds"] == 3
    assert "nan" not in (store.folder / "table.md").read_text() + said(left) + report.summary(store).text()


def test_without_any_confirmed_method_in_a_setting_its_column_is_empty(store, findings):
    for (_, column), cell in places(findings).items():
        for seed in FRESH if column == COLUMNS[1] else ():
            store.forget(cell, seed)
    left = findings_of(store)
    assert {row.cells[2].text for row in tuned.table(left).rows} == {"–"}
    assert not bold(left)["mean"]
    assert said(left).startswith("So far, ")
    report.build(store)


def test_a_study_that_is_not_confirmed_yet_takes_the_best_trials_and_says_so(compose):
    findings = findings_of(compose().store(confirmed=False))
    assert not findings.confirmed
    for search, cell in findings.tuned:
        assert cell == max(search.trials, key=lambda trial: validated(findings, trial))
    assert "the values are those of the search so far, and optimistic" in tuned.note(findings)
    assert " test accuracy so far" in said(findings)
    assert tuned.entries(findings)["promptfl"][COLUMNS[0]].seeds == 3
    gaps = there(tuned.against(findings, None))
    assert "zeroshot" not in gaps.by_setting, "it runs on the fresh seeds alone"
    assert all(test["high"] - test["low"] < 0.5 for test in gaps.over_settings.values())


def test_without_confirmation_values_are_said_to_be_too_good(compose):
    findings = findings_of(compose(AXES, "search.confirm=0").store())
    assert "on the seeds that chose it (search.confirm=0), so the values are optimistic" in tuned.note(findings)
    assert " test accuracy on the seeds that chose it" in said(findings)
    assert tuple(accuracies(findings, findings.references[0])) == (1, 2, 3)


def test_one_method_over_two_settings_is_one_row(compose):
    findings = findings_of(compose("axes: {partition.alpha: [0.5, 5.0]}\n", "references=[]").store())
    (row,) = tuned.table(findings).rows
    assert [td.text.partition(" ")[0] for td in row.cells] == [
        "promptfl", *(f"{100 * entry.mean:.2f}" for entry in tuned.entries(findings)["promptfl"].values())
    ]  # fmt: skip
    assert tuned.against(findings, None) is None
    assert said(findings).startswith("Tuned, promptfl is best on validation over 2 settings, with a mean of ")


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_method_that_is_tuned_in_settings_of_the_protocol_is_compared_within_each(compose, confirmed):
    body = "axes: {protocol.rounds: [1, 2]}\n"
    findings = findings_of(compose(body, "references=[]").store(confirmed=confirmed))
    assert {cell.rounds for _, cell in findings.tuned} == {1, 2}
    found = compare(findings).frame["reference"]
    rounds = {(findings.by_id[str(cell)].rounds, findings.by_id[base].rounds) for cell, base in found.items()}
    assert len(rounds) == 1
    assert all(one == other for one, other in rounds)


@pytest.mark.parametrize(
    ("body", "words"), [(AXES, ", the next on validation (one seed: no interval)."), ("", " (one seed: no interval)")]
)
def test_one_fresh_seed_has_no_interval(compose, body, words):
    assert words in said(findings_of(compose(body, "search.confirm=1").store()))


def test_two_fresh_seeds_tell_methods_apart_over_settings_and_one_does_not(compose):
    for seeds, apart in ((1, False), (2, True)):
        findings = findings_of(compose(AXES, f"search.confirm={seeds}").store())
        letters = {method: row["mean"].letters for method, row in tuned.entries(findings).items()}
        assert all(map(bool, letters.values())) == apart
        assert (letters["zeroshot"] == letters["promptfl"]) != apart


def test_costs_are_means_and_differences_without_anything_of_chance(kept):
    findings = findings_of(kept, metric="time/seconds")
    assert said(findings).endswith("; +0 s against fedprox, the next on validation (identical).")
    every = [entry for row in tuned.entries(findings).values() for entry in row.values()]
    assert every
    assert all(math.isnan(entry.std) and not entry.letters and not entry.best for entry in every)
    assert "deviation over seeds" not in tuned.note(findings)
    assert tuned.each(findings, compare(findings)) is None
    assert len(there(tuned.details(findings, compare(findings))).tables) == 1, "no gains"


def test_a_reference_has_one_row_while_a_setting_has_no_trials(compose):
    made = compose()
    store, asked = Store(made.root, made.spec.name), Asked(made.spec)
    cells = [cell for cell in asked.all() if cell.varied["partition.alpha"] == 0.5]
    store.begin(made.spec, [*asked.search.references, *cells])
    for cell in store.cells():
        put(store, cell, 1)
    assert list(there(findings_of(store).crossed).rows) == METHODS


# -- surfaces ------------------------------------------------------------------------------------------------


def test_every_surface_holds_the_same_means(kept, tmp_path, capsys, findings):
    means = {(m, c): entry for m, row in tuned.entries(findings).items() for c, entry in row.items()}
    printed = {f"{100 * entry.mean:.2f} ± {100 * entry.std:.2f}" for entry in means.values()}
    page = report.build(kept, tmp_path)
    print_results(kept, "final", "table")
    shown = capsys.readouterr().out
    in_latex = (tmp_path / "table.tex").read_text().replace("$\\pm$", "±")
    notebook = report.summary(kept, pictured=False)
    for text in (page.read_text(), (tmp_path / "table.md").read_text(), in_latex, shown, notebook.text(),
                 html.unescape(notebook.html())):  # fmt: skip
        assert {one for one in printed if one not in text} == set()
    with (tmp_path / "table.csv").open() as file:
        rows = {row.pop("method"): row for row in csv.DictReader(file)}
    frame = api.StudyResults(kept).summary()
    for (method, column), entry in means.items():
        column = "over settings" if column == "mean" else column
        assert float(rows[method][f"{column} mean"]) == pytest.approx(entry.mean)
        assert frame.loc[method, f"{column} std"] == pytest.approx(entry.std)
        assert frame.loc[method, f"{column} best"] == entry.best
    assert tuned.note(findings) in page.read_text()
    assert (tmp_path / "table.md").read_text().count("**") == 2 * sum(entry.best for entry in means.values())
    gained = there(tuned.gains(findings))
    assert table.markdown([gained], tuned.gained(findings)).splitlines()[0] in (tmp_path / "table.md").read_text()
    assert tuned.gained(findings).endswith("95 % intervals that hold together in each column.")
    assert tuned.gained(findings) in (tmp_path / "table.md").read_text()
    marks = tuned.marked(tuned.values(findings))
    assert marks.startswith("†")
    assert marks in (tmp_path / "table.md").read_text()
    assert marks in shown
    below = (tmp_path / "values.tex").read_text().partition(r"\bottomrule")[2]
    assert marks[1:].replace("%", r"\%") in below.replace("~", " "), "where the mark stands, not in a comment"


def test_the_answer_is_the_same_on_the_page_and_in_a_notebook(kept, findings):
    assert report.sentence(kept) == said(findings) == api.StudyResults(kept).answer


def test_the_name_of_a_search_is_its_tuned_cell(kept, findings):
    for search, cell in findings.tuned:
        assert kept.cell(search.label).id == cell.id
    with pytest.raises(
        ConfigError, match=r"There is no cell 'alpha=5, fedprx' in .* Did you mean .*'alpha=5, fedprox \("
    ):
        kept.cell("alpha=5, fedprx")


def test_the_page_offers_tuned_methods_and_references_and_no_trial(findings):
    offered = offered_references(findings, compare(findings))
    assert {"promptfl", "fedprox", "zeroshot"} <= {*offered}
    assert {"promptfl", "fedprox", *map(findings.family, findings.references)} >= {
        name for name in offered if name not in {cell.label for cell in findings.listed}
    }
    assert not {cell.label for cell in findings.listed if cell.role == "trial"} & {*offered}
    titles = [compare(findings, name).reference.title for name in offered]
    assert len({*titles}) == len(titles), "each published point is told from the others"


@pytest.mark.parametrize("role", ["trial", "tuned", "published"])
def test_a_metric_that_some_cells_lack_has_no_value_there(role, compose, tmp_path):
    store, metric = compose().store(), "test/novel/acc_mean"
    for cell in store.cells():
        if cell.role == role and method_of(cell) == "promptfl":
            for seed in store.design().seeds_of(cell):
                put(store, cell, seed, [{**record, metric: 0.75} for record in history(cell, seed)])
    page = report.build(store, tmp_path, metric=metric)
    rows = [line.strip("| ").split(" | ") for line in (tmp_path / "table.md").read_text().splitlines()[2:5]]
    said = {name: any("75.00" in value for value in values) for name, *values in rows}
    assert said == {"promptfl": role == "tuned", "fedprox": False, "zeroshot": False}
    assert ('id="chart-tuned"' in page.read_text()) == (role == "tuned")
    assert "– %" not in there(re.search(r"<p id=\"sentence\">(.*?)</p>", page.read_text()))[1]


def test_the_column_of_chosen_values_is_the_setting_or_says_what_it_holds(findings, compose):
    assert tuned.values(findings).header == ["method", "field", *COLUMNS]
    alone = findings_of(compose("axes: {method: [promptfl, fedprox]}\n").store())
    assert tuned.values(alone).header == ["method", "field", "chosen value"]


def test_text_in_latex_is_escaped(compose):
    axes = "axes: {variant: [{label: 50% & A_B, method: promptfl}, {label: fedprox, method: fedprox}]}\n"
    findings = findings_of(compose(axes, "references=[]").store())
    text = latex.table(findings, compare(findings), tuned.table(findings))
    assert r"50\% \& A\_B & \textbf{" in text or r"50\% \& A\_B & 7" in text
    assert r" & n\_ctx & " in latex.values(findings)
    body = "\n".join(line for line in (text + latex.values(findings)).splitlines() if not line.startswith("% "))
    assert not re.search(r"(?<!\\)[%_#]", body)
    assert text.count(r" \\") == 2 + len(tuned.entries(findings)) - 1


# -- one search ----------------------------------------------------------------------------------------------


def test_one_search_says_its_gain_on_seeds_that_it_did_not_use(compose, tmp_path, capsys):
    store = compose("").store()
    findings = findings_of(store)
    (best,), (start,) = ([c for c in findings.cells if c.role == role] for role in ("tuned", "published"))
    gap = paired(findings, best, start)
    half = 4.302652729911275 * np.std(
        [accuracies(findings, best)[seed] - accuracies(findings, start)[seed] for seed in FRESH], ddof=1
    ) / math.sqrt(3)  # fmt: skip
    assert re.match(
        rf"{re.escape(upper(named(best)))} is best on validation, with .* on 3 fresh seeds, ", said(findings)
    )
    found = there(re.search(rf"; tuning gained \{gap:+.2f} points against the published setting "
                            r"\(95 % interval (\S+) to (\S+): better\)", said(findings)))  # fmt: skip
    low, high = map(float, found.groups())
    assert low == pytest.approx(gap - 100 * half, abs=0.006)
    assert high == pytest.approx(gap + 100 * half, abs=0.006)
    report.build(store, tmp_path)
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert f"| {low:+.2f} to {high:+.2f} |" in lines[2].replace("**", ""), "the sentence's interval"
    rows = [line.strip("|* ").partition("|")[0].strip(" *") for line in lines[2:] if line.startswith("|")]
    assert rows == [best.label, start.label, "zeroshot"]
    with (tmp_path / "table.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == rows
    print_results(store, "final", "table")
    first = capsys.readouterr().out.partition("\ntrials\n")[0]
    assert [line.strip() for line in re.findall(r"^  (\S.*?)  ", first, re.MULTILINE)] == ["cell", *rows]


def test_a_page_under_another_rule_gives_the_cost_until_the_trial_that_was_confirmed(compose):
    """By the best round on validation, another trial would have been chosen."""
    store = compose("").store()
    (tuned_cell,) = (cell for cell in store.cells() if cell.role == "tuned")
    trials = [cell for cell in store.cells() if cell.role == "trial"]
    (confirmed,) = (cell for cell in trials if confirming_id(cell.id) == tuned_cell.id)
    other = next(cell for cell in trials if cell != confirmed and not cell.published)
    for seed in store.seeds(other):
        first, *later = history(other, seed)
        put(store, other, seed, [{**first, "val/acc_mean": 0.99}, *later])
    own, page = findings_of(store), findings_of(store, rule="best_val")
    assert there(choose(map(page.row, trials), "best_val", page.table.study)).cell == other
    assert own.searches[0].best == page.searches[0].best == confirmed
    cost = f"found after {page.costs[confirmed.id]:.2g} of {max(page.costs.values()):.2g} full trials"
    assert cost in said(own)
    assert cost in said(page)


def test_one_search_whose_published_point_is_chosen_has_one_confirmed_cell(compose):
    store = compose("", "search.trials=1").store()
    findings = findings_of(store)
    assert [cell.role for cell in findings.cells if cell.role != "trial"] == ["tuned", "reference"]
    assert said(findings).startswith("Only the published setting has completed, with ")
