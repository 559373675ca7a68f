"""Where cells stand, on rows that the tests write down: properties of `Row` and `legs`."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.study.cells import Cell, Suggestion
from fpl_tune.study.design import Design, rungs_of
from fpl_tune.study.results import Run, Status
from fpl_tune.study.standing import CellState, Row, legs

ROUNDS = 9
RUN = {"protocol": {"eval_every": 1}}
GRID = Cell("a" * 16, 0, "a", "cell", {}, RUN, _rounds=ROUNDS)
TRIAL = replace(GRID, role="trial", suggestion=Suggestion(0, {}, (1, 2)))
HALVED = Design((1, 2, 3), reduction=3)


def history(rounds: int, value: float = 0.5) -> list[dict[str, Any]]:
    return [{"round": number, "val/acc_mean": value} for number in range(1, rounds + 1)]


def run(rounds: int, status: str = "") -> Run:
    """What a seed left: all rounds unless it is said otherwise."""
    known = Status(status or ("done" if rounds == ROUNDS else "partial"))
    return Run(known, rounds, lambda: history(rounds))


def runs() -> Any:
    """Runs of some seeds: partial at a rung, whole, or ended by a failure."""
    one = st.sampled_from([run(3), run(ROUNDS), run(2, "diverged"), run(5, "failed")])
    return st.dictionaries(st.integers(1, 6), one, max_size=5)


DESIGNS = st.one_of(
    st.builds(
        Design,
        st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).map(tuple),
        reduction=st.sampled_from([None, 2, 3]),
        first_rung=st.sampled_from([None, 2, 4]),
    ),
    st.sampled_from([Design((1, 2, 3, 4, 5), looks=(2, 3, 5))]),
)


def rows(designs: Any = DESIGNS) -> Any:
    cells = st.sampled_from([GRID, TRIAL, replace(TRIAL, reference="promptfl"), replace(GRID, role="reference")])
    marks = st.frozensets(st.sampled_from([2, 3, 4, 5, 6, 8, 9]), max_size=3)
    return st.builds(Row, cells, designs, runs(), marks)


@given(rows())
def test_what_has_all_its_seeds_and_rounds_is_done_however_it_came_there(row: Row) -> None:
    whole = all(seed in row.runs and row.runs[seed].status == Status.DONE for seed in row.wanted)
    assert (row.standing.state is CellState.DONE) == whole


@given(rows())
def test_what_is_left_is_of_wanted_seeds_that_did_not_end(row: Row) -> None:
    state, left, rung = row.standing
    assert bool(left) == (state in (CellState.QUEUED, CellState.PAUSED))
    for leg in left:
        assert {*leg.seeds} <= {*row.wanted}
        assert leg.rounds <= ROUNDS
    if left:
        assert not any(seed in row.runs and row.runs[seed].ended(left[0].rounds) for seed in left[0].seeds)
        way = [(leg.rounds, leg.rung) for leg in legs(row)]
        assert [(leg.rounds, leg.rung) for leg in left] == way[way.index((left[0].rounds, left[0].rung)) :]
    assert bool(rung) == (state is CellState.PAUSED)


@given(rows())
def test_following_the_legs_ends_with_every_wanted_seed(row: Row) -> None:
    for _ in range(20):
        now = row.standing
        if now.state is CellState.PAUSED:
            assert now.rung not in row.passed
            row = replace(row, passed=row.passed | {now.rung})
        elif now.state is CellState.QUEUED:
            row = replace(row, runs={**row.runs, **{seed: run(now.left[0].rounds) for seed in now.left[0].seeds}})
        else:
            break
    assert row.standing.state in (CellState.DONE, CellState.DIVERGED, CellState.FAILED)


@given(rows(DESIGNS.filter(lambda design: not design.looks)), runs())
def test_seeds_that_are_not_asked_for_decide_nothing(row: Row, others: dict[int, Run]) -> None:
    other = replace(row, runs={**{s: r for s, r in others.items() if s not in row.design.seeds}, **row.runs})
    assert row.standing == other.standing
    assert row.counts == other.counts


@given(rows())
def test_seeds_that_count_ran_whole_and_none_of_a_paused_trial_does(row: Row) -> None:
    counting = row.counts
    assert all(row.runs[seed].status == Status.DONE and seed in row.design.seeds for seed in counting)
    if row.standing.state is CellState.PAUSED:
        assert counting == ()
    if row.standing.state is CellState.DONE:
        assert {*row.wanted} <= {*counting}


@given(rows())
def test_a_result_is_called_done_exactly_if_it_counts(row: Row) -> None:
    for seed in row.results:
        assert (row.status(seed) == "done") == (seed in row.counts)


def test_a_failure_ends_a_trial_but_not_the_other_seeds_of_a_cell_of_a_grid() -> None:
    bad = {1: run(2, "diverged")}
    assert Row(TRIAL, Design((1, 2)), bad).standing.state is CellState.DIVERGED
    left = Row(GRID, Design((1, 2)), bad).standing
    assert (left.state, left.left[0].seeds) == (CellState.QUEUED, (2,))
    assert Row(GRID, Design((1, 2)), {**bad, 2: run(ROUNDS)}).standing.state is CellState.DIVERGED


def test_a_halved_trial_runs_its_first_seed_to_each_rung_and_then_the_others() -> None:
    assert [(leg.seeds, leg.rounds, leg.rung) for leg in legs(Row(TRIAL, HALVED))] == [
        ((1,), 3, True),
        ((1,), ROUNDS, True),
        ((2, 3), ROUNDS, False),
    ]
    assert [leg.seeds for leg in legs(Row(replace(TRIAL, reference="promptfl"), HALVED))] == [(1, 2, 3)]
    assert [leg.rounds for leg in legs(Row(TRIAL, replace(HALVED, seeds=(1,))))] == [3, ROUNDS]


def test_a_trial_pauses_at_a_rung_until_it_is_let_pass() -> None:
    """It is the first seed's; a trial that has not come to its rung is queued."""
    assert Row(TRIAL, HALVED).standing.state is CellState.QUEUED
    paused = Row(TRIAL, HALVED, {1: run(3)}).standing
    assert (paused.state, paused.rung) == (CellState.PAUSED, 3)
    assert [leg.rounds for leg in paused.left] == [ROUNDS, ROUNDS]
    going = Row(TRIAL, HALVED, {1: run(3)}, frozenset({3})).standing
    assert (going.state, going.left) == (CellState.QUEUED, paused.left)
    assert Row(TRIAL, HALVED, {1: run(ROUNDS)}, frozenset({3})).standing.rung == ROUNDS, "before its other seeds"


def test_a_trial_that_completed_its_first_seed_alone_does_not_count_yet() -> None:
    passed = frozenset({3, ROUNDS})
    assert Row(TRIAL, HALVED, {1: run(ROUNDS)}, passed).counts == ()
    assert Row(TRIAL, HALVED, {1: run(ROUNDS), 2: run(ROUNDS)}, passed).counts == (1, 2)
    assert Row(GRID, HALVED, {1: run(ROUNDS)}).counts == (1,)


def test_a_cell_has_the_seeds_of_the_looks_that_it_passed() -> None:
    design = Design((1, 2, 3, 4, 5), looks=(2, 3, 5))
    assert Row(GRID, design).wanted == (1, 2)
    assert Row(GRID, design, passed=frozenset({3})).wanted == (1, 2, 3)
    assert Row(GRID, design, {4: run(ROUNDS)}).wanted == (1, 2, 4)


@pytest.mark.parametrize(
    ("reduction", "first", "every", "rounds", "found"),
    [
        (3, None, 1, 9, (3,)),
        (3, None, 1, 10, (4,)),
        (2, None, 1, 8, (4,)),
        (3, 1, 1, 9, (1, 3)),
        (2, 1, 3, 9, (3, 6)),
        (3, None, 5, 10, (5,)),
        (3, None, 10, 10, ()),
        (3, None, 1, 1, ()),
    ],
)
def test_rungs_are_evaluated_rounds_before_the_last(
    reduction: int, first: int | None, every: int, rounds: int, found: tuple[int, ...]
) -> None:
    assert rungs_of(reduction, first, every, rounds) == found


def test_values_at_rungs_are_those_of_the_last_evaluated_round_before() -> None:
    records = [{"round": n} | ({"val/acc_mean": n / 10} if n % 2 == 0 else {}) for n in range(1, 6)]
    row = Row(TRIAL, HALVED, {1: Run(Status.PARTIAL, 5, lambda: records)})
    assert row.rung_values == {3: (0.2,)}
    assert replace(row, cell=GRID).rung_values == {}
    assert row.runs[1].latest("comm/total_bytes", 3) is None


def test_a_cell_reads_its_rounds_from_its_run() -> None:
    cell = Cell("b" * 16, 0, "b", "cell", {}, RunSpec())
    assert (cell.rounds, cell.eval_every) == (RunSpec().rounds, RunSpec().protocol.eval_every)
    away = {**cell.node, "method": {"name": "gone:Method", "lam": 0.5}}
    stored = replace(cell, source=away)
    assert methods.as_dict(stored.run.method) == away["method"], "its method is not needed to read it"


@pytest.mark.parametrize("looks", [(2, 3, 5), (1, 5), (4, 5), (5,)])
def test_a_cell_trains_the_seeds_of_a_look_together(looks: tuple[int, ...]) -> None:
    """The first ones, or those that a look has beyond the one before it."""
    design, ran, most = Design((1, 2, 3, 4, 5), looks=looks), dict[int, Run](), 0
    for look in looks:
        cell = Row(GRID, design, dict(ran), passed=frozenset({*looks[: looks.index(look) + 1]}))
        (leg,) = cell.standing.left
        most, ran = max(most, len(leg.seeds)), {**ran, **dict.fromkeys(leg.seeds, run(ROUNDS))}
    assert design.most_together() == most
    assert {*ran} == {1, 2, 3, 4, 5}
    assert Design((1, 2), confirm=(3, 4, 5)).most_together() == 3
