"""What a search stores in Optuna's journal, and that a kill at any time changes nothing."""

import os
import random
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fpl_tune.execute import inline
from fpl_tune.execute.runner import run_study
from fpl_tune.search.gains import gains
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.schema import DamagedFile
from fpl_tune.study.store import Store
from fpl_tune.study.trial import Trial, legs_of

from ..conftest import Compose, in_time, there
from .conftest import note

LR = """
axes: {}
search: {sampler: tpe, trials: 20, space: {optim.lr: {low: 1.0e-4, high: 1.0, log: true}}, only: [optim.lr]}
"""


def first_rounds(results: Any, number: int) -> Any:
    """Histories up to a round."""
    return {seed: history[:number] for seed, history in results.items()}


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_kills_change_nothing_that_is_suggested(
    compose: Compose, tmp_path: Path, results: Any, opened: Any, sampler: str
) -> None:
    """Four workers end in a random order; some times everything in memory is lost."""
    made, params = compose(LR, f"search.sampler={sampler}"), []
    for kills in (0, 3):
        rng, over, folder = random.Random(3), 0, tmp_path / str(kills)
        search, running = opened(made, folder)
        stored: list[Any] = []
        while search.unfinished:
            while len(running) < 4 and (cell := search.request()) is not None:
                running.append(cell)
            cell = running.pop(rng.randrange(len(running)))
            stored.append((cell, results(1 - (cell.run.optim.lr - 0.05) ** 2)))
            note(search, *stored[-1])
            over += 1
            if over in [4 * (i + 1) + 1 for i in range(kills)]:
                search, known = opened(made, folder)
                for one in stored:  # as a start does
                    note(search, *one)
                assert [cell.id for cell in running if cell in known] == [cell.id for cell in running]
        params.append([trial.params for trial in search.parts[0].trials()])
    assert len(params[0]) == 20
    assert params[0] == params[1]


def test_a_kill_while_a_trial_is_suggested_changes_nothing(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Any, opened: Any, params: Any
) -> None:
    """The trial is in the journal, without parameters or with a line that was cut off."""
    made = compose(LR, "search.trials=8", "search.sampler=random")
    whole = params(made, tmp_path / "whole")
    search, _ = opened(made, tmp_path / "killed")
    for _ in range(4):
        note(search, search.request(), results(0.5))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(search.parts[0].space), "suggest", killed)
        with pytest.raises(KeyboardInterrupt):
            search.request()
    with (tmp_path / "killed" / "optuna.log").open("ab") as file:
        file.write(b'{"op_code": 5, "worker')
    search, (*_, fifth) = opened(made, tmp_path / "killed")
    note(search, fifth, results(0.5))
    for cell in iter(search.request, None):
        note(search, cell, results(0.5))
    assert [t.params for t in search.parts[0].trials()] == whole


def test_the_sampler_receives_paused_trials_with_their_values_and_rounds(
    compose: Compose, tmp_path: Path, results: Any, opened: Any
) -> None:
    """As pruned trials, which TPE counts towards its start-up; they end with another value, also after a kill.

    Optuna's Gaussian process, which leaves pruned trials out, receives them as complete ones.
    """
    made = compose(LR, "search.trials=6")
    search, _ = opened(made, tmp_path)
    cells = [search.request() for _ in range(3)]
    risen = results(0.6, rises=True)
    for again in range(2):
        for number in (1, 2):  # after a kill, a start notes what the store holds
            note(search, cells[number - 1], first_rounds(risen, number), "waiting")
        part = search.parts[0]
        states = [(t.state.name, len(t.intermediate_values)) for t in part.trials()]
        assert states == [("PRUNED", 1), ("PRUNED", 2), ("RUNNING", 0)]
        assert part.trials()[1].intermediate_values == pytest.approx({1: 0.2, 2: 0.4})
        assert (search.unfinished, search.remaining) == (6, 3)
        if again == 0:
            search, waiting = opened(made, tmp_path)
            assert [cell.id for cell in waiting] == [cell.id for cell in cells]
    for cell in cells[:2]:
        note(search, cell, results(0.6))
    last = search.parts[0].trials()[0]
    assert (last.state.name, last.value, len(last.intermediate_values)) == ("COMPLETE", pytest.approx(0.6), 3)
    assert search.unfinished == 4


def test_a_gaussian_process_receives_paused_trials_as_complete_ones(
    compose: Compose, tmp_path: Path, results: Any, opened: Any
) -> None:
    """It leaves pruned trials out, and without complete ones it draws at random."""
    search, _ = opened(compose(LR, "search.trials=12", "search.sampler=gp"), tmp_path)
    heard = []
    values: dict[str, float] = {}
    for number in range(8):
        cell = search.request()
        values[cell.id] = 0.1 * number
        note(search, cell, first_rounds(results(values[cell.id]), 1), "waiting")
        heard.append(search.parts[0].study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))
    assert [trial.value for trial in heard[-1]] == pytest.approx([values[t.user_attrs["cell"]] for t in heard[-1]])
    assert len(heard[-1]) == 8


def test_the_sampler_receives_mean_and_error_and_pruned_as_pruned(
    compose: Compose, tmp_path: Path, results: Any, opened: Any
) -> None:
    search, _ = opened(compose(LR, "search.trials=4"), tmp_path)
    cells = [search.request() for _ in range(4)]
    note(search, cells[0], results(0.5))
    note(search, cells[1], results(0.25, rounds=2), "pruned")
    note(search, cells[2], results(0.4, rounds=1), "diverged")
    note(search, cells[3], results(0.1), "failed")
    assert search.unfinished == 0
    trials = search.parts[0].trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "PRUNED", "COMPLETE", "FAIL"]
    assert trials[0].value == pytest.approx(0.5)
    assert trials[0].user_attrs["sem"]["val/acc_mean"] == pytest.approx(0.01)
    assert trials[0].user_attrs["n"] == 2
    assert trials[1].intermediate_values == {1: pytest.approx(0.25), 2: pytest.approx(0.25)}
    assert trials[2].value == pytest.approx(0.1), "where training diverges is as bad as the worst that was seen"
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "optuna.log")))
    (study,) = journal.get_all_studies()
    told = optuna.load_study(study_name=study.study_name, storage=journal).trials
    assert [t.state.name for t in told] == ["COMPLETE", "PRUNED", "PRUNED", "FAIL"]
    assert told[2].intermediate_values == {1: pytest.approx(0.4)}


def test_a_trial_that_is_run_again_is_for_the_sampler_what_it_is_now(
    compose: Compose, tmp_path: Path, results: Any, opened: Any
) -> None:
    """A failure that succeeds, more seeds, data that changed: the journal keeps what was told first."""
    search, _ = opened(compose(LR, "search.trials=3"), tmp_path)
    cells = [search.request() for _ in range(3)]
    note(search, cells[0], results(0.1), "failed")
    note(search, cells[0], results(0.7))
    note(search, cells[1], results(0.5))
    note(search, cells[1], {seed: history for seed, history in enumerate(2 * [*results(0.6).values()], 1)})
    note(search, cells[2], results(0.5))
    search.note(cells[2], Trial(legs=legs_of([1, 2], 3)), {})
    trials = search.parts[0].trials()
    assert [t.state.name for t in trials] == ["COMPLETE", "COMPLETE", "RUNNING"]
    assert [t.value for t in trials] == [pytest.approx(0.7), pytest.approx(0.6), None]
    assert trials[1].user_attrs["n"] == 4


def test_a_damaged_journal_is_one_line(compose: Compose, tmp_path: Path, opened: Any) -> None:
    for content in (b"\x80\x00\xff\n\n", b'"text"\n{}\n'):
        (tmp_path / "optuna.log").write_bytes(content)
        with pytest.raises(DamagedFile, match=r"optuna.log is damaged: Optuna cannot read it .*Delete it: ") as raised:
            opened(compose(LR), tmp_path)
        assert "\n" not in str(raised.value)


def test_a_journal_that_is_a_named_pipe_is_not_waited_for(compose: Compose, tmp_path: Path, opened: Any) -> None:
    os.mkfifo(tmp_path / "optuna.log")
    with in_time(), pytest.raises(DamagedFile, match=r"a named pipe, not a regular file.* Delete it: "):
        opened(compose(LR), tmp_path)


def test_optuna_reads_the_journal_of_a_study(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, parameters by their dotted names, rounds, states and user attributes, by Optuna's public interface."""
    step = Simulation.step
    monkeypatch.setattr(
        Simulation, "step", lambda self: [{**r, "val/acc_mean": 1 - self.run.optim.lr / r["round"]} for r in step(self)]
    )
    body = LR + "prune: {reduction: 2}"
    made = compose(body, "search.trials=5", "protocol.rounds=2")
    assert run_study(made, root=tmp_path, executor=inline.execute).exit_code == 0
    store = Store.open(tmp_path, "tiny")
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "tiny" / "optuna.log")))
    (name,) = optuna.get_all_study_names(journal)
    study = optuna.load_study(study_name=name, storage=journal)
    assert name.startswith("promptfl (")
    assert study.metric_names == ["val/acc_mean"]
    trials = study.get_trials()
    assert len(trials) == 5
    for trial in trials:
        cell = store.cell(trial.user_attrs["cell"])
        assert trial.params == {"optim.lr": cell.run.optim.lr}
        complete = trial.state.name == "COMPLETE"
        assert trial.user_attrs["seeds"] == store.seeds(cell) == ([1, 2] if complete else [1])
        histories = [store.history(cell, seed) for seed in store.seeds(cell)]
        assert trial.user_attrs["rounds"] == sum(map(len, histories))
        first = {record["round"]: record["val/acc_mean"] for record in histories[0]}
        assert trial.intermediate_values == pytest.approx(first), "of the first seed, by which trials are compared"
        assert trial.value == pytest.approx(sum(h[-1]["val/acc_mean"] for h in histories) / len(histories))
    assert {t.state.name for t in trials} == {"COMPLETE", "PRUNED"}
    assert {max(t.intermediate_values) for t in trials} == {1, 2}


def test_what_tuning_gained_over_the_published_point(compose: Compose, tmp_path: Path) -> None:
    """Per method the best trial by validation, its test figure, and the same of the best published point."""
    body = "axes: {method: [promptfl, fedprox]}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}"
    run_study(compose(body, "protocol.rounds=1"), root=tmp_path, executor=inline.execute)
    store = Store.open(tmp_path, "tiny")
    found = gains(store)
    assert [gain.part for gain in found] == ["promptfl", "fedprox"]
    trials = [cell for cell in store.cells() if cell.role == "trial"]

    def figure(cell: Cell, metric: str) -> float:
        return sum(store.history(cell, seed)[-1][metric] for seed in (1, 2)) / 2

    for gain in found:
        mine = [cell for cell in trials if cell.varied["method"] == gain.part]
        best = max(mine, key=lambda cell: figure(cell, "val/acc_mean"))
        lrs = {"promptfl": (0.001, 0.002, 0.01), "fedprox": (0.001, 0.002)}[gain.part]
        published = max((c for c in mine if c.run.optim.lr in lrs), key=lambda cell: figure(cell, "val/acc_mean"))
        assert figure(gain.best, "val/acc_mean") == pytest.approx(figure(best, "val/acc_mean"))
        taken = there(gain.published)
        assert figure(taken, "val/acc_mean") == pytest.approx(figure(published, "val/acc_mean")), "or one that ties"
        assert taken.run.optim.lr in lrs
        assert gain.gain == pytest.approx(figure(gain.best, "test/acc_mean") - figure(taken, "test/acc_mean"))
