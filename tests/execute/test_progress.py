"""How far a running study is: the value that callbacks get, and what other processes read from its files."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.execute import manage, progress
from fpl_tune.execute.callback import Callback, Outcome
from fpl_tune.execute.job import Job
from fpl_tune.execute.progress import ProgressMeter, StudyProgress
from fpl_tune.findings.choice import choose_finished
from fpl_tune.search.halving import design_of
from fpl_tune.simulation.simulation import Record
from fpl_tune.study.cells import Cell
from fpl_tune.study.grid import expand
from fpl_tune.study.lock import locked
from fpl_tune.study.results import Status, make_result
from fpl_tune.study.schema import StudyFile
from fpl_tune.study.standing import Row, Run
from fpl_tune.study.store import Store
from fpl_tune.study.table import StudyTable

from ..conftest import start_study

SEEDS = (1, 2)


class Watch:
    """A study whose rounds a test writes down, and the time, which moves when it says so."""

    def __init__(self, spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        self.cells = expand(spec)
        design = design_of(spec)
        rows = {cell.id: Row(cell, design) for cell in self.cells}
        self.table = StudyTable(StudyFile.of(spec), design, rows)
        self.meter, self.jobs = ProgressMeter(self.table, [], spec, {}), dict[str, Job]()

    def start(self, cell: Cell, seeds: tuple[int, ...] = SEEDS) -> None:
        self.jobs[cell.id] = Job(cell, seeds)

    def round(self, cell: Cell, seconds: float) -> None:
        """A round that takes so long of each seed, one after the other."""
        job = self.jobs[cell.id]
        self.now += seconds * len(job.seeds)
        total = (job.rounds[-1][0]["time/seconds"] if job.rounds else 0.0) + seconds
        records = [{"seed": s, "round": len(job.rounds) + 1, "time/seconds": total} for s in job.seeds]
        self.meter.ran(job, [records])
        job.rounds.append(records)

    def end(self, cell: Cell) -> None:
        job = self.jobs.pop(cell.id)
        runs = {seed: Run(Status.DONE, len(job.rounds)) for seed in job.seeds}
        self.table.rows[cell.id] = Row(cell, self.table.design, runs)

    @property
    def seconds(self) -> float | None:
        return self.meter.measure([*self.jobs.values()], (), ending=False).seconds


def test_one_round_gives_an_estimate_for_all(compose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(compose("axes: {method: [promptfl, coop, zeroshot]}", "protocol.rounds=4"), monkeypatch)
    one, _, zero = watch.cells
    watch.start(zero)
    watch.round(zero, 0.01)
    watch.end(zero)
    watch.start(one)
    watch.now += 60  # while images are encoded
    assert watch.seconds is None, "a zero-shot cell says nothing of the others"
    watch.round(one, 3.0)
    assert watch.seconds == pytest.approx(3 * 6 + 4 * 6)
    watch.now += 5
    assert watch.seconds == pytest.approx(3 * 6 + 4 * 6 - 5), "the clock goes on"


def test_a_job_split_by_seed_counts_once(compose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(compose("axes: {}", "protocol.rounds=4"), monkeypatch)
    (one,) = watch.cells
    watch.start(one)
    watch.round(one, 1.0)
    watch.start(one, (1,))  # after the job of both seeds failed
    watch.round(one, 1.0)
    assert watch.seconds == pytest.approx(3 + 4), "three rounds of one seed, four of the other"


class Log(Callback):
    """Keeps what it is told; stops the study after a number of rounds."""

    def __init__(self, stop: int = -1) -> None:
        self.told, self.setup, self.rounds, self.stop = list[StudyProgress](), list[str](), 0, stop

    def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
        self.store = store

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        self.rounds += 1
        if self.rounds == self.stop:
            manage.stop(self.store)

    def on_progress(self, progress: StudyProgress) -> None:
        self.told.append(progress)

    def on_setup(self, text: str) -> None:
        self.setup.append(text)

    def on_study_end(self, store: Store, outcome: Outcome) -> None:
        self.stopped = outcome.exit_code == 130


@pytest.fixture(autouse=True)
def _every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpl_tune.execute.driver._PROGRESS_EVERY", 0.0)


STUDIES = {
    "a grid": ("axes: {optim: {lr: [0.01, 0.1, 10000]}}", 3, "cell"),
    "trials": ("axes: {}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}", 4, "trial"),
    "trials that halving stops": (
        "axes: {}\nsearch: {sampler: random, trials: 5, only: [optim.lr]}\nprune: {rule: halving}",
        5,
        "trial",
    ),
    "a budget": (
        "axes: {method: [coop, promptfl]}\nsearch: {sampler: random, budget: 2, only: [optim.lr]}\n"
        "prune: {rule: halving}",
        4,
        "full trial",
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_totals_stay_and_what_is_done_grows(compose: Any, tmp_path: Path, name: str) -> None:
    body, total, unit = STUDIES[name]
    log = Log()
    outcome = start_study(compose(body, "protocol.rounds=4"), root=tmp_path, callbacks=[log])
    assert outcome.exit_code in (0, 1)
    first, last = log.told[0], log.told[-1]
    assert {(told.total, told.total_rounds, told.unit) for told in log.told} == {(total, first.total_rounds, unit)}
    for part in ("done", "rounds"):
        values = [getattr(told, part) for told in log.told]
        assert values == sorted(values), part
    assert (first.done, first.rounds, first.seconds, first.best) == (0, 0, None, "")
    assert last.done == total
    assert last.rounds == last.total_rounds == (24 if unit == "cell" else 0)
    estimates = [told.seconds for told in log.told if told.seconds is not None]
    assert len(estimates) > 10
    assert estimates[0] > 0
    assert last.seconds == 0
    assert str(last).startswith(f"{total} of {total} {unit}s")


def test_a_search_whose_count_is_over_says_what_it_still_runs(compose: Any, tmp_path: Path) -> None:
    log, spec = Log(), compose(STUDIES["a budget"][0], "protocol.rounds=4")
    start_study(spec, root=tmp_path, callbacks=[log])
    texts = [str(told).partition("4 of 4 full trials, ")[2] for told in log.told]
    then = list(dict.fromkeys(text for text in texts if text))
    assert texts[0] == "", "its count says enough"
    assert "finishing 1 trial" in then
    number = sum(cell.role in ("tuned", "published") for cell in Store(tmp_path, spec.name).cells())
    confirming = [text for text in then if not text.startswith("finishing")]
    assert confirming == [
        *(f"confirming on fresh seeds: {over} of {number} cells" for over in range(number)),
        "confirmed on fresh seeds",
    ]


def test_the_best_cell_so_far_is_the_one_that_is_chosen_in_the_end(compose: Any, tmp_path: Path) -> None:
    log, spec = Log(), compose("axes: {optim: {lr: [0.0001, 0.1, 0.01]}}", "protocol.rounds=4")
    start_study(spec, root=tmp_path, callbacks=[log])
    store = Store(tmp_path, spec.name)
    choice = choose_finished(store.table())
    best = log.told[-1].best
    assert choice is not None
    assert best == f"best on validation {100 * choice.value:.1f} % {choice.label}"
    again = Log()
    start_study(spec, root=tmp_path, callbacks=[again])
    assert again.told[0].best == best, "what an earlier run has done counts too"
    assert again.told[0].done == 3


def test_settings_have_no_best_cell_in_common(compose: Any, tmp_path: Path) -> None:
    log, spec = Log(), compose("axes: {partition: [iid, disjoint]}", "protocol.rounds=2", "seeds=1")
    start_study(spec, root=tmp_path, callbacks=[log])
    assert {told.best for told in log.told} == {""}


def test_rounds_of_a_checkpoint_are_no_work_of_this_process(compose: Any, tmp_path: Path) -> None:
    """They are there at once: the pace would be that of reading a file."""
    spec, log = compose("axes: {}", "protocol.rounds=8"), Log(stop=5)
    assert start_study(spec, root=tmp_path, callbacks=[log]).exit_code == 130
    assert log.stopped
    assert log.told[-1].ending
    assert not log.told[1].ending
    assert log.told[-1].rounds == 5 * len(spec.seed_list())
    again = Log()
    assert start_study(spec, root=tmp_path, callbacks=[again]).exit_code == 0
    resumed = [told for told in again.told if told.rounds <= 5 * len(spec.seed_list())]
    assert len(resumed) > 3
    assert {told.seconds for told in resumed} == {None}
    assert again.told[-1].seconds == 0


def test_it_is_said_what_takes_time_before_the_first_round(
    compose: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(tmp_path / "cache"))
    log = Log()
    fields = ("protocol.rounds=1", "execution.executor=inline", "data.train_per_class=17")  # no other test has these
    start_study(compose("axes: {}", *fields), root=tmp_path, callbacks=[log])
    assert log.setup[0].startswith("loading shapes")
    assert any(text.startswith("encoding shapes") and text.endswith("images") for text in log.setup)


@pytest.fixture
def running(compose: Any, tmp_path: Path) -> Iterator[Store]:
    """A study of five cells, as another process runs it."""
    spec = compose("axes: {optim: {lr: [1, 2, 3, 4, 5]}}", "protocol.rounds=4")
    store = Store(tmp_path, spec.name)
    store.begin(spec, expand(spec))
    with locked(store.folder):
        yield store


def end(store: Store, cell: Cell, ago: float, took: float) -> None:
    """Stores the results of a cell that took some seconds, and ended some seconds ago."""
    for seed in SEEDS:
        history: list[Any] = [
            {"seed": seed, "round": n, "val/acc_mean": 0.5, "test/acc_mean": 0.5, "time/seconds": took / 8 * n,
             "comm/up_bytes": 1, "comm/down_bytes": 1}
            for n in range(1, 5)
        ]  # fmt: skip
        at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - ago))
        store.put(cell, seed, replace(make_result(Status.DONE, history), finished=at))


def since_long(store: Store) -> None:
    """Says of the process that runs a study that it began years ago."""
    path = store.folder / "study.owner"
    path.write_text(path.read_text().replace(time.strftime("%Y"), "2001", 1))


def test_other_processes_compute_the_time_left_from_the_files(running: Store) -> None:
    one, two, *_ = running.cells()
    assert manage.status(running)["seconds_left"] is None, "before the first result"
    end(running, one, ago=3600, took=8)
    assert manage.status(running)["seconds_left"] is None, "an earlier process has made it"
    since_long(running)
    end(running, one, ago=300, took=100)
    end(running, two, ago=0, took=100)
    assert manage.status(running)["seconds_left"] == pytest.approx(3 / 2 * 350, abs=3), "the first took 50 s or more"
    assert not list(running.folder.glob("*.eta"))


def test_a_zero_shot_cell_says_nothing_of_the_others(compose: Any, tmp_path: Path) -> None:
    spec = compose("axes: {method: [promptfl, zeroshot]}", "protocol.rounds=4")
    store = Store(tmp_path, spec.name)
    store.begin(spec, expand(spec))
    store = Store(tmp_path, spec.name)  # as another process reads it
    with locked(store.folder):
        end(store, store.cells()[1], ago=0, took=0.1)
        assert manage.status(store)["seconds_left"] is None
        since_long(store)
        end(store, store.cells()[0], ago=0, took=100)
        assert manage.status(store)["seconds_left"] == 0


def test_nothing_is_left_of_a_study_that_no_process_runs(running: Store) -> None:
    end(running, running.cells()[0], ago=0, took=100)
    status = manage.status(running)
    assert status["run_by"].startswith(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y')}")
    assert (status["seconds_left"] is None, status["ending"]) == (False, False)
    manage.stop(running)
    assert manage.status(running)["ending"]
    (running.folder / "study.owner").unlink()
    status = manage.status(running)
    assert (status["run_by"], status["seconds_left"], status["ending"]) == (None, None, False)


def test_other_processes_count_the_budget_of_a_search(compose: Any, tmp_path: Path) -> None:
    body = "axes: {{}}\nsearch: {{sampler: random, budget: {}, only: [optim.lr]}}\nprune: {{rule: halving}}"
    found = {}
    for budget in (4, 40):
        spec, root = compose(body.format(budget), "protocol.rounds=6"), tmp_path / str(budget)
        assert start_study(spec, root=root, callbacks=[Log(stop=5)]).exit_code == 130
        store = Store(root, spec.name)
        (cell, *_) = store.cells()
        end(store, cell, ago=0, took=1000)
        with locked(store.folder):
            since_long(store)
            found[budget] = manage.status(store)["seconds_left"]
    assert found[40] - found[4] == pytest.approx(36 * 12 * 500 / 8, rel=0.3), "36 full trials, of 12 rounds"
