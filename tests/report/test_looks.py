"""What the page says where seeds are added until comparisons are decided."""

from typing import Any

import pytest

from fpl_tune.findings.comparisons import compare, look
from fpl_tune.report import answer, table

from .conftest import findings_of, reach

BODY = """axes: {method.n_ctx: [1, 2, 4, 8]}
seeds: until_decided
looks: [3, 5, 8]
report: {reference: n_ctx=1}
"""
LEVELS = {0: 0.7, 1: 0.5, 2: 0.72, 3: 0.7}
REACHED = {0: 5, 1: 3, 2: 5, 3: 5}
"""Seeds by cell after the second look."""


def looked(make_store: Any, reached: dict[int, int], name: str = "toy") -> Any:
    store = make_store(body=BODY, name=name, clients=4, fill=lambda cell, seed: seed <= reached[cell.number])
    reach(store, lambda cell: LEVELS[cell.number], lambda cell: 0.012)
    return store


def test_the_page_says_at_which_look_a_verdict_was_there(make_store: Any) -> None:
    findings = findings_of(looked(make_store, REACHED))
    comparisons = compare(findings)
    assert findings.confidence == "98.3 %"
    assert comparisons.frame["look"].tolist() == [3, 5, 0]
    main = table.table(findings, comparisons)
    assert "98.3 % interval" in main.header
    verdicts = [row.cells[main.header.index("verdict")].text for row in main.rows]
    assert verdicts == ["–", "worse at 3 seeds", "better at 5 seeds", "undecided"]
    assert [row.cells[main.header.index("seeds")].text for row in main.rows] == ["5", "3", "5", "5"]
    texts = " ".join(answer.decided(findings, comparisons).texts)
    assert "evaluated after 3, 5 and 8 seeds, as declared before the first result, with intervals of 98.3 %" in texts
    assert "Decided: 1 comparison after 3 seeds, 1 comparison after 5 seeds; 1 comparison undecided so far." in texts
    assert "its 98.3 % intervals" in table.note(findings, comparisons)


def test_a_look_counts_once_all_have_reached_it_that_run_on_to_it(make_store: Any) -> None:
    """Two cells have run on to five seeds while the third one is on its way: the page shows what three seeds said."""
    findings = findings_of(looked(make_store, {**REACHED, 3: 3}))
    assert compare(findings).frame["seen"].tolist() == compare(findings).frame["seeds"].tolist() == [3, 3, 3]
    assert "so far" in " ".join(answer.decided(findings, compare(findings)).texts)
    three = findings_of(looked(make_store, dict.fromkeys(range(4), 3), "three"))
    assert findings.sweep.result == three.sweep.result, "that of the axis too"


@pytest.mark.parametrize(("reached", "seeds", "further"), [
    ({0: 3, 1: 3, 2: 3, 3: 3}, 3, (4, 5)), (REACHED, 5, (6, 7, 8)), ({**REACHED, 0: 8, 2: 8, 3: 8}, 8, ()),
])  # fmt: skip
def test_undecided_cells_and_their_reference_run_on(
    make_store: Any, reached: dict[int, int], seeds: int, further: tuple[int, ...]
) -> None:
    store = looked(make_store, reached)
    findings = findings_of(store)
    found = look(findings)
    assert found is not None
    comparisons = compare(findings)
    left = [str(cell) for cell in comparisons.frame.index[comparisons.frame["look"] == 0]]
    assert (found.seeds, found.compared, found.further) == (seeds, 3, further)
    assert found.decided == 3 - len(left)
    assert set(found.goes_on) == ({*left, store.cells()[0].id} if further else set())
    assert store.cells()[1].id not in found.goes_on, "it was decided at once"


def test_before_the_first_look_nothing_is_judged(make_store: Any) -> None:
    store = looked(make_store, dict.fromkeys(range(4), 2))
    findings = findings_of(store)
    assert look(findings) is None
    assert compare(findings).frame.empty
    assert "The first look is still to come." in " ".join(answer.decided(findings, compare(findings)).texts)
