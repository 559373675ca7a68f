"""The ETA of a study: from the records of the run, and for other processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.execute import eta as eta_module
from fpl_tune.execute import manage
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.eta import Eta, seconds_left
from fpl_tune.execute.job import Job
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.lock import locked
from fpl_tune.study.results import make_result
from fpl_tune.study.store import Store

SEEDS = (1, 2)
TWO_METHODS = "axes: {method: [promptfl, coop]}\n"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(eta_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def study(compose, tmp_path: Path) -> tuple[Store, list[Cell]]:
    """Two cells of four rounds and two seeds."""
    spec = compose(TWO_METHODS, "protocol.rounds=4")
    store, cells = Store(tmp_path, spec.name), expand(spec)
    store.begin(spec, cells)
    return store, cells


def jobs(cells: Sequence[Cell]) -> list[Job]:
    return [Job(cell, SEEDS) for cell in cells]


def records(number: int, seconds: float) -> list[dict[str, Any]]:
    """Records of one round; `seconds` is each seed's running total."""
    return [{"seed": seed, "round": number, "time/seconds": seconds} for seed in SEEDS]


def test_one_round_gives_an_estimate_for_all(study: tuple[Store, list[Cell]], clock: list[float]) -> None:
    store, (one, other) = study
    left = Eta()
    left.on_study_start(store, [one, other], jobs([one, other]))
    assert left.seconds is None, "no measurement yet"
    left.on_job_start(one, SEEDS)
    clock[0] += 6
    left.on_round_end(one, records(1, 3.0))  # six seconds for the round of both seeds
    assert left.seconds == pytest.approx(3 * 6 + 4 * 6)
    clock[0] += 5
    assert left.seconds == pytest.approx(3 * 6 + 4 * 6 - 5), "the clock goes on"


def test_a_zero_shot_cell_says_nothing_of_the_others(compose, tmp_path: Path) -> None:
    spec = compose("axes: {method: [promptfl, zeroshot]}\n", "protocol.rounds=4")
    store, (one, zero) = Store(tmp_path, spec.name), expand(spec)
    store.begin(spec, [one, zero])
    left = Eta()
    left.on_study_start(store, [one, zero], jobs([zero, one]))
    left.on_job_start(zero, SEEDS)
    left.on_round_end(zero, records(1, 0.01))
    left.on_cell_end(zero, {})
    assert left.seconds is None
    left.on_round_end(one, records(1, 3.0))
    assert left.seconds == pytest.approx(3 * 6, abs=1)


def test_a_study_begins_with_cells_that_need_no_training(compose, tmp_path: Path) -> None:
    order: list[str] = []

    class Listed(Callback):
        def on_cell_end(self, cell: Cell, results: dict[int, dict[str, Any]]) -> None:
            order.append(cell.label)

    spec = compose("axes: {method: [promptfl, zeroshot]}\n", "protocol.rounds=1", "execution.executor=inline")
    run_study(spec, root=tmp_path, callbacks=[Listed()])
    assert order == ["zeroshot", "promptfl"]
    assert [cell.label for cell in Store.open(tmp_path, spec.name).cells()] == ["promptfl", "zeroshot"]


def test_stored_results_give_the_pace(study: tuple[Store, list[Cell]], clock: list[float]) -> None:
    store, (one, other) = study
    store.put(one, 1, records(4, 2.0)[:1], {"status": "done", "rounds": 4, "time/seconds": 2.0})
    left = Eta()
    left.on_study_start(store, [one, other], [Job(one, (2,)), Job(other, SEEDS)])
    assert left.seconds == pytest.approx(0.5 * (4 + 2 * 4))


def test_trials_side_by_side_share_the_time(study: tuple[Store, list[Cell]], clock: list[float]) -> None:
    store, (one, other) = study
    left = Eta()
    left.on_study_start(store, [one, other], jobs([one, other]))
    left.on_job_start(one, SEEDS)
    left.on_job_start(other, SEEDS)
    for number in (1, 2):
        clock[0] += 10
        left.on_round_end(one, records(number, 5.0 * number))
        left.on_round_end(other, records(number, 5.0 * number))
    assert left.seconds == pytest.approx(2 * 10), "two rounds of each, at once"


def test_a_job_split_by_seed_counts_once(study: tuple[Store, list[Cell]], clock: list[float]) -> None:
    store, (one, _) = study
    left = Eta()
    left.on_study_start(store, [one], jobs([one]))
    left.on_job_start(one, SEEDS)
    left.on_round_end(one, records(2, 2.0))
    left.on_job_start(one, (1,))  # after the job of both seeds failed
    left.on_round_end(one, records(1, 1.0)[:1])
    left.on_job_start(one, (2,))
    assert left.seconds == pytest.approx(3 + 4), "three rounds of one seed, four of the other"
    left.on_cell_end(one, {})
    assert left.seconds == 0


def test_trials_to_come_cost_as_much_as_the_others(compose, tmp_path: Path, clock: list[float]) -> None:
    spec = compose("axes: {optim: {lr: [0.01, 0.1]}}\n")
    store, cells = Store(tmp_path, spec.name), expand(spec)
    trials = [Cell(c.id, c.number, c.label, "trial", c.varied, c.run) for c in cells]
    store.begin(spec, trials)
    left = Eta()
    left.on_trials_remaining(3)
    left.on_trials_queued(trials)
    left.on_study_start(store, trials, jobs(trials))
    left.on_job_start(trials[0], SEEDS)
    left.on_round_end(trials[0], records(1, 1.0))
    assert left.seconds == pytest.approx(2 + (1 + 3) * 4), "two rounds of two seeds each"


def test_other_processes_estimate_from_the_results(compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert left(30) == pytest.approx(4 * 10 / 2), "two seeds in ten seconds; four are left"
    assert left(33) == pytest.approx(20 - 3)
    assert left(500) == 0
    assert left(-500) == pytest.approx(20)
    with locked(store.folder):
        assert isinstance(manage.status(store)["seconds_left"], int | None)
    assert manage.status(store)["seconds_left"] is None, "no process runs it"


@pytest.mark.parametrize(("overhead", "pace", "first"), [(0.9, 0.1, 40.0), (0.2, 3.0, 10.0), (2.0, 0.0, 60.0)])
def test_the_estimate_is_close_from_the_tenth_trial_on(
    compose, tmp_path: Path, clock: list[float], overhead: float, pace: float, first: float
) -> None:
    """What every trial takes besides its rounds counts, the start of the first one does not."""
    spec = compose(f"axes: {{optim: {{lr: {list(range(1, 101))}}}}}", "protocol.rounds=2")
    store, cells = Store(tmp_path, spec.name), expand(spec)
    store.begin(spec, cells)
    left = Eta()
    left.on_study_start(store, cells, jobs(cells))
    clock[0] += first
    for number, cell in enumerate(cells, 1):
        left.on_job_start(cell, SEEDS)
        clock[0] += overhead
        for round_ in (1, 2):
            clock[0] += 2 * pace  # both seeds
            left.on_round_end(cell, records(round_, round_ * pace))
        left.on_cell_end(cell, {})
        clock[0] += 0.3  # the driver
        if number >= 10:
            assert left.seconds == pytest.approx((100 - number) * (overhead + 4 * pace + 0.3), rel=0.25, abs=1)


def test_a_finished_study_has_nothing_left(compose, tmp_path: Path) -> None:
    spec = compose()
    seen: list[float | None] = []

    class Recording(Eta):
        def on_round_end(self, cell: Cell, records: Sequence[dict[str, Any]]) -> None:
            super().on_round_end(cell, records)
            seen.append(self.seconds)

    assert run_study(spec, root=tmp_path, callbacks=[Recording()]).done == 2
    assert all(seconds is not None for seconds in seen)
    assert seen[-1] == 0


def test_a_trial_without_a_round_for_long_is_stalled(study: tuple[Store, list[Cell]], clock: list[float]) -> None:
    store, (one, other) = study
    left = Eta()
    left.on_study_start(store, [one, other], jobs([one, other]))
    left.on_job_start(one, SEEDS)
    left.on_job_start(other, SEEDS)
    clock[0] += eta_module.STALLED_SECONDS - 5
    left.on_round_end(one, records(1, 20.0))
    assert left.stalled == {}
    clock[0] += 10
    assert left.stalled == {other.label: eta_module.STALLED_SECONDS + 5}
    left.on_cell_end(other, {})
    assert left.stalled == {}
