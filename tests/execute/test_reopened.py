"""Studies that are run again under another rule, with other seeds or after a change, and what counts then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fpl_tune import config
from fpl_tune.core.errors import ConfigError
from fpl_tune.execute import inline
from fpl_tune.execute.callback import Callback
from fpl_tune.findings.choice import best
from fpl_tune.findings.claims import evaluate
from fpl_tune.search.ablation import ablation_paths
from fpl_tune.simulation.divergence import Diverged
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell
from fpl_tune.study.standing import Row
from fpl_tune.study.store import Store

from ..conftest import Compose, Heard, make_plan, outdated
from ..conftest import start_study as run_study

LATE = 0.3
"""The rate whose cell starts slowly and wins."""


@pytest.fixture
def slow_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy falls with the learning rate, but for one cell: 0.1 until the last round, 0.9 there."""
    step = Simulation.step

    def graded(self: Simulation) -> list[Record]:
        lr, last = self.run.optim.lr, self.round + 1 == self.rounds
        value = (0.9 if last else 0.1) if lr == LATE else 0.8 - lr
        return [{**record, "val/acc_mean": value, "test/acc_mean": value} for record in step(self)]

    monkeypatch.setattr(Simulation, "step", graded)


GRID = "axes: {optim: {lr: [0.1, 0.2, 0.3, 0.4]}}"
SEARCH = "axes: {}\nsearch: {sampler: random, only: [optim.lr], confirm: 0}\nprune: {rule: null}\n"
FOUR = "search.space={optim.lr:{choices:[0.1,0.2,0.3,0.4]}}"
HALVED = ("prune.rule=halving", "prune.first_rung=1", "prune.reduction=2", "protocol.rounds=4", "prune.hedge=null")


def run(made: Any, root: Path, **given: Any) -> Any:
    return run_study(made, root=root, executor=inline.execute, **given)


def states(root: Path) -> dict[str, str]:
    store = Store.open(root, "tiny")
    return {cell.label: store.row(cell).state.value for cell in store.cells()}


@pytest.mark.usefixtures("slow_winner")
@pytest.mark.filterwarnings("ignore:Published points outside")
def test_what_was_pruned_decides_nothing_and_runs_whole_under_another_rule(compose: Compose, tmp_path: Path) -> None:
    claims = "report: {claims: {late: {says: Three tenths win., cells: {lr: 0.3}, versus: {lr: 0.1}}}}\n"
    run(compose(SEARCH + claims, FOUR, "search.trials=4", *HALVED), tmp_path)
    assert states(tmp_path)["lr=0.3"] == "pruned"
    store = Store.open(tmp_path, "tiny")
    (claim,) = evaluate(store.table(), store.spec().report)
    assert (claim.status, claim.reason) == ("undecided", "lr=0.3 was pruned.")
    assert best(store.table()).label == "lr=0.1"
    whole = compose(SEARCH + claims, FOUR, "search.trials=4", "protocol.rounds=4")
    outcome = run(whole, tmp_path)
    assert outcome.skipped + outcome.done == 4
    assert set(states(tmp_path).values()) == {"done"}
    store = Store.open(tmp_path, "tiny")
    assert evaluate(store.table(), store.spec().report)[0].difference == pytest.approx(0.2)
    assert best(store.table()).label == "lr=0.3"


@pytest.mark.usefixtures("slow_winner")
@pytest.mark.filterwarnings("ignore:Published points outside")
def test_what_was_pruned_stays_so_while_more_seeds_of_the_others_run(compose: Compose, tmp_path: Path) -> None:
    run(compose(SEARCH, FOUR, "search.trials=4", *HALVED), tmp_path)
    before = states(tmp_path)
    assert run(compose(SEARCH, FOUR, "search.trials=4", *HALVED, "seeds=3"), tmp_path).exit_code == 0
    assert states(tmp_path) == before
    rows = Store.open(tmp_path, "tiny").table().summary()
    assert {row["n"] for row in rows if row["status"] == "done"} == {3}
    assert {row["n"] for row in rows if row["label"] == "lr=0.3"} == {1}, "shown apart, by the round that it reached"


@pytest.mark.usefixtures("slow_winner")
def test_a_study_whose_folder_was_renamed_goes_on_there(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "out"
    monkeypatch.setenv("FPL_TUNE_OUTPUT", str(root))
    assert run(compose(), root).done == 2
    (root / "tiny").rename(root / "other")
    outcome = run(config.compose_study("other"), root)
    assert (outcome.done, outcome.skipped) == (0, 2)
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["other"]
    store = Store.open(root, "other")
    assert (store.spec().name, store.check()) == ("other", [])
    (root / "other" / "study.yaml").rename(tmp_path / "study.yaml")
    assert config.compose_study(str(tmp_path / "study.yaml")).name == "other", "a file alone has its own name"


def test_refused_preflight_removes_nothing(compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results out of date are kept until new ones are there, and count meanwhile for nothing that runs."""
    made = compose(GRID, "protocol.rounds=2")
    run(made, tmp_path)
    outdated(Store.open(tmp_path, "tiny"), method="another")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def infeasible(*_: Any, **__: Any) -> Any:
        raise ConfigError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("fpl_tune.execute.runner.preflight.check", infeasible)
        with pytest.raises(ConfigError, match="no room"):
            run(made, tmp_path)
        with pytest.raises(ConfigError, match="no room"):
            run(compose(GRID, name="fresh"), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == {
        **before,
        tmp_path / "tiny" / "study.lock": (tmp_path / "tiny" / "study.lock").read_bytes(),
        tmp_path / "fresh.yaml": (tmp_path / "fresh.yaml").read_bytes(),
    }
    narrowed = compose(GRID, "protocol.rounds=2", "axes.optim.lr=[0.1]")
    assert run(narrowed, tmp_path, callbacks=[log := Heard()]).exit_code == 0
    assert log.stales == ["lr=0.1: method source"]
    assert list(states(tmp_path)) == ["lr=0.1"], "earlier cells of the old method are in no table"


def test_retry_runs_diverged_seeds_again_and_keeps_the_others(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, cause = Simulation.step, [True]

    def shaky(self: Simulation) -> list[Record]:
        if cause and 2 in self.seeds:
            raise Diverged("seed 2 diverged")
        return step(self)

    monkeypatch.setattr(Simulation, "step", shaky)
    made = compose("axes: {optim: {lr: [0.1]}}")
    assert run(made, tmp_path).exit_code == 1
    assert states(tmp_path) == {"lr=0.1": "diverged"}
    cause.clear()
    assert run(made, tmp_path).done == 0
    assert states(tmp_path) == {"lr=0.1": "diverged"}
    log = Heard()
    assert run(made, tmp_path, retry=True, callbacks=[log]).exit_code == 0
    assert {who for who, _ in log.rounds} == {"lr=0.1/2"}
    assert [row["n"] for row in Store.open(tmp_path, "tiny").table().summary()] == [2]


@pytest.mark.filterwarnings("ignore:Published points outside")
def test_retry_runs_the_diverged_trial_of_a_search_again(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, cause = Simulation.step, [True]

    def shaky(self: Simulation) -> list[Record]:
        if cause and self.run.optim.lr == LATE:
            raise Diverged("diverged")
        return step(self)

    monkeypatch.setattr(Simulation, "step", shaky)
    made = compose(SEARCH, FOUR, "search.trials=4", "protocol.rounds=1", "seeds=1")
    run(made, tmp_path)
    assert [label for label, state in states(tmp_path).items() if state == "diverged"] == ["lr=0.3"]
    cause.clear()
    assert run(made, tmp_path, callbacks=[log := Heard()]).done == 0
    assert log.rounds == []
    assert run(made, tmp_path, retry=True, callbacks=[log]).exit_code == 0
    assert log.rounds == [("lr=0.3/1", 1)]
    assert set(states(tmp_path).values()) == {"done"}


class Raising(Callback):
    """Fails whenever it hears of a cell or of a round."""

    def on_round_end(self, cell: Cell, records: Sequence[Record]) -> None:
        raise ValueError("a bug in a plug-in")

    def on_cell_end(self, row: Row) -> None:
        raise ValueError("another")


def test_an_error_in_a_callback_is_one_warning_and_the_study_goes_on(
    compose: Compose, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = run(compose(), tmp_path, callbacks=[Raising(), log := Heard()])
    assert (outcome.exit_code, outcome.done) == (0, 2)
    assert log.cells == ["lr=0.01", "lr=0.1"]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "Raising.on_round_end failed, and the study goes on: ValueError: a bug in a plug-in",
        "Raising.on_cell_end failed, and the study goes on: ValueError: another",
    ]


@pytest.mark.usefixtures("slow_winner")
def test_a_trial_that_is_a_reference_too_can_be_the_best_and_runs_once(compose: Compose, tmp_path: Path) -> None:
    body = SEARCH + "references: [{label: published, optim.lr: 0.001}]\n"
    outcome = run(compose(body, "search.trials=3", "protocol.rounds=2"), tmp_path)
    assert (outcome.done, outcome.pending) == (3, 0), "the first published rate of promptfl is 0.001 or 0.002"
    store = Store.open(tmp_path, "tiny")
    (both,) = [cell for cell in store.cells() if cell.is_reference]
    assert (both.role, both.reference) == ("trial", "published, lr=0.001")
    chosen = best(store.table()).cell
    assert chosen.run.optim.lr == min(cell.run.optim.lr for cell in store.cells())
    assert chosen.id == both.id
    numbers = [cell.number for cell in store.cells()]
    assert len({*numbers}) == len(numbers)
    assert run(compose(body, "search.trials=3", "protocol.rounds=2"), tmp_path).skipped == 3


@pytest.mark.usefixtures("slow_winner")
def test_a_search_whose_points_are_all_tried_ends(compose: Compose, tmp_path: Path) -> None:
    """Two suggestions of one cell cost once, so that a budget pays every point; brute force stops by itself."""
    space = "search.space={optim.lr:{choices:[0.001,0.002,0.01,0.4]}}"
    for sampler in ("random", "brute_force"):
        made = compose(SEARCH, space, f"search.sampler={sampler}", "search.budget=6", "protocol.rounds=1")
        outcome = run(made, tmp_path / sampler)
        assert (outcome.exit_code, outcome.pending) == (0, 0)
        store = Store.open(tmp_path / sampler, "tiny")
        assert sorted(cell.run.optim.lr for cell in store.cells()) == [0.001, 0.002, 0.01, 0.4]


def test_samplers_turn_away_from_where_training_diverges(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a rate of 0.3 every trial diverges in its first round; below, accuracy rises with the rate."""
    step = Simulation.step

    def cliff(self: Simulation) -> list[Record]:
        if self.run.optim.lr > 0.3:
            raise Diverged("diverged")
        return [{**record, "val/acc_mean": 0.5 + self.run.optim.lr} for record in step(self)]

    monkeypatch.setattr(Simulation, "step", cliff)
    space = "search.space={optim.lr:{low:0.0001,high:1.0,log:true}}"
    made = compose(SEARCH, space, "search.sampler=gp", "search.trials=20", "protocol.rounds=1", "seeds=1")
    assert run(made, tmp_path).exit_code == 0
    found = [*states(tmp_path).values()]
    assert found.count("diverged") < 10, "it was 23 of 30"
    assert best(Store.open(tmp_path, "tiny").table()).cell.run.optim.lr > 0.1


@pytest.mark.usefixtures("slow_winner")
def test_another_hedge_is_for_trials_to_come(compose: Compose, tmp_path: Path) -> None:
    """What was pruned stays so: a study that an earlier release halved goes on, and pays nothing again."""
    run(compose(SEARCH, "search.trials=7", *HALVED), tmp_path)
    before = states(tmp_path)
    assert "pruned" in before.values()
    assert run(compose(SEARCH, "search.trials=7", *HALVED[:-1], "prune.hedge=1"), tmp_path).skipped == len(before)
    assert states(tmp_path) == before
    run(compose(SEARCH, "search.trials=10", *HALVED[:-1], "prune.hedge=1"), tmp_path)
    store = Store.open(tmp_path, "tiny")
    later = sorted(store.cells(), key=lambda cell: cell.number)[7:]
    assert [len(store.history(cell, 1)) for cell in later] == [4, 4, 4]


@pytest.mark.usefixtures("slow_winner")
def test_the_plan_and_the_ablation_read_trials(compose: Compose, tmp_path: Path) -> None:
    body = SEARCH.replace("only: [optim.lr]", "only: [optim.lr, method.n_ctx]")
    halved = compose(body, "search.trials=6", *HALVED, "seeds=2")
    run(halved, tmp_path)
    store = Store.open(tmp_path, "tiny")
    left = compose(body, "search.trials=6", "protocol.rounds=4", "seeds=2")
    assert make_plan(halved, root=tmp_path).totals()["done"] == 6
    assert make_plan(left, root=tmp_path).totals()["done"] < 6, "without pruning, the pruned ones run whole"
    with pytest.raises(ConfigError, match="ablate=best"):
        ablation_paths(compose(body.replace("random", "null")), [], store.table().rows)
