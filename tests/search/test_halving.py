"""Successive halving, on rows that the tests write down: who goes on from a rung, and what trials cost."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune.search.halving import at_rung, promoted, spent
from fpl_tune.study.cells import Cell, Suggestion
from fpl_tune.study.results import Status
from fpl_tune.study.standing import CellState, Design, Leg, Row, Run

ROUNDS = 9
DESIGN = Design((1, 2), reduction=3)
"""Rungs: round 3, and the last round of the first seed."""


def trial(
    number: int, rounds: int = 0, value: float = 0.5, status: str = "", *, published: bool = False, hedged: bool = False
) -> Row:
    """A trial whose first seed has run some rounds with one value, and passed the rungs before."""
    cell = Cell(f"{number:016x}", number, f"t{number}", "trial", {}, {"protocol": {"eval_every": 1}}, _rounds=ROUNDS)
    cell = replace(cell, first="published" if published else "", suggestion=Suggestion(number, {}, (1, 2), hedged))
    if not rounds:
        return Row(cell, DESIGN)
    history = [{"round": n, "val/acc_mean": value} for n in range(1, rounds + 1)]
    known = Status(status or ("done" if rounds == ROUNDS else "partial"))
    return Row(cell, DESIGN, {1: Run(known, rounds, lambda: history)}, frozenset({3} if rounds > 3 else ()))


def going(rows: Sequence[Row], running: Mapping[str, Leg] | None = None, *, closed: bool = False) -> list[int]:
    """Numbers of the trials that go on."""
    return [row.cell.number for row in promoted(rows, running or {}, closed=closed)]


def leg(row: Row) -> dict[str, Leg]:
    return {row.cell.id: row.standing.left[0]}


def test_the_best_third_of_those_that_reached_a_rung_goes_on() -> None:
    rows = [trial(i, 3, value) for i, value in enumerate([0.2, 0.6, 0.4, 0.1, 0.5])]
    assert going(rows[:2]) == []
    assert going(rows) == [1]
    assert going([*rows, trial(5, 3, 0.3)]) == [1, 4]
    assert going([*rows, trial(5, ROUNDS, 0.9)]) == [1], "one of two places is taken"


def test_trials_that_came_further_go_on_first() -> None:
    early = [trial(i, 3, 0.1 * i) for i in range(1, 4)]
    late = [trial(i, ROUNDS, 0.1 * i) for i in range(4, 7)]
    assert going([*early, *late]) == [6]
    assert going([*early, *late, *(trial(i, 3, 0.05) for i in range(7, 13))]) == [6, 3]


def test_hedged_trials_pass_rungs_of_rounds_but_not_that_of_seeds() -> None:
    rows = [trial(0, 3, 0.9), trial(1, 3, 0.1, hedged=True)]
    assert going(rows) == [1]
    assert going([trial(0, ROUNDS, 0.9), trial(1, ROUNDS, 0.1, hedged=True)]) == []


def test_bad_trials_that_were_hedged_make_no_room_for_others() -> None:
    hedged = [trial(i, ROUNDS, 0.1, hedged=True) for i in range(2)]
    others = [trial(i, ROUNDS, 0.5) for i in range(2, 6)]
    assert going(others) == [2]
    assert going([*hedged, *others[:2]]) == []


def test_a_trial_without_a_value_at_its_rung_goes_on() -> None:
    assert going([trial(0, 3, float("nan")), trial(1, 3, 0.5)]) == [0]


def test_a_rung_that_nothing_can_reach_lets_its_best_trial_pass_and_one_published_point() -> None:
    rows = [trial(0, 3, 0.1, published=True), trial(1, 3, 0.4)]
    assert going(rows) == []
    assert going(rows, closed=True) == [0, 1]
    assert going([rows[1], trial(2, ROUNDS, 0.6)], closed=True) == [2], "which is beyond the rung of the other"


def test_of_rungs_that_nothing_can_reach_the_earliest_is_decided_first() -> None:
    """Those that pass it may still reach the later ones."""
    assert going([trial(0, 3, 0.1, published=True), trial(1, ROUNDS, 0.6)], closed=True) == [0]


def test_a_rung_is_not_closed_while_a_running_trial_may_reach_it() -> None:
    paused, new, beyond = trial(0, 3, 0.4), trial(1), trial(2, 4, 0.5)
    assert going([paused, new], leg(new), closed=True) == []
    assert going([paused, beyond], leg(beyond), closed=True) == []
    assert going([paused, trial(2, 4, 0.5, "diverged")], closed=True) == [0]


def test_where_all_that_passed_diverged_the_next_best_goes_on() -> None:
    rows = [trial(0, 3, 0.4), trial(1, 3, 0.3), trial(2, 5, 0.9, "diverged"), trial(3, 4, 0.8, "failed")]
    assert going(rows, closed=True) == [0]


values = st.lists(st.integers(0, 1000), min_size=1, max_size=12, unique=True)


@given(values, st.randoms(use_true_random=False), st.booleans())
def test_who_goes_on_does_not_depend_on_the_order_of_rows(
    numbers: list[int], draw: random.Random, closed: bool
) -> None:
    rows = [trial(i, draw.choice([3, ROUNDS]), number / 1000) for i, number in enumerate(numbers)]
    other = draw.sample(rows, len(rows))
    assert going(rows, closed=closed) == going(other, closed=closed)


@given(values, st.randoms(use_true_random=False))
def test_a_search_ends_with_a_trial_that_is_done_unless_all_end_before(numbers: list[int], draw: random.Random) -> None:
    rows = {i: trial(i) for i in range(len(numbers))}
    ends = {i: draw.randint(1, ROUNDS) for i in rows if draw.random() < 0.3}
    while True:
        states = {i: row.standing for i, row in rows.items()}
        queued = [i for i, now in states.items() if now.state is CellState.QUEUED]
        if queued:
            i = draw.choice(queued)
            left, value = states[i].left[0], numbers[i] / 1000
            status = "diverged" if ends.get(i, ROUNDS + 1) <= left.rounds else ""
            ran = trial(i, min(ends.get(i, ROUNDS), left.rounds) if status else left.rounds, value, status)
            new = {seed: ran.runs[1] for seed in left.seeds}
            rows[i] = replace(rows[i], runs={**rows[i].runs, **new})
            continue
        passing = promoted([*rows.values()], {}, closed=False)
        passing = passing or promoted([*rows.values()], {}, closed=True)
        if not passing:
            break
        for row in passing:
            rung = row.standing.rung
            rows[row.cell.number] = replace(row, passed=row.passed | {rung})
    found = [row.standing.state for row in rows.values()]
    assert CellState.DONE in found or {*found} == {CellState.DIVERGED}
    best = max((i for i in rows if i not in ends), key=lambda i: numbers[i], default=None)
    if best is not None and not ends:
        assert rows[best].standing.state is CellState.DONE, "the best one is never pruned where curves are flat"


def test_a_lower_objective_is_better_where_the_metric_says_so() -> None:
    design = replace(DESIGN, objectives=("val/loss",))
    rows = [trial(i, 3) for i in range(3)]
    for i, row in enumerate(rows):
        history = [{"round": n, "val/loss": 1.0 + i} for n in range(1, 4)]
        rows[i] = replace(row, design=design, runs={1: Run(Status.PARTIAL, 3, lambda history=history: history)})
    assert [row.cell.number for row in at_rung(rows, 3)] == [0, 1, 2]
    assert [row.cell.number for row in promoted(rows, {}, closed=False)] == [0]


@given(st.lists(st.integers(0, 4), max_size=20))
def test_one_objective_is_ranked_by_value_and_then_by_age(numbers: list[int]) -> None:
    rows = [trial(i, 3, number / 4) for i, number in enumerate(numbers)]
    expected = sorted(rows, key=lambda row: (-numbers[row.cell.number], row.cell.number))
    assert at_rung(rows, 3) == expected


def costly(number: int, accuracy: float, sent: int, rounds: int = 3, length: int = ROUNDS) -> Row:
    """A trial of two objectives, which sends the same number of bytes in each of its rounds."""
    history = [
        {"round": n, "val/acc_mean": accuracy, "comm/up_bytes": n * sent, "comm/down_bytes": 0}
        for n in range(1, rounds + 1)
    ]
    row = trial(number)
    design = replace(DESIGN, objectives=("val/acc_mean", "comm/total_bytes"))
    cell = replace(row.cell, _rounds=length)
    return replace(row, cell=cell, design=design, runs={1: Run(Status.PARTIAL, rounds, lambda: history)})


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), min_size=1, max_size=20))
def test_of_two_objectives_no_paused_trial_dominates_one_that_goes_on(points: list[tuple[int, int]]) -> None:
    rows = [costly(i, accuracy / 6, sent) for i, (accuracy, sent) in enumerate(points)]
    passing = {*going(rows)}
    assert len(passing) == len(rows) // 3
    for i in passing:
        for j in {*range(len(rows))} - passing:
            (mine, cost), (other, others) = points[i], points[j]
            assert not (other >= mine and others <= cost and points[i] != points[j])
            assert points[i] != points[j] or i < j, "of equal ones the first"


def test_those_that_go_on_are_spread_over_the_front() -> None:
    front = [(0.9, 9), (0.89, 8), (0.88, 7), (0.5, 1), (0.7, 5), (0.6, 4)]
    rows = [costly(i, *point) for i, point in enumerate(front)]
    assert [row.cell.number for row in at_rung(rows, 3)][:3] == [0, 3, 4]
    assert going(rows) == [0, 3]


def test_trials_of_different_lengths_are_compared_by_what_all_their_rounds_will_cost() -> None:
    long, short = costly(0, 0.5, 2), costly(1, 0.5, 3, length=5)
    assert (long.objectives_after(3), short.objectives_after(3)) == ((0.5, 18.0), (0.5, 15.0))
    assert [row.cell.number for row in at_rung([long, short], 3)] == [1, 0]


@pytest.mark.parametrize(
    ("row", "rounds"),
    [
        (trial(0), 3),
        (trial(0, 1, status="diverged"), 3),
        (trial(0, 3), 3),
        (trial(0, ROUNDS), ROUNDS),
        (trial(0, hedged=True), ROUNDS),
        (trial(0, 1, status="diverged", hedged=True), 3),
    ],
)
def test_a_trial_costs_what_ran_and_at_least_its_first_leg(row: Row, rounds: int) -> None:
    assert spent(row) == rounds


def test_a_trial_costs_the_rounds_of_all_its_seeds() -> None:
    row = trial(0, ROUNDS)
    assert spent(replace(row, runs={1: row.runs[1], 2: replace(row.runs[1], rounds=4)})) == ROUNDS + 4


def test_without_halving_a_trial_costs_all_rounds_of_all_seeds() -> None:
    whole = replace(DESIGN, reduction=None)
    rows = (replace(row, design=whole) for row in (trial(0), trial(0, 1, status="diverged")))
    assert [*map(spent, rows)] == [2 * ROUNDS] * 2
