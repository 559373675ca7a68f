"""What is said of a study, on tables that the tests write: a cell of which a seed does not count is only shown."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fpl_tune import config
from fpl_tune.config import Study
from fpl_tune.findings.comparisons import compare
from fpl_tune.findings.findings import Findings
from fpl_tune.study.grid import expand
from fpl_tune.study.results import Status, make_result
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import CellState, Design, Row
from fpl_tune.study.table import StudyTable

from ..conftest import MakeStore, drawn_history, there
from ..report.conftest import findings_of, put, reach

SWEEP = "axes: {method.n_ctx: [1, 2, 4, 8]}\nseeds: 3\n"
CLAIMED = f"""{SWEEP}
report:
  reference: n_ctx=1
  claims:
    two: {{says: Two tokens are better., cells: {{n_ctx: 2}}, versus: {{n_ctx: 1}}}}
    four: {{says: Four are level with eight., cells: {{n_ctx: 4}}, versus: {{n_ctx: 8}}, within: 5}}
"""
CELLS, SEEDS = range(4), (1, 2, 3)
BROKEN = (Status.DIVERGED, Status.FAILED)
Left = Mapping[tuple[int, int], Status | None]
"""What a seed of a cell, by its number, has left; None: nothing."""


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    """A sweep, and the same cells where the study has claims."""
    folder, found = tmp_path_factory.mktemp("findings"), {}
    for name, body in (("sweep", SWEEP), ("claimed", CLAIMED)):
        path = folder / f"{name}.yaml"
        path.write_text(f"defaults: [/study, _self_]\n{body}")
        found[name] = config.compose_study(str(path), ["protocol.rounds=2"])
    return found


def records(number: int, seed: int) -> list[dict[str, Any]]:
    """Each cell is better than the one before, and its seeds differ little."""
    return drawn_history(seed, 0.5 + 0.05 * number, rounds=2, clients=4)


def findings_on(spec: Study, left: Left) -> Findings:
    """The findings of a table that is written down."""
    design, rows = Design.of(spec, halved=False), {}
    for cell in expand(spec):
        runs = {}
        for seed in design.seeds:
            if (status := left[cell.number, seed]) is not None:
                history = records(cell.number, seed)[: 1 if status in BROKEN else 2]
                runs[seed] = make_result(status, history, split_hash=f"split{seed}")
        rows[cell.id] = Row(cell, design, runs)
    return Findings(spec, StudyTable(StudyFile.of(spec), design, rows))


def said(findings: Findings) -> dict[str, Any]:
    """All that compares cells: choice, ranking of equals, differences, letters, plateau, claims."""
    choice, sweep = findings.choice, findings.sweep if findings.swept else None
    return {
        "choice": (choice.cells, choice.values, choice.seeds) if choice else None,
        "tied": findings.tied,
        "comparisons": compare(findings).frame.to_dict("index"),
        "values": findings.values.to_dict("records"),
        "letters": findings.letters,
        "same group": findings.same_group,
        "sweep": (sweep.means, sweep.best, sweep.result, sweep.seeds) if sweep else None,
        "claims": [(claim.name, claim.status, claim.difference, claim.low, claim.high) for claim in findings.claims],
    }


def whole(findings: Findings) -> set[int]:
    """Numbers of the cells that have results and of which all seeds count."""
    return {cell.number for cell in findings.cells if findings.compared(cell)}


STATUS = st.sampled_from([Status.DONE, Status.DONE, Status.DONE, None, *BROKEN])
WHOLE: Left = {(number, seed): Status.DONE for number in CELLS for seed in SEEDS}


@pytest.mark.parametrize("name", ["sweep", "claimed"])
@settings(max_examples=40)
@given(left=st.fixed_dictionaries({place: STATUS for place in WHOLE}))
@example(left={**WHOLE, (3, 2): Status.DIVERGED})
@example(left={**WHOLE, (0, 1): Status.FAILED})
@example(left={**dict.fromkeys(WHOLE), (3, 3): Status.DIVERGED})
def test_a_cell_of_which_a_seed_does_not_count_is_shown_and_compared_with_nothing(
    specs: dict[str, Study], name: str, left: Left
) -> None:
    findings = findings_on(specs[name], left)
    broken = {number for (number, _), status in left.items() if status in BROKEN}
    present = {number for (number, _), status in left.items() if status is not None}
    assert whole(findings) == present - broken
    without = findings_on(specs[name], {place: None if place[0] in broken else left[place] for place in left})
    np.testing.assert_equal(said(findings), said(without), "it enters no comparison")
    ids = {cell.id: cell.number for cell in findings.cells}
    tested = compare(findings).frame
    mentioned = {*findings.marked, *findings.letters, *tested.index, *tested["reference"], *findings.values["cell"]}
    assert {ids[str(key)] for key in mentioned} <= present - broken
    for cell in findings.cells:
        done = [seed for seed in SEEDS if left[cell.number, seed] == Status.DONE]
        row = findings.frame.loc[cell.id]
        means = [np.mean(records(cell.number, seed)[-1]["clients/test"]) for seed in done]
        assert row["n"] == len(done)
        assert row["mean"] == pytest.approx(np.mean(means) if done else math.nan, nan_ok=True)
        if cell.number in broken and all(left[cell.number, seed] for seed in SEEDS):
            assert row["status"] in BROKEN
    for claim, names in zip(findings.claims, ((1, 0), (2, 3)), strict=False):
        if broken & {*names}:
            assert claim.status == "undecided"
            assert claim.reason.endswith((" has diverged.", " has failed.")) or "There is no result of " in claim.reason


def test_choice_differences_letters_plateau_and_claims_leave_out_the_best_cell_where_a_seed_diverged(
    specs: dict[str, Study],
) -> None:
    before = findings_on(specs["sweep"], WHOLE)
    assert before.best is not None
    assert before.best.label == "n_ctx=8"
    left = {**WHOLE, (3, 2): Status.DIVERGED}
    sweep, claimed = (findings_on(specs[name], left) for name in ("sweep", "claimed"))
    (last,) = (cell for cell in sweep.cells if cell.label == "n_ctx=8")
    for findings in (sweep, claimed):
        assert findings.best is not None
        assert findings.best.label == "n_ctx=4"
        row = findings.frame.loc[last.id]
        assert (row["status"], row["n"]) == (CellState.DIVERGED, 2)
        assert row["mean"] == pytest.approx(0.5 + 0.05 * 3, abs=0.2)
        assert last in findings.finished
        assert last.id not in compare(findings).frame.index
        assert last.id not in set(findings.values["cell"])
    assert compare(sweep, "n_ctx=8").frame.empty, "nothing is compared with it either"
    assert last.id not in sweep.sweep.means
    assert claimed.letters.keys() == {cell.id for cell in claimed.cells} - {last.id}
    said = [(claim.status, claim.reason) for claim in claimed.claims]
    assert said[1] == ("undecided", "A seed of n_ctx=8 has diverged.")
    assert claimed.claims[0].seeds == 3


def test_cells_go_from_the_best_down_and_those_without_results_come_last(specs: dict[str, Study]) -> None:
    left: Left = {place: None if place[0] == 2 else Status.DONE for place in WHOLE}
    findings = findings_on(specs["sweep"], left)
    assert [cell.number for cell in findings.best_first(findings.cells)] == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("seeds", "said_of_them"),
    [
        ({}, "no seeds"), ({0: 1, 1: 1}, "1 seed"), ({0: 3, 1: 3}, "3 seeds"), ({0: 1, 1: 3}, "1–3 seeds"),
        ({0: 1, 1: 2, 2: 3}, "1–3 seeds"),
    ],
)  # fmt: skip
def test_captions_say_how_many_seeds_values_have(
    specs: dict[str, Study], seeds: dict[int, int], said_of_them: str
) -> None:
    left: Left = {place: Status.DONE if place[1] <= seeds.get(place[0], 0) else None for place in WHOLE}
    assert findings_on(specs["sweep"], left).basis == f"n = {said_of_them}, rule “final”"


def test_a_label_of_forty_characters_is_a_name_and_a_longer_one_is_not(make_store: MakeStore) -> None:
    labels = "a" * 40, "b" * 41
    values = ", ".join(f"{{label: {name}, method.n_ctx: {number}}}" for number, name in enumerate(labels, 1))
    findings = findings_of(make_store(body=f"axes: {{variant: [{values}]}}\nseeds: 1\n"))
    assert [findings.names.of(cell) for cell in findings.cells] == [labels[0], f"{labels[1][:40]} cell 1"]


def test_a_seed_on_another_partition_does_not_enter_the_comparison_of_an_axis(make_store: MakeStore) -> None:
    store = make_store(body=SWEEP.replace("seeds: 3", "seeds: 5"), clients=4)
    reach(store, lambda cell: 0.9 if cell.number < 3 else 0.6)
    before, other = findings_of(store).sweep.result, store.cells()[1]
    history = store.history(other, 2)
    history[-1] |= {"test/acc_mean": 0.3, "clients/test": [0.3] * 4}
    store.put(other, 2, replace(there(store.result(other, 2)), records=lambda: history))
    apart = findings_of(store).sweep.result
    put(store, other, 2, split_hash="other")
    after = findings_of(store).sweep.result
    assert before is not None
    assert apart is not None
    assert after is not None
    assert (after.plateau, after.equal) == (before.plateau, before.equal)
    assert (apart.plateau, apart.equal) != (before.plateau, before.equal)


def test_letters_tell_cells_apart_and_so_need_two(specs: dict[str, Study]) -> None:
    for numbers in ({0}, {0, 2}):
        left: Left = {place: Status.DONE if place[0] in numbers else None for place in WHOLE}
        findings = findings_on(specs["claimed"], left)
        assert len(findings.letters) == (2 if len(numbers) == 2 else 0)


def test_values_are_by_client_where_records_hold_them(specs: dict[str, Study]) -> None:
    frame = findings_on(specs["sweep"], WHOLE).values
    assert len(frame) == 4 * 3 * 4
    assert set(frame["split"]) == {"split1", "split2", "split3"}
    first = frame.loc[frame["cell"] == frame["cell"].iloc[0]]
    expected = [value for seed in SEEDS for value in records(0, seed)[-1]["clients/test"]]
    pd.testing.assert_series_equal(first["value"], pd.Series(expected), check_names=False, check_index=False)
