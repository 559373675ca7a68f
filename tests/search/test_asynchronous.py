"""Trials without a barrier: what is suggested, that it can be made again, and what a stored search shows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from fpl_tune.execute import inline
from fpl_tune.execute.runner import run_study
from fpl_tune.search.gains import gains
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.schema import DamagedFile
from fpl_tune.study.store import Store

Compose = Callable[..., Any]

LR = """
axes: {}
search: {sampler: tpe, trials: 20, space: {optim.lr: {low: 1.0e-4, high: 1.0, log: true}}, only: [optim.lr]}
"""


def results(value: float) -> Any:
    """What two seeds of a cell leave after three rounds."""
    found = {}
    for seed in (1, 2):
        costs = {"comm/up_bytes": 1, "comm/down_bytes": 1, "clients/val": [value, value + 0.02]}
        history = [
            {"seed": seed, "round": r, "val/acc_mean": value * r / 3, "test/acc_mean": 0.5, "time/seconds": 1.0 * r}
            | costs
            for r in (1, 2, 3)
        ]
        found[seed] = ({"status": "done"}, history)
    return found


def opened(made: Any, folder: Path) -> tuple[Search, list[Cell]]:
    search = Search.plan(made)
    assert search is not None
    return search, search.open(folder)


def drive(made: Any, folder: Path, *, seed: int, kills: int = 0) -> Search:
    """Four workers that end in a random order; `kills` times everything in memory is lost."""
    rng = random.Random(seed)
    search, running = opened(made, folder)
    over = 0
    while search.unfinished:
        while len(running) < 4 and (cells := search.request()):
            assert len(cells) == 1, "a slot asks for one trial"
            running += cells
        cell = running.pop(rng.randrange(len(running)))
        search.report(cell, results(1 - (cell.run.optim.lr - 0.05) ** 2))
        over += 1
        if over in [4 * (i + 1) + 1 for i in range(kills)]:
            search, cells = opened(made, folder)
            (part,) = search.parts
            before, running = running, [cell for cell in running if cell in cells]
            assert len(running) == len(before) == len(part.running())
    return search


def test_suggestions_depend_on_the_results_before_them_alone(compose: Compose, tmp_path: Path) -> None:
    made = compose(LR)
    searches = [drive(made, tmp_path / str(kills), seed=3, kills=kills) for kills in (0, 3)]
    whole, killed = ([t.params for t in search.parts[0].trials()] for search in searches)
    assert len(whole) == 20
    assert killed == whole


def test_kills_change_nothing_that_is_suggested(compose: Compose, tmp_path: Path) -> None:
    made = compose(LR, "search.trials=12")
    params = []
    for name, kills in (("whole", 0), ("killed", 2)):
        search, cells = opened(made, tmp_path / name)
        for number in range(12):
            cells += search.request()
            search.report(cells.pop(), results(1 - number / 20))
            if kills and number in (3, 8):
                search, _ = opened(made, tmp_path / name)
        params.append([t.params for t in search.parts[0].trials()])
    assert params[0] == params[1]


def test_running_trials_count_as_bad_ones(compose: Compose, tmp_path: Path) -> None:
    """TPE's constant liar: with trials under way it suggests something else than without."""
    made = compose(LR)
    found = []
    for name, running in (("alone", 0), ("beside", 3)):
        search, _ = opened(made, tmp_path / name)
        for _ in range(10):
            (cell,) = search.request()
            search.report(cell, results(1 - (cell.run.optim.lr - 0.05) ** 2))
        for _ in range(running + 1):
            found.append(search.request()[0].run.optim.lr)
    assert len(set(found[1:])) == 4


def test_the_sampler_receives_paused_trials_with_their_values_and_rounds(compose: Compose, tmp_path: Path) -> None:
    """As pruned trials, which TPE counts towards its start-up; they end with another value, also after a kill."""
    made = compose(LR, "search.trials=6")
    search, _ = opened(made, tmp_path)
    cells = [search.request()[0] for _ in range(3)]
    rounds = [list(records) for records in zip(*(history for _, history in results(0.6).values()), strict=True)]
    search.pause(cells[0], rounds[:1])
    search.pause(cells[1], rounds[:2])
    for again in range(2):
        part = search.parts[0]
        states = [(t.state.name, len(t.intermediate_values)) for t in part.trials()]
        assert states == [("PRUNED", 1), ("PRUNED", 2), ("RUNNING", 0)]
        assert part.trials()[1].intermediate_values == pytest.approx({1: 0.2, 2: 0.4})
        assert (len(part.running()), search.unfinished, search.remaining) == (1, 6, 3)
        if again == 0:
            search, waiting = opened(made, tmp_path)
            assert [cell.id for cell in waiting] == [cell.id for cell in cells]
    for cell in cells[:2]:
        search.report(cell, results(0.6))
    last = search.parts[0].trials()[0]
    assert (last.state.name, last.value, len(last.intermediate_values)) == ("COMPLETE", pytest.approx(0.6), 3)
    assert search.unfinished == 4


def test_tpe_begins_with_paused_trials(compose: Compose, tmp_path: Path) -> None:
    """After four results, here of paused trials, suggestions follow the values; before, they are drawn."""
    made, found = compose(LR, "search.trials=12"), []
    for better in (0, 3):
        search, _ = opened(made, tmp_path / str(better))
        cells = [search.request()[0] for _ in range(4)]
        for number, cell in enumerate(cells):
            history = [h for _, h in results(0.9 if number == better else 0.1).values()]
            search.pause(cell, [list(records) for records in zip(*history, strict=True)][:1])
        found.append([search.request()[0].run.optim.lr for _ in range(2)])
    assert found[0] != found[1]


def test_a_kill_while_a_trial_is_suggested_changes_nothing(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is in the journal, without parameters or with a line that was cut off."""
    made = compose(LR, "search.trials=8", "search.sampler=random")
    whole = [t.params for t in drive(made, tmp_path / "whole", seed=1).parts[0].trials()]
    search, _ = opened(made, tmp_path / "killed")
    part = search.parts[0]
    for _ in range(4):
        (cell,) = search.request()
        search.report(cell, results(0.5))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(part.space), "suggest", killed)
        with pytest.raises(KeyboardInterrupt):
            search.request()
    with (tmp_path / "killed" / "optuna.log").open("ab") as file:
        file.write(b'{"op_code": 5, "worker')
    search, (*_, fifth) = opened(made, tmp_path / "killed")
    search.report(fifth, results(0.5))
    while cells := search.request():
        search.report(cells[0], results(0.5))
    assert [t.params for t in search.parts[0].trials()] == whole


def test_a_damaged_journal_is_one_line(compose: Compose, tmp_path: Path) -> None:
    for content in (b"\x80\x00\xff\n\n", b'"text"\n{}\n', b"[]\n[]\n"):
        (tmp_path / "optuna.log").write_bytes(content)
        with pytest.raises(DamagedFile, match=r"optuna.log is damaged: Optuna cannot read it .*Delete it: ") as raised:
            opened(compose(LR), tmp_path)
        assert "\n" not in str(raised.value)


# -- what the journal shows ---------------------------------------------------------------------------------


def test_optuna_reads_the_journal_of_a_study(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, parameters by their dotted names, rounds, states and user attributes, by Optuna's public interface."""
    step = Simulation.step
    monkeypatch.setattr(
        Simulation, "step", lambda self: [{**r, "val/acc_mean": 1 - self.run.optim.lr / r["round"]} for r in step(self)]
    )
    body = LR + "prune: {rule: halving, reduction: 2, confidence: 0}"
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
    states = {"done": "COMPLETE", "pruned": "PRUNED"}
    for trial in trials:
        cell = store.cell(trial.user_attrs["cell"])
        histories = [store.history(cell, seed) for seed in (1, 2)]
        status = {str((store.result(cell, seed) or {})["status"]) for seed in (1, 2)}
        assert trial.state.name == states[status.pop()]
        assert trial.params == {"optim.lr": cell.run.optim.lr}
        assert trial.user_attrs["seeds"] == [1, 2]
        assert trial.user_attrs["sem"]["val/acc_mean"] >= 0
        mean = {r["round"]: (r["val/acc_mean"] + s["val/acc_mean"]) / 2 for r, s in zip(*histories, strict=True)}
        assert trial.intermediate_values == pytest.approx(mean)
        assert trial.value == pytest.approx(mean[max(mean)])
        assert max(mean) == (2 if trial.state.name == "COMPLETE" else 1)
    assert {t.state.name for t in trials} == {"COMPLETE", "PRUNED"}
    assert study.best_value == max(t.value or 0.0 for t in trials if t.state.name == "COMPLETE")


# -- from what is known --------------------------------------------------------------------------------------


def test_a_published_point_leaves_nothing_to_the_sampler(compose: Compose, tmp_path: Path) -> None:
    """pFedMoAP's published points lack the gate's width: it is the study's own, or the nearest that is searched."""
    body = (
        "defaults: [/study, override /method: pfedmoap, _self_]\naxes: {}\n"
        "search: {sampler: random, trials: 6, space: {method.d_gating: {choices: [16, 32, 96]}}}"
    )
    path = tmp_path / "gate.yaml"
    path.write_text(body)
    from fpl_tune import config

    for given, expected in ((32, 32), (128, 96)):
        for seed in (0, 1):
            made = config.compose_study(str(path), [f"method.d_gating={given}", f"search.seed={seed}"])
            search, _ = opened(made, tmp_path / f"{given}-{seed}")
            first = [search.request()[0].varied for _ in range(2)]
            assert [point["method.d_gating"] for point in first] == [expected] * 2
            assert [point["method.lam"] for point in first] == [0.5, 0.0]


def test_integer_fields_are_searched_as_integers(compose: Compose, tmp_path: Path) -> None:
    body = (
        "axes: {}\nsearch: {sampler: random, trials: 9, only: [method.n_ctx, optim.lr],"
        " space: {method.n_ctx: {low: 2, high: 8}, optim.lr: {low: 1, high: 2}}}"
    )
    search, _ = opened(compose(body), tmp_path)
    varied = [search.request()[0].varied for _ in range(9)]
    assert {type(point["method.n_ctx"]) for point in varied} == {int}
    assert {type(point["optim.lr"]) for point in varied} == {float}
    (trial, *_) = search.parts[0].trials()
    assert isinstance(trial.distributions["method.n_ctx"], optuna.distributions.IntDistribution)


def test_what_tuning_gained_over_the_published_point(compose: Compose, tmp_path: Path) -> None:
    """Per method the best trial by validation, its test figure, and the same of the best published point."""
    body = "axes: {method: [promptfl, fedprox]}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}"
    made = compose(body, "protocol.rounds=1")
    run_study(made, root=tmp_path, executor=inline.execute)
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
        assert gain.best.id == best.id
        assert gain.published is not None
        assert gain.published.id == published.id
        assert gain.gain == pytest.approx(figure(best, "test/acc_mean") - figure(published, "test/acc_mean"))
