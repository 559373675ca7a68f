import errno
import os
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest
import torch

import fpl_tune
from fpl_tune.core.errors import ConfigError, EnvironmentProblem, Notice
from fpl_tune.execute import inline, manage, runner
from fpl_tune.execute.callback import Callback
from fpl_tune.execute.driver import Driver
from fpl_tune.execute.job import Failure, Job, JobRun, Report
from fpl_tune.execute.plan import preflight
from fpl_tune.execute.resources import setup_of
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.fingerprints import fingerprints
from fpl_tune.study.grid import expand
from fpl_tune.study.lock import AlreadyRunning, locked
from fpl_tune.study.store import Store

from ..conftest import Compose, Heard, figures_of, make_plan, note_steps, outdated
from ..conftest import start_study as run_study


def test_a_study_runs_every_cell_once_and_repeats_for_nothing(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Heard()
    made = compose("axes: {optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot, optim.lr: 0.1}]")
    outcome = run_study(made, root=tmp_path, callbacks=[log])
    assert (outcome.done, outcome.failed, outcome.skipped, outcome.pending, outcome.exit_code) == (3, 0, 0, 0, 0)
    assert sorted(log.rounds) == sorted(
        [(f"lr={lr}/{s}", r) for lr in ("0.01", "0.1") for s in (1, 2) for r in (1, 2)]
        + [(f"zeroshot, lr=0.1/{s}", 1) for s in (1, 2)]
    )
    assert sorted(log.cells) == ["lr=0.01", "lr=0.1", "zeroshot, lr=0.1"]
    table = pd.read_csv(tmp_path / "tiny" / "results.csv")
    assert list(table.columns) == [
        *("cell", "seed", "status", "rule", "rounds", "optim.lr", "method"),
        *(
            "val/acc_mean",
            "test/acc_mean",
            "comm/up_bytes",
            "comm/down_bytes",
            "time/seconds",
            "label",
            "role",
            "seeds",
        ),
    ]
    assert len(table) == 3 * 2
    assert len(pd.read_csv(tmp_path / "tiny" / "rules.csv")) == 3 * 2 * 4
    sent = set(table.loc[table["label"] == "lr=0.1", "comm/up_bytes"])
    assert sent == {16 * 128 * 4 * 4 * 2}  # context tokens x width x bytes x clients x rounds

    monkeypatch.setattr(inline, "execute", lambda *_: pytest.fail("nothing is left to run"))
    again = run_study(made, root=tmp_path, callbacks=[log])
    assert (again.done, again.skipped, again.exit_code) == (0, 3, 0)
    assert len(log.outcomes) == 2


def test_extending_by_seeds_and_values_runs_only_what_is_missing(compose: Compose, tmp_path: Path) -> None:
    run_study(compose(), root=tmp_path)
    log = Heard()
    outcome = run_study(compose("axes: {optim: {lr: [0.01, 0.1, 1]}}", "seeds=3"), root=tmp_path, callbacks=[log])
    ran = {who for who, _ in log.rounds}
    assert ran == {"lr=0.01/3", "lr=0.1/3", "lr=1/1", "lr=1/2", "lr=1/3"}
    assert (outcome.done, outcome.skipped) == (3, 0)


def _interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The process dies, without a word, before the trial's round `after` + 1."""
    step = Simulation.step

    def dying(self: Simulation) -> list[Record]:
        if self.round >= after:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Simulation, "step", dying)


@pytest.mark.parametrize("after", [1, 5])
def test_killed_and_continued_equals_undisturbed(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=6")
    run_study(made, root=tmp_path / "whole")
    with monkeypatch.context() as patch:
        _interrupt(patch, after)
        with pytest.raises(KeyboardInterrupt):
            run_study(made, root=tmp_path / "killed")
    log = Heard()
    stepped = note_steps(monkeypatch)
    run_study(made, root=tmp_path / "killed", callbacks=[log])
    assert stepped == list(range(after // 2 * 2 + 1, 7)), "checkpoints lie after rounds 2 and 4, the newest is taken"
    assert [r for who, r in log.rounds if who == "lr=0.1/1"] == [1, 2, 3, 4, 5, 6]
    pd.testing.assert_frame_equal(figures_of(tmp_path / "whole"), figures_of(tmp_path / "killed"), check_exact=True)
    cell = Store.open(tmp_path / "killed", "tiny").cells()[0]
    for seed in (1, 2):
        files = [
            Store.open(tmp_path / which, "tiny").seed_folder(cell, seed) / "prompts.safetensors"
            for which in ("whole", "killed")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert not list((tmp_path / "killed" / "tiny" / "cells" / cell.id).glob("ckpt-*"))


def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_the_one_before_is_taken(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}", "protocol.rounds=6")
    with monkeypatch.context() as patch:
        _interrupt(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            run_study(made, root=tmp_path)
    old, new = sorted(tmp_path.rglob("round-*.safetensors"))
    new.write_bytes(new.read_bytes()[:-1])
    stepped, log = note_steps(monkeypatch), Heard()
    assert run_study(made, root=tmp_path, callbacks=[log]).exit_code == 0
    assert stepped == [3, 4, 5, 6]
    (warning,) = log.warnings
    assert warning.startswith("skipped a checkpoint that cannot be used: ")
    assert new.name in warning
    assert old.name not in warning


def test_a_second_signal_ends_the_process_at_once_and_its_handlers_are_as_before(
    compose: Compose, tmp_path: Path
) -> None:
    aborted: list[bool] = []

    class Impatient(Heard):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)

        def on_abort(self) -> None:
            aborted.append(True)

    before, heard = signal.getsignal(signal.SIGINT), Impatient()
    with pytest.raises(SystemExit) as ended:
        run_study(compose(), root=tmp_path, callbacks=[heard])
    assert (ended.value.code, aborted, heard.outcomes) == (130, [True], [])
    assert signal.getsignal(signal.SIGINT) is before


def _failing(monkeypatch: pytest.MonkeyPatch, failure: Failure) -> list[tuple[tuple[int, ...], bool]]:
    """Every job fails in this way. Returns seeds of the jobs that start, and whether they are to run alone."""
    starts: list[tuple[tuple[int, ...], bool]] = []

    def execute(driver: Driver, _: Any) -> None:
        while (job := driver.next_leg()) is not None:
            starts.append((job.seeds, job.alone))
            assert len(starts) < 20, "it would run for ever"
            assert not driver.receive(job, Report([], failure=failure))

    monkeypatch.setattr(inline, "execute", execute)
    return starts


def test_a_job_that_is_out_of_memory_is_tried_again_alone_and_then_seed_by_seed(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = _failing(monkeypatch, Failure("out of memory", "memory"))
    outcome = run_study(compose("axes: {}", "execution.retries=5"), root=tmp_path)
    assert starts == [(seeds, alone) for seeds in ((1, 2), (1,), (2,)) for alone in (False, True)]
    assert (outcome.failed, outcome.exit_code, len(outcome.failures)) == (1, 1, 1), "both seeds in one text"


def test_a_configuration_that_cannot_run_is_refused_once(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a grid its cell fails without a retry; a search tries another point, and counts none."""
    starts = _failing(monkeypatch, Failure("no prompt is that long", "rejected"))
    outcome = run_study(compose("axes: {optim.lr: [0.1, 0.2]}", "execution.retries=5"), root=tmp_path)
    assert starts == [((1, 2), False)] * 2
    assert outcome.failures == ("lr=0.1, seed 1; lr=0.1, seed 2; lr=0.2, seed 1 and 1 more: no prompt is that long",)
    starts.clear()
    search = ["search.sampler=random", "search.trials=3", "search.only=[optim.lr]", "name=searched"]
    made, heard = compose("axes: {}", *search), Heard()
    says = r"10 of 10 suggestions for optim\.lr are rejected\. The last one: no prompt is that long"
    with pytest.warns(Notice, match=says):
        outcome = run_study(made, root=tmp_path, callbacks=[heard])
    assert len(starts) == 10
    assert heard.warnings == ["It cannot run, and costs nothing: no prompt is that long"]
    assert (outcome.done, outcome.failed, outcome.pending, outcome.exit_code) == (0, 0, 0, 1)
    assert Store.open(tmp_path, "searched").cells() == []
    again = run_study(made, root=tmp_path)
    assert (len(starts), again.failures) == (10, outcome.failures), "it is not asked again"


@pytest.mark.parametrize(
    ("kind", "said"), [("disk", r"The disk refuses to store results \(full\)"), ("environment", "^full$")]
)
def test_what_no_trial_has_caused_ends_the_study_and_charges_none(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, said: str
) -> None:
    with monkeypatch.context() as patch:
        starts = _failing(patch, Failure("full", kind))
        with pytest.raises(EnvironmentProblem, match=said):
            run_study(compose(), root=tmp_path)
    assert len(starts) == 1
    assert run_study(compose(), root=tmp_path).exit_code == 0


def test_a_traceback_is_printed_on_request(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _failing(monkeypatch, Failure("no luck", trace="Traceback of it"))
    for wanted in ("", "1"):
        monkeypatch.setenv("FPL_TUNE_FULL_ERROR", wanted)
        assert run_study(compose("axes: {}", "execution.retries=0"), root=tmp_path).exit_code == 1
        assert ("Traceback of it" in capsys.readouterr().err) == bool(wanted)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, EnvironmentProblem), (errno.EROFS, EnvironmentProblem), (errno.EBUSY, OSError)]
)
def test_a_disk_that_refuses_a_result_is_named_with_the_file(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number), "result.json")

    heard = Heard()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", refuse)
        with pytest.raises(kind, match=r"result\.json") as caught:
            run_study(compose(), root=tmp_path, callbacks=[heard])
    assert type(caught.value) is kind
    assert len(heard.outcomes) == 1, "no record stays open"
    assert run_study(compose(), root=tmp_path).exit_code == 0


def test_a_worker_whose_files_are_others_runs_no_round(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}")
    (cell,) = expand(made)
    for changed, verb in ((("method",), "differs"), (("method", "data"), "differ")):
        prints = {**fingerprints(cell.run), **dict.fromkeys(changed, "other")}
        report = JobRun(Job(cell, (1,), prints), setup_of(made, tmp_path, [made])).step(0.0, lambda: False)
        assert (report.rounds, report.last) == ([], True)
        assert report.failure is not None
        assert report.failure.kind == "environment"
        assert re.search(
            rf"The method source.* of lr=0.1 on .* {verb} from what the study started with", report.failure.error
        )


def test_stop_ends_after_the_round_and_continues(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Heard):
        def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
            super().on_round_end(cell, records)
            if records[0]["round"] == 3:
                os.kill(os.getpid(), signal.SIGINT)

    made = compose("axes: {optim: {lr: [0.1, 0.2]}}", "protocol.rounds=5", "execution.checkpoint_every=100")
    stopped = run_study(made, root=tmp_path, callbacks=[stop := Stop()])
    assert (stopped.exit_code, stopped.pending) == (130, 2)
    assert max(r for _, r in stop.rounds) == 3
    steps = note_steps(monkeypatch)
    assert run_study(made, root=tmp_path).exit_code == 0
    assert steps == [4, 5, 1, 2, 3, 4, 5]


def test_one_bad_seed_does_not_take_the_others_along(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, tried = Simulation.step, []

    def failing(self: Simulation) -> list[Record]:
        tried.append(tuple(self.seeds))
        if 2 in self.seeds:
            raise RuntimeError("no\nluck")
        return step(self)

    monkeypatch.setattr(Simulation, "step", failing)
    made = compose("axes: {optim: {lr: [0.1]}}", "seeds=3", "execution.retries=2", "protocol.rounds=1")
    outcome = run_study(made, root=tmp_path)
    assert tried == [(1, 2, 3), (1,), (2,), (2,), (3,)], "two retries: apart, and once more"
    assert (outcome.failed, outcome.exit_code) == (1, 1)
    assert outcome.failures == ("lr=0.1, seed 2: RuntimeError: no luck",)
    store = Store.open(tmp_path, "tiny")
    assert store.table().frame().groupby("seed")["status"].first().tolist() == ["done", "failed", "done"]
    assert [row["n"] for row in store.table().summary()] == [2]  # never averaged away: the cell says so
    assert [row["status"] for row in store.table().summary()] == ["failed"]
    assert manage.failed_seeds(store) == [*outcome.failures]
    assert manage.failed_seeds(Store(tmp_path, "nothing")) == []
    monkeypatch.setattr(Simulation, "step", step)
    assert run_study(made, root=tmp_path).exit_code == 0
    assert [row["n"] for row in Store.open(tmp_path, "tiny").table().summary()] == [3]


def test_a_diverged_seed_is_not_tried_again(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, tried = Simulation.step, []

    def diverging(self: Simulation) -> list[Record]:
        tried.append((tuple(self.seeds), self.round))
        if self.round == 1 and 2 in self.seeds:
            raise Diverged("seed 2 diverged")
        return step(self)

    monkeypatch.setattr(Simulation, "step", diverging)
    made = compose("axes: {optim: {lr: [0.1]}}")
    assert run_study(made, root=tmp_path).exit_code == 1
    assert tried == [((1, 2), 0), ((1, 2), 1), ((1,), 0), ((1,), 1), ((2,), 0), ((2,), 1)]
    store = Store.open(tmp_path, "tiny")
    found = store.result(store.cells()[0], 2)
    assert found is not None
    assert (found.status, found.rounds, found.rules) == ("diverged", 1, {})
    tried.clear()
    run_study(made, root=tmp_path)
    assert tried == []


def test_a_process_that_dies_behind_the_same_round_is_given_up_and_its_rounds_are_told_once(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that is killed where it needs the most memory: its checkpoint brings it there again and again."""
    starts = []

    def execute(driver: Driver, _: Any) -> None:
        while (job := driver.next_leg()) is not None:
            starts.append(job.seeds)
            assert len(starts) < 20, "it would run for ever"
            rounds = [[{"seed": 1, "round": number, "time/seconds": 1.0}] for number in (1, 2)]
            assert not driver.receive(job, Report(rounds, failure=Failure("killed", "died")))

    monkeypatch.setattr(inline, "execute", execute)
    made = compose("axes: {optim: {lr: [0.1]}}", "seeds=1", "protocol.rounds=5", "execution.retries=0")
    outcome = run_study(made, root=tmp_path, callbacks=[log := Heard()])
    assert len(starts) == 1 + 4, "four crashes in a row without a new round"
    assert log.rounds == [("lr=0.1/1", 1), ("lr=0.1/1", 2)]
    assert (outcome.failed, outcome.failures) == (1, ("lr=0.1, seed 1: killed",))


def test_a_changed_method_is_stale_and_runs_again(compose: Compose, tmp_path: Path) -> None:
    made = compose("axes: {optim: {lr: [0.1]}}\nreferences: [{method: zeroshot}]")
    run_study(made, root=tmp_path)
    outdated(Store.open(tmp_path, "tiny"), "lr=0.1", method="another")
    log = Heard()
    outcome = run_study(made, root=tmp_path, callbacks=[log])
    assert log.stales == ["lr=0.1: method source"]
    assert set(log.cells) == {"lr=0.1"}
    assert (outcome.done, outcome.skipped) == (1, 1)


def test_a_result_names_what_it_depends_on(compose: Compose, tmp_path: Path) -> None:
    run_study(compose("axes: {optim: {lr: [0.1]}}", "seeds=1"), root=tmp_path)
    store = Store(tmp_path, "tiny")
    (cell,) = store.cells()
    (result,) = store.row(cell).results.values()
    assert result.fingerprints == fingerprints(cell.run)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("report.metric=test/accuracy", "no run reports 'test/accuracy'. Did you mean"),
        ("seeds=[1,1]", "different seeds"),
        ("execution.device=gpu", "no execution.device 'gpu'"),
    ],
)
def test_refused_before_anything_is_written(compose: Compose, tmp_path: Path, override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run_study(compose("axes: {}", override), root=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_refused_study_is_removed_before_another_start_may_use_it(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, rmtree = list[Path](), shutil.rmtree

    def remove(path: Path, **options: Any) -> None:
        with pytest.raises(AlreadyRunning), locked(path):
            pass
        removed.append(path)
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", remove)
    with pytest.raises(ConfigError, match="no client has a validation image"):
        run_study(compose(SEARCHED, "data.train_per_class=1"), root=tmp_path / "out")
    assert removed == [tmp_path / "out" / "tiny"]
    assert not (tmp_path / "out").exists()


@pytest.mark.system
def test_permuting_test_labels_changes_nothing_that_is_chosen(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same search, same pruning, same choice of round and cell, with every client's test labels shuffled."""
    from fpl_tune.findings.choice import best

    body = (
        "axes: {}\nsearch: {sampler: tpe, trials: 6, only: [optim.lr]}\n"
        "prune: {rule: halving, first_rung: 1, reduction: 2}"
    )
    made = compose(body, "protocol.rounds=3", "seeds=2")
    run_study(made, root=tmp_path / "true")
    build = Simulation.__init__

    def shuffled(self: Simulation, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        for task in self.tasks:
            for _, held in task.tests.values():
                held.label = held.label.roll(1, dims=-1)

    monkeypatch.setattr(Simulation, "__init__", shuffled)
    run_study(made, root=tmp_path / "shuffled")
    one, two = (Store.open(tmp_path / which, "tiny") for which in ("true", "shuffled"))
    assert [c.id for c in one.cells()] == [c.id for c in two.cells()]
    for cell in (cell for cell in one.cells() if cell.role == "trial"):
        for seed in (1, 2):
            results = [s.result(cell, seed) for s in (one, two)]
            if results[0] is None or results[1] is None:  # of a trial that was pruned after its first seed
                assert results == [None, None]
                assert seed == 2
                continue
            assert results[0].status == results[1].status
            assert results[0].rounds == results[1].rounds
            assert results[0].rules["best_val"]["round"] == results[1].rules["best_val"]["round"]
    for rule in ("final", "best_val"):
        assert best(one.table(), rule).cell.id == best(two.table(), rule).cell.id
    assert best(one.table()).test != best(two.table()).test


def test_beside_one_another_cells_that_take_longest_start_first(compose: Compose, tmp_path: Path) -> None:
    """After those that train nothing. One after another, in the study's order."""
    body = "axes: {protocol.epochs: [1, 3, 2]}\nreferences: [{method: zeroshot, protocol.epochs: 1}]"
    orders = []
    for name, how in (("alone", ()), ("beside", ("execution.executor=ray", "execution.parallel=2"))):
        run_study(compose(body, *how), root=tmp_path / name, executor=inline.execute, callbacks=[log := Heard()])
        orders.append([label.partition("epochs=")[2] for label in log.cells if "zeroshot" not in label])
        assert "zeroshot" in log.cells[0]
    assert orders == [["1", "3", "2"], ["3", "2", "1"]]


def test_a_run_a_study_and_a_trainable_have_equal_losses_whatever_threads_the_process_has(
    compose: Compose, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {
        "data.train_per_class": 12,
        "data.test_per_class": 3,
        "data.shots": 4,
        "data.domains": ["clipart"],
        "partition.n_clients": 4,
        "protocol.rounds": 2,
        "protocol.epochs": 1,
        "optim.lr": 0.1,
        "optim.batch": 64,
    }
    run_study(compose("axes: {optim: {lr: [0.1]}}"), root=tmp_path)
    store = Store.open(tmp_path, "tiny")
    stored = {seed: [record["train/loss"] for record in store.history(store.cells()[0], seed)] for seed in (1, 2)}
    torch.set_num_threads(2)
    overrides = [f"{name}={value}".replace("'", "") for name, value in fields.items()]
    rounds = fpl_tune.run("method=promptfl", *overrides, seeds=2)
    assert {seed: list(rows["train/loss"]) for seed, rows in rounds.groupby("seed")} == stored
    trainable = fpl_tune.FederatedTrainable({"method": "promptfl", "seeds": 2, **fields})
    means = [fmean(losses) for losses in zip(*stored.values(), strict=True)]
    assert [trainable.train()["train/loss"] for _ in means] == means
    assert torch.get_num_threads() == 2


def test_a_request_to_stop_is_heard_from_the_moment_at_which_the_study_has_an_owner(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its jobs are known."""

    def stopped(root: Path, name: str) -> Store:
        store = Store(root, name)
        manage.stop(store)
        return store

    made, steps = compose(), note_steps(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "Store", stopped)
        outcome = run_study(made, root=tmp_path)
    assert (outcome.pending, outcome.exit_code, steps) == (2, 130, [])
    assert run_study(made, root=tmp_path).exit_code == 0
    with pytest.raises(ConfigError, match="Only a running study can be stopped, but tiny is not running"):
        manage.stop(Store(tmp_path, "tiny"))


ONE_CELL = "axes: {}"
SEARCHED = "axes: {}\nsearch: {sampler: random, trials: 2, only: [optim.lr]}"


@pytest.mark.parametrize("rule", ["halving", "null"])
def test_what_reads_validation_needs_an_image_of_it(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Every trial would end with NaN, and the best one would be any."""
    made, steps = compose(SEARCHED, "data.train_per_class=1", f"prune.rule={rule}"), note_steps(monkeypatch)
    for begin in (lambda: run_study(made, root=tmp_path), lambda: make_plan(made, root=tmp_path)):
        with pytest.raises(ConfigError, match=r"no client has a validation image.* Raise data.val above 0") as caught:
            begin()
        assert "\n" not in str(caught.value)
    assert steps == []


def test_a_grid_needs_no_validation_image(compose: Compose, tmp_path: Path) -> None:
    """Nothing is chosen while it runs."""
    assert run_study(compose(ONE_CELL, "data.train_per_class=1", "seeds=1"), root=tmp_path).exit_code == 0


@pytest.mark.parametrize("problem", [ConfigError("it does not fit"), KeyboardInterrupt()])
def test_listeners_hear_nothing_of_a_study_that_is_refused(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    """Else bars would stay on the terminal, and the message would stand among them."""
    heard: list[str] = []

    class Ear(Callback):
        def on_study_start(self, store: Store, cells: Sequence[Cell], jobs: Sequence[Job]) -> None:
            heard.append("start")

    def refuse(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(preflight, "check", refuse)
    with pytest.raises(type(problem)):
        run_study(compose(ONE_CELL), root=tmp_path / "out", callbacks=[Ear()])
    assert heard == []
    assert not isinstance(problem, ConfigError) or not (tmp_path / "out").exists()
