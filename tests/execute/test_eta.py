"""The ETA of a study: from its rounds and jobs, in worlds whose end is known, and for other processes."""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study
from fpl_tune.execute import eta as eta_module
from fpl_tune.execute import manage
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.eta import Eta
from fpl_tune.execute.job import Job
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import expand
from fpl_tune.study.lock import locked
from fpl_tune.study.store import Store

SEEDS = (1, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(eta_module.time, "monotonic", lambda: now[0])
    return now


def started(spec: Any, root: Path, planned: Callable[[Cell], float | None] = lambda _: None) -> tuple[Eta, list[Cell]]:
    """The estimate of a study that begins, and its cells."""
    store, cells, left = Store(root, spec.name), expand(spec), Eta()
    if spec.prune.rule == "halving":
        cells = [replace(cell, role="trial") for cell in cells]
    store.begin(spec, cells)
    left.on_study_start(store, cells, [Job(cell, tuple(spec.seed_list()), pace=planned(cell)) for cell in cells])
    return left, cells


def records(number: int, seconds: float, seeds: Sequence[int] = SEEDS) -> list[dict[str, Any]]:
    """Records of one round; `seconds` is each seed's running total."""
    return [{"seed": seed, "round": number, "time/seconds": seconds} for seed in seeds]


def test_one_round_gives_an_estimate_for_all(compose: Any, tmp_path: Path, clock: list[float]) -> None:
    left, (one, _, zero) = started(compose("axes: {method: [promptfl, coop, zeroshot]}", "protocol.rounds=4"), tmp_path)
    left.on_job_start(zero, SEEDS)
    left.on_round_end(zero, records(1, 0.01))
    left.on_cell_end(zero, {})
    left.on_job_start(one, SEEDS)
    assert left.seconds is None, "a zero-shot cell says nothing of the others"
    clock[0] += 6
    left.on_round_end(one, records(1, 3.0))  # six seconds for the round of both seeds
    assert left.seconds == pytest.approx(3 * 6 + 4 * 6)
    clock[0] += 5
    assert left.seconds == pytest.approx(3 * 6 + 4 * 6 - 5), "the clock goes on"


def test_a_job_split_by_seed_counts_once(compose: Any, tmp_path: Path, clock: list[float]) -> None:
    left, (one,) = started(compose("axes: {}", "protocol.rounds=4"), tmp_path)
    left.on_job_start(one, SEEDS)
    left.on_round_end(one, records(2, 2.0))
    left.on_job_start(one, (1,))  # after the job of both seeds failed
    left.on_round_end(one, records(1, 1.0)[:1])
    left.on_job_start(one, (2,))
    assert left.seconds == pytest.approx(3 + 4), "three rounds of one seed, four of the other"
    left.on_cell_end(one, {})
    assert left.seconds == 0


def test_trials_to_come_cost_the_mean_of_those_that_were_suggested(
    compose: Any, tmp_path: Path, clock: list[float]
) -> None:
    """Where a search compares methods, the last trial says little of the others."""
    _, cells = started(compose("axes: {method: [coop, promptfl]}", "protocol.rounds=2"), tmp_path)
    slow, cheap = (replace(cell, role="trial", id=f"{cell.id}t") for cell in cells)
    left = Eta()
    left.on_study_start(Store(tmp_path, "tiny"), [], [])
    left.on_trials_queued([slow, cheap], 10)
    for cell, seconds in ((slow, 9.0), (cheap, 1.0)):
        left.on_job_start(cell, SEEDS)
        left.on_round_end(cell, records(1, seconds))
        if cell is slow:
            assert left.seconds == pytest.approx(18 + (1 + 10) * 36), "as much as the others, where one is known"
        clock[0] += 4 * seconds
        left.on_round_end(cell, records(2, 2 * seconds))
        left.on_cell_end(cell, {})
    assert left.seconds == pytest.approx(10 * (36 + 4) / 2)


def test_rounds_of_a_checkpoint_are_no_work_of_this_process(compose: Any, tmp_path: Path, clock: list[float]) -> None:
    left, (one, _) = started(compose("axes: {optim: {lr: [0.01, 0.1]}}", "protocol.rounds=8"), tmp_path)
    left.on_job_start(one, SEEDS)
    for number in range(1, 5):
        left.on_round_end(one, records(number, number * 1.0))
    for number in range(5, 8):
        clock[0] += 4  # each takes twice as long as those before
        left.on_round_end(one, records(number, 4.0 + 2 * (number - 4)))
    assert left.seconds == pytest.approx(9 * 4, rel=0.4), "nine rounds, not at the speed of reading a file"


class World:
    """A study whose jobs take known times, side by side, and the errors of its estimates.

    Args:
        left: the estimate.
        cells: the study's cells.
        pace: seconds of a round of one seed, by cell.
        besides: seconds of a job besides its rounds.
        load: the factor by which everything is slower from a moment on, by the share of jobs that have ended.
        first: seconds that the first job of each slot takes longer.
        rungs: rounds after which jobs pause, of which one in three goes on.
        seeds: of each job.
        since: the number of trials from which on estimates count.
    """

    def __init__(
        self,
        clock: list[float],
        left: Eta,
        cells: Sequence[Cell],
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
        self.errors: list[float] = []
        queue, paused = [(cell, 0) for cell in cells], {rung: list[Cell]() for rung in rungs}
        total, ended, seen = len(queue), 0, list[tuple[int, float, float]]()
        events: list[tuple[float, int, Iterator[float]]] = []
        free, tie = parallel, 0

        def job(cell: Cell, reached: int) -> Iterator[float]:
            """Yields how long each of its parts takes, which begins then."""
            nonlocal ended
            left.on_job_start(cell, seeds)
            yield (besides + (first if tie <= parallel else 0.0)) * load(ended / total)
            spent = reached * len(seeds) * pace(cell)
            stop = next((rung for rung in rungs if rung > reached), cell.run.rounds)
            for number in range(reached + 1, stop + 1):
                took = len(seeds) * pace(cell) * load(ended / total)
                yield took
                spent += took
                left.on_round_end(cell, records(number, spent / len(seeds), seeds))
            if stop in rungs:
                left.on_job_pause(cell, seeds)
                paused[stop].append(cell)
                if len(paused[stop]) % 3 == 0:
                    queue.insert(0, (cell, stop))
            else:
                left.on_cell_end(cell, {})
            ended += not reached

        while queue or events:
            while queue and free:
                free, tie = free - 1, tie + 1
                running = job(*queue.pop(0))
                heapq.heappush(events, (clock[0] + next(running), tie, running))
            clock[0], _, running = heapq.heappop(events)
            before = ended
            if (took := next(running, None)) is None:
                free += 1
            else:
                tie += 1
                heapq.heappush(events, (clock[0] + took, tie, running))
            if ended > before and left.seconds is not None and not (events and events[0][0] == clock[0]):
                seen.append((ended, clock[0], left.seconds))
        end = clock[0]
        self.errors = [estimate / (end - at) - 1 for number, at, estimate in seen if number >= since and end - at > 5]

    def within(self, bound: float) -> float:
        """The share of the estimates from the tenth trial on that are wrong by at most a share."""
        return sum(abs(error) <= bound for error in self.errors) / len(self.errors)


def unequal(cell: Cell) -> float:
    """Seconds of a round of one seed: of most cells a tenth, of every eighth two seconds."""
    draw = random.Random(cell.number)
    return draw.uniform(0.05, 0.15) * (20 if cell.number % 8 == 7 else 1)


def planned(cell: Cell) -> float:
    """What a plan would expect: wrong by a factor of up to two, and of three for all."""
    return 3 * unequal(cell) * 2 ** random.Random(1000 + cell.number).uniform(-1, 1)


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
def test_the_estimate_is_close_in_many_worlds(compose: Any, tmp_path: Path, clock: list[float], name: str) -> None:
    """What every trial takes besides its rounds counts, the start of the first ones does not."""
    halving = ("prune.rule=halving", "prune.reduction=3", "prune.first_rung=1", "seeds=1") if "rung" in name else ()
    axis, plan = ("method.n_ctx", planned) if name == "unequal cells" else ("optim.lr", lambda _: None)
    made = compose(f"axes: {{{axis}: {list(range(1, 101))}}}", f"protocol.rounds={9 if halving else 4}", *halving)
    left, cells = started(made, tmp_path, plan)
    cells.sort(key=lambda cell: -(plan(cell) or 0))  # as they are run
    world = World(clock, left, cells, **WORLDS[name])
    assert world.within(0.25) >= (0.9 if halving else 1), world.errors


def test_a_search_has_an_estimate_from_its_first_rounds_to_its_end(compose: Any, tmp_path: Path) -> None:
    class Log(Callback):
        def __init__(self, left: Eta) -> None:
            self.left = left
            self.estimates: list[float | None] = []

        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            self.estimates.append(self.left.seconds)

    left = Eta()
    log = Log(left)
    spec = compose("axes: {}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}", "protocol.rounds=2")
    assert start_study(spec, root=tmp_path, callbacks=[left, log]).exit_code == 0
    assert None not in log.estimates
    assert log.estimates[0] > log.estimates[-1]  # type: ignore[operator]


def test_other_processes_read_the_estimate(compose: Any, tmp_path: Path) -> None:
    spec = compose("axes: {optim: {lr: [1, 2, 3, 4, 5]}}")
    left, (one, *_) = started(spec, tmp_path)
    store = Store(tmp_path, spec.name)
    left.on_job_start(one, SEEDS)
    with locked(store.folder):
        assert manage.status(store)["seconds_left"] is None, "before the first round"
        left.on_round_end(one, records(1, 100.0))
        assert manage.status(store)["seconds_left"] == pytest.approx(1800, abs=30)
    assert manage.status(store)["seconds_left"] is None, "no process runs it"
    left.on_study_end(store, Outcome(0, 0, 0, 5, 0.0, 130))
    assert not (store.folder / manage.ETA_FILE).exists()
