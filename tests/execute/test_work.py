"""The work that is left, and the time that it takes: on tables that the tests write down, and in simulated worlds."""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from fpl_tune.execute.work import (
    Pace,
    SearchCosts,
    confirmation_to_come,
    limit,
    rounds_left,
    used,
    work_left,
    work_to_come,
)
from fpl_tune.study.cells import Cell, Suggestion
from fpl_tune.study.results import Status
from fpl_tune.study.standing import CellState, Design, Row, Run

SEEDS = (1, 2)


def cell(number: int, role: str = "cell", rounds: int = 4, *, hedged: bool = False) -> Cell:
    asked = Suggestion(number, {}, (1, 2), hedged=hedged) if role == "trial" else None
    node: Any = {"protocol": {"eval_every": 1}}
    return Cell(str(number), number, str(number), cast("Any", role), {}, node, suggestion=asked, _rounds=rounds)


def ran(row: Row, number: int, seeds: Sequence[int] = SEEDS) -> Row:
    """A row whose seeds have run so many rounds."""
    status = Status.DONE if number == row.cell.rounds else Status.PARTIAL
    return replace(row, runs={**row.runs, **{seed: Run(status, number) for seed in seeds}})


def one(cell: Cell) -> float:
    return 1.0


def number(cell: Cell) -> float:
    return float(cell.number)


# -- work ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", range(20))
def test_each_round_of_a_grid_lowers_the_work_by_its_cost(draw: int) -> None:
    chance = random.Random(draw)
    design = Design(tuple(range(1, chance.randint(1, 4) + 1)))
    rows = {n: Row(cell(n, rounds=chance.randint(1, 6)), design) for n in range(5)}

    def left() -> float:
        return work_left(rows.values(), lambda cell: 1 + cell.number)

    assert left() == sum((1 + n) * row.cell.rounds * len(design.seeds) for n, row in rows.items())
    steps = [(n, seed) for n, row in rows.items() for seed in design.seeds for _ in range(row.cell.rounds)]
    chance.shuffle(steps)
    for n, seed in steps:
        before, run = left(), rows[n].runs.get(seed)
        rows[n] = ran(rows[n], (run.rounds if run else 0) + 1, (seed,))
        assert left() == pytest.approx(before - (1 + n))
    assert left() == 0


@pytest.mark.parametrize("status", [Status.FAILED, Status.DIVERGED])
def test_a_seed_that_ended_early_has_nothing_left(status: Status) -> None:
    row = Row(cell(0), Design(SEEDS), {1: Run(status, 1)})
    assert rounds_left(row) == 4, "those of the other seed"
    assert rounds_left(replace(row, cell=cell(0, "trial"))) == 0, "one seed ends a trial"


def test_rounds_behind_a_rung_count_by_the_chance_of_passing_it() -> None:
    design, hedged = Design(SEEDS, reduction=3, first_rung=1), cell(0, "trial", 9, hedged=True)
    fresh = Row(cell(0, "trial", 9), design)
    assert rounds_left(fresh) == pytest.approx(1 + 2 / 3 + 6 / 9 + 9 / 27), "rungs at 1, 3 and 9 rounds"
    assert rounds_left(Row(hedged, design)) == 9 + 9 / 3, "hedged: the rung of seeds alone"
    paused = ran(fresh, 1, (1,))
    assert paused.standing.state is CellState.PAUSED
    assert rounds_left(paused) == 0
    passed = replace(paused, passed=frozenset({1}))
    assert rounds_left(passed) == pytest.approx(2 + 6 / 3 + 9 / 9)
    assert rounds_left(ran(passed, 2, (1,))) == pytest.approx(1 + 6 / 3 + 9 / 9), "under way"


def test_a_whole_search_costs_what_its_fresh_trials_were_expected_to() -> None:
    """Of as many trials as the powers of `reduction`, one in `reduction` passes each rung, and nothing is left over."""
    design = Design((1,), reduction=3, first_rung=1)
    rows = {n: Row(cell(n, "trial", 9), design) for n in range(27)}
    expected, spent = work_left(rows.values(), one), 0
    for rung, before in ((1, 0), (3, 1), (9, 3)):
        share = 27 // 3 ** (0, 1, 2)[(1, 3, 9).index(rung)]
        for n in range(share):
            marked = rows[n].passed | ({before} if before else set())
            rows[n] = ran(replace(rows[n], passed=frozenset(marked)), rung, (1,))
            spent += rung - before
    assert expected == pytest.approx(spent)
    assert work_left(rows.values(), one) == 0


def test_no_cell_is_faster_where_slots_are_idle() -> None:
    design = Design(SEEDS)
    rows = [ran(Row(cell(0), design), 4), Row(cell(1), design)]
    assert work_left(rows, one, slots=4) == 4 * 8, "one cell is left for four slots"
    rows += [Row(cell(n), design) for n in range(2, 40)]
    assert work_left(rows, one, slots=4) == 39 * 8


@dataclass(frozen=True)
class Limited:
    trials: int | None = None
    budget: float | None = None


def test_trials_to_come_cost_the_mean_of_those_that_were_suggested() -> None:
    """Where a search compares methods, the last trial says little of the others."""
    tried = [Row(cell(n, "trial"), Design(SEEDS)) for n in (1, 9)]

    assert work_to_come(tried, Limited(trials=12), 1, number) == 10 * 8 * 5
    assert work_to_come(tried, Limited(trials=12), 2, number) == 22 * 8 * 5, "in each of two searches"
    assert work_to_come(tried, Limited(trials=1), 1, number) == 0
    assert work_to_come([], Limited(trials=12), 1, number) == 0, "before the first, nothing is known"


def test_trials_to_come_cost_as_those_of_their_search() -> None:
    design, cheap, dear = Design(SEEDS, confirm=(7, 8, 9)), replace(cell(1, "trial"), search="A"), cell(9, "trial")
    rows = [Row(each, design) for each in (cheap, replace(cheap, number=3), replace(dear, search="B"))]
    assert work_to_come(rows, Limited(trials=4), 2, number) == 2 * 8 * 2 + 3 * 8 * 9
    unseen = 4 * 8 * (2 + 9) / 2
    assert work_to_come(rows, Limited(trials=4), 3, number) == 2 * 8 * 2 + 3 * 8 * 9 + unseen

    assert confirmation_to_come(rows, 2, number) == 2 * 3 * 4 * (2 + 9), "of each, two points on three seeds"
    over = Row(replace(cell(0, "tuned"), search="B"), design)
    assert confirmation_to_come([*rows, over], 2, number) == 2 * 3 * 4 * 2
    assert confirmation_to_come([], 2, number) == 0


def test_rounds_of_searches_cost_what_they_have_taken() -> None:
    a, b, new = (replace(cell(n, "trial"), search=name) for n, name in enumerate("ABC"))
    done = Run(Status.DONE, 4, costs={"time/seconds": 8.0})
    costs = SearchCosts([Row(a, Design(SEEDS), {1: done})])
    assert [costs(each) for each in (a, b, new)] == [2, 2, 2], "unknown ones as much as the others"
    costs.add(b, 40.0, 4)
    costs.add(a, 1.0, 1)
    assert [costs(each) for each in (a, b, new)] == [9 / 5, 10, (9 / 5 + 10) / 2]
    assert SearchCosts([])(a) == 1


def test_a_budget_is_spent_by_rounds() -> None:
    design = Design((1,), reduction=3, first_rung=3)
    rows = [ran(Row(cell(n, "trial", 9), design), 3, (1,)) for n in range(6)]
    assert used(rows, Limited(budget=5)) == pytest.approx(2)
    assert work_to_come(rows, Limited(budget=5), 1, one) == pytest.approx(3 * 9)
    assert work_to_come([ran(row, 9, (1,)) for row in rows], Limited(budget=5), 1, one) == 0, "overspent"
    assert limit(Limited()) == 20


# -- pace ------------------------------------------------------------------------------------------------------


def test_the_pace_is_that_of_the_recent_half() -> None:
    pace = Pace(100.0)
    assert pace.seconds(100.0, 8) is None
    for number in range(1, 11):
        pace.add(100.0 + 3 * number, 1.0, 1)
        assert pace.seconds(100.0 + 3 * number, 8) == pytest.approx(24), "a steady one is exact at once"
    assert pace.seconds(132.0, 8) == pytest.approx(22), "the clock goes on"
    assert pace.seconds(200.0, 8) == 0
    for number in range(1, 11):
        pace.add(130.0 + 6 * number, 1.0, 1)
    assert pace.seconds(190.0, 8) == pytest.approx(48), "as much as before has been done at the new one"


@pytest.mark.parametrize("slots", [1, 2, 4, 16])
def test_slots_that_end_their_rounds_in_one_moment_are_seen_as_side_by_side(slots: int) -> None:
    pace = Pace(0.0)
    for number in range(1, 8):
        for slot in range(slots):
            pace.add(10.0 * number + 0.01 * slot, 1.0, slots)
        assert pace.seconds(10.0 * number + 0.01 * slots, 100) == pytest.approx(1000 / slots, rel=0.25)


# -- worlds ----------------------------------------------------------------------------------------------------


class World:
    """A study whose jobs take known times, side by side, and the errors of the time left.

    Args:
        cells: the study's.
        cost: planned seconds of a round of one seed, by cell.
        pace: what it takes.
        besides: seconds of a job besides its rounds.
        load: the factor by which everything is slower from a moment on, by the share of jobs that have ended.
        first: seconds that the first job of each slot takes longer.
        rungs: rounds after which jobs pause, of which one in three goes on.
        seeds: of each job.
        since: the number of trials from which on estimates count.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        cost: Callable[[Cell], float] = one,
        *,
        pace: Callable[[Cell], float],
        besides: float = 0.5,
        load: Callable[[float], float] = lambda _: 1.0,
        first: float = 20.0,
        parallel: int = 2,
        rungs: Sequence[int] = (),
        seeds: tuple[int, ...] = SEEDS,
        since: int = 10,
    ) -> None:
        design = Design(seeds, reduction=3, first_rung=rungs[0]) if rungs else Design(seeds)
        rows = {cell.id: Row(cell, design) for cell in cells}
        queue, paused = [(cell, 0) for cell in cells], {rung: list[Cell]() for rung in rungs}
        total, ended, seen = len(queue), 0, list[tuple[int, float, float]]()
        events: list[tuple[float, int, Iterator[float]]] = []
        free, tie, clock, work = parallel, 0, 1000.0, Pace(1000.0)

        def job(cell: Cell, reached: int) -> Iterator[float]:
            """Yields how long each of its parts takes, which begins then."""
            nonlocal ended
            yield (besides + (first if tie <= parallel else 0.0)) * load(ended / total)
            stop = next((rung for rung in rungs if rung > reached), cell.rounds)
            for number in range(reached + 1, stop + 1):
                yield len(seeds) * pace(cell) * load(ended / total)
                rows[cell.id] = ran(rows[cell.id], number, seeds)
                work.add(clock, cost(cell) * len(seeds), parallel)
            if stop in rungs:
                paused[stop].append(cell)
                if len(paused[stop]) % 3 == 0:
                    queue.insert(0, (cell, stop))
                    rows[cell.id] = replace(rows[cell.id], passed=rows[cell.id].passed | {stop})
            ended += not reached

        while queue or events:
            while queue and free:
                free, tie = free - 1, tie + 1
                running = job(*queue.pop(0))
                heapq.heappush(events, (clock + next(running), tie, running))
            clock, _, running = heapq.heappop(events)
            before = ended
            if (took := next(running, None)) is None:
                free += 1
            else:
                tie += 1
                heapq.heappush(events, (clock + took, tie, running))
            left = work.seconds(clock, work_left(rows.values(), cost, slots=parallel))
            if ended > before and left is not None and not (events and events[0][0] == clock):
                seen.append((ended, clock, left))
        self.errors = [left / (clock - at) - 1 for number, at, left in seen if number >= since and clock - at > 5]

    def within(self, bound: float) -> float:
        """The share of the estimates from the tenth trial on that are wrong by at most a share."""
        assert len(self.errors) > 30
        return sum(abs(error) <= bound for error in self.errors) / len(self.errors)


def unequal(cell: Cell) -> float:
    """Seconds of a round of one seed: of most cells a tenth, of every eighth two seconds."""
    draw = random.Random(cell.number)
    return draw.uniform(0.05, 0.15) * (20 if cell.number % 8 == 7 else 1)


def planned(cell: Cell) -> float:
    """What a plan would expect: wrong by a factor of up to two, and of three for all; and half a second of a job."""
    return 3 * unequal(cell) * 2 ** random.Random(1000 + cell.number).uniform(-1, 1) + 0.5 / (4 * len(SEEDS))


STEADY: dict[str, Any] = {"pace": lambda _: 0.3}
WORLDS: dict[str, dict[str, Any]] = {
    "one after the other": {**STEADY, "parallel": 1},
    "noisy": {"pace": lambda cell: random.Random(cell.number).uniform(0.1, 0.5), "parallel": 4},
    "the load rises by half all the time": {**STEADY, "load": lambda at: 1 + 0.5 * at},
    # Before it rises, nobody knows that it will.
    "the load has risen by half": {**STEADY, "load": lambda at: 1 + 0.5 * (at >= 0.5), "since": 60},
    "the first trials are slow": {**STEADY, "first": 300.0},
    "short trials": {"pace": lambda _: 0.001, "besides": 2.0},
    "unequal cells": {"pace": unequal},
    "one trial in three passes a rung": {**STEADY, "rungs": (1, 3), "seeds": (1,)},
}


@pytest.mark.parametrize("name", WORLDS)
def test_the_estimate_is_close_in_many_worlds(name: str) -> None:
    """What every trial takes besides its rounds counts, the start of the first ones does not."""
    halved, weighed = "rungs" in WORLDS[name], name == "unequal cells"
    cells = [cell(n, "trial" if halved else "cell", 9 if halved else 4) for n in range(100)]
    if weighed:
        cells.sort(key=lambda cell: -planned(cell))  # as they are run
    world = World(cells, planned if weighed else one, **WORLDS[name])
    # Here the plan underrates what cheap cells take besides their rounds, and these are all at the end.
    bound = 0.4 if weighed else 0.25
    assert world.within(bound) >= (0.9 if halved else 1), world.errors


def test_costs_of_the_plan_help() -> None:
    cells = sorted(map(cell, range(100)), key=lambda cell: -planned(cell))
    assert World(cells, planned, pace=unequal).within(0.4) > World(cells, one, pace=unequal).within(0.4) + 0.1
