"""The ETA of a study: from the rounds of the run, and for other processes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.execute import eta as eta_module
from fpl_tune.execute import manage
from fpl_tune.execute.eta import Eta, seconds_left
from fpl_tune.execute.job import Job
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.lock import locked
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store

SEEDS = (1, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(eta_module.time, "monotonic", lambda: now[0])
    return now


def started(spec: Any, root: Path) -> tuple[Eta, list[Cell]]:
    """The estimate of a study that begins, and its cells."""
    store, cells, left = Store(root, spec.name), expand(spec), Eta()
    store.begin(spec, cells)
    left.on_study_start(store, cells, [Job(cell, SEEDS) for cell in cells])
    return left, cells


def records(number: int, seconds: float) -> list[dict[str, Any]]:
    """Records of one round; `seconds` is each seed's running total."""
    return [{"seed": seed, "round": number, "time/seconds": seconds} for seed in SEEDS]


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


def test_trials_to_come_cost_as_much_as_the_others(compose: Any, tmp_path: Path, clock: list[float]) -> None:
    left, cells = started(compose("axes: {optim: {lr: [0.01, 0.1]}}"), tmp_path)
    left.on_trials_remaining(3)
    left.on_trials_queued(cells)
    left.on_job_start(cells[0], SEEDS)
    left.on_round_end(cells[0], records(1, 1.0))
    assert left.seconds == pytest.approx(2 + (1 + 3) * 4), "two rounds of two seeds each"


@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize(("overhead", "pace"), [(0.9, 0.1), (0.2, 3.0), (2.0, 0.001)])
def test_the_estimate_is_close_from_the_tenth_trial_on(
    compose: Any, tmp_path: Path, clock: list[float], overhead: float, pace: float, parallel: int
) -> None:
    """What every trial takes besides its rounds counts, the start of the first ones does not."""
    left, cells = started(compose(f"axes: {{optim: {{lr: {list(range(1, 101))}}}}}", "protocol.rounds=2"), tmp_path)
    for cell in cells[:parallel]:
        left.on_job_start(cell, SEEDS)
    clock[0] += 40
    for first in range(0, 100, parallel):
        now = cells[first : first + parallel]
        for cell in now if first else ():
            left.on_job_start(cell, SEEDS)
        clock[0] += overhead
        for round_ in (1, 2):
            clock[0] += 2 * pace  # both seeds
            for cell in now:
                left.on_round_end(cell, records(round_, round_ * pace))
        for number, cell in enumerate(now, first + 1):
            left.on_cell_end(cell, {})
            if number >= 10:
                waves = (100 - first) / parallel - 1
                assert left.seconds == pytest.approx(waves * (overhead + 4 * pace), rel=0.25, abs=1)


def test_other_processes_estimate_from_the_results(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the seeds that ended since the process started; a clock that was set back gives no negative time."""
    spec = compose("axes: {optim: {lr: [1, 2, 3, 4, 5]}}")
    store, cells = Store(tmp_path, spec.name), expand(spec)
    store.begin(spec, cells)
    began = datetime.now().replace(microsecond=0)

    def put(cell: Cell, after: float) -> None:
        result = make_result("done", records(1, 1.0)[:1])
        ended = (began + timedelta(seconds=after)).astimezone().isoformat(timespec="seconds")
        for seed in SEEDS:
            store.put(cell, seed, records(1, 1.0)[:1], {**result, "finished": ended})

    def left(now: float) -> float | None:
        monkeypatch.setattr(eta_module.time, "time", lambda: began.timestamp() + now)
        return seconds_left(store, began.strftime("%Y-%m-%d %H:%M:%S"))

    put(cells[0], -3600)  # an earlier run
    put(cells[1], 20)
    assert left(25) is None, "one moment alone has no speed"
    put(cells[2], 30)
    assert [left(now) for now in (30, 33, 500, -500)] == pytest.approx([20, 17, 0, 20]), "two seeds in ten seconds"
    with locked(store.folder):
        assert isinstance(manage.status(store)["seconds_left"], int | None)
    assert manage.status(store)["seconds_left"] is None, "no process runs it"
