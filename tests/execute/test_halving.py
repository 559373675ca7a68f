"""Successive halving in a study: trials pause with a checkpoint, resume when their rung has room, and survive kills."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.config import Study
from fpl_tune.execute import inline
from fpl_tune.findings.choice import best
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.store import Store

from ..conftest import Compose, Heard, there
from ..conftest import start_study as run_study

Trials = list[tuple[float, str, list[int]]]
SEARCH = (
    "axes: {}\nsearch: {sampler: tpe, budget: 4, only: [optim.lr], confirm: 0}\nprune: {first_rung: 1, reduction: 2}"
)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Validation accuracy falls with the learning rate. (lr, round) of every round that is trained."""
    step, ran = Simulation.step, []

    def graded(self: Simulation) -> list[Record]:
        ran.append((self.run.optim.lr, self.round + 1))
        return [{**record, "val/acc_mean": 1 - self.run.optim.lr} for record in step(self)]

    monkeypatch.setattr(Simulation, "step", graded)
    return ran


def trials_of(root: Path) -> Trials:
    """Rate, status and rounds by seed of every trial."""
    store = Store.open(root, "tiny")
    states = {row["cell"]: row["status"] for row in store.table().summary()}
    return [
        (cell.run.optim.lr, states[cell.id], [len(store.history(cell, seed)) for seed in store.seeds(cell)])
        for cell in store.cells()
    ]


def test_the_budget_pays_first_seeds_and_the_others_of_what_survives(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    made = compose(SEARCH, "protocol.rounds=4")
    outcome = run_study(made, root=tmp_path, executor=inline.execute, callbacks=[log := Heard()])
    assert (outcome.exit_code, outcome.pending) == (0, 0)
    found, full = trials_of(tmp_path), 2 * 4
    assert sum(sum(rounds) for _, _, rounds in found) == len(stepped), "no round ran twice"
    assert 4 * full <= len(stepped) <= 5 * full
    assert {tuple(rounds) for _, status, rounds in found if status == "done"} == {(4, 4)}
    assert {status for _, status, rounds in found if len(rounds) == 1} == {"pruned"}
    assert [1] in [rounds for _, _, rounds in found]
    assert min(found)[1:] == ("done", [4, 4]), "the best one gets all seeds"
    store = Store.open(tmp_path, "tiny")
    assert best(store.table()).cell.run.optim.lr == min(found)[0]
    status = store.table().status()
    assert status["seeds"] == status["seeds_wanted"] == sum(len(rounds) for _, _, rounds in found), "no seed is missing"
    assert log.paused, "trials pause at their rungs"
    assert len(log.cells) == len({*log.cells}) == len(found), "and end once"
    kept = {path.parent.name for path in store.folder.rglob("ckpt-*")}
    stopped = {cell.id for cell in store.cells() if len(store.history(cell, 1)) < 4}
    assert kept == stopped, "a larger budget reopens them"


def test_a_search_does_not_wait_for_paused_trials(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    body = SEARCH.replace("tpe, budget: 4", "random, trials: 8")
    outcome = run_study(compose(body, "protocol.rounds=4"), root=tmp_path, executor=inline.execute)
    assert (outcome.exit_code, outcome.done) == (0, 8)
    lowest = min(stepped)[0]
    assert [r for lr, r in stepped if lr == lowest] == 2 * [1, 2, 3, 4], "the second seed follows the first"
    assert sum(status == "pruned" for _, status, _ in trials_of(tmp_path)) >= 4


def run_until_killed(
    made: Study, root: Path, stepped: list[tuple[float, int]], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs a study whose process dies before its round `after` + 1."""
    step = Simulation.step

    def dying(self: Simulation) -> list[Record]:
        if len(stepped) == after:
            raise KeyboardInterrupt
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "step", dying)
        with pytest.raises(KeyboardInterrupt):
            run_study(made, root=root, executor=inline.execute)


_undisturbed: dict[str, tuple[Trials, int]] = {}


def undisturbed(
    made: Study, root: Path, stepped: list[tuple[float, int]], found: Callable[[Path], Trials]
) -> tuple[Trials, int]:
    """What a study leaves when nothing goes wrong, and the rounds that it trains; run once per process."""
    key = str(made.node)
    if key not in _undisturbed:
        run_study(made, root=root, executor=inline.execute)
        _undisturbed[key] = found(root), len(stepped)
        stepped.clear()
    return _undisturbed[key]


@pytest.mark.system
@pytest.mark.parametrize("after", [1, 9, 11, 21, 31])
def test_a_search_that_is_killed_ends_as_undisturbed(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The process dies before its round `after` + 1; every rung has a checkpoint, so that no round is lost."""
    made = compose(SEARCH, "protocol.rounds=4", "execution.checkpoint_every=1")
    expected, rounds = undisturbed(made, tmp_path / "whole", stepped, trials_of)
    run_until_killed(made, tmp_path / "killed", stepped, after, monkeypatch)
    assert run_study(made, root=tmp_path / "killed", executor=inline.execute).exit_code == 0
    assert trials_of(tmp_path / "killed") == expected
    assert len(stepped) == rounds


def test_checkpoints_at_a_url_are_resumed_after_a_kill(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study's folder holds no checkpoints, as where another node wrote them."""
    url = f"execution.checkpoints=file://{tmp_path / 'bucket'}"
    made = compose(SEARCH, "protocol.rounds=4", url)
    run_until_killed(made, tmp_path / "out", stepped, 21, monkeypatch)
    for path in (tmp_path / "out").rglob("round-*.safetensors"):
        path.unlink()
    assert run_study(made, root=tmp_path / "out", executor=inline.execute).exit_code == 0
    found = trials_of(tmp_path / "out")
    assert min(found)[1:] == ("done", [4, 4])
    assert sum(sum(rounds) for _, _, rounds in found) == len(stepped), "no round ran twice"


HEDGED = "axes: {}\nsearch: {sampler: tpe, trials: 14, only: [optim.lr], confirm: 0}\nprune: {first_rung: 1, hedge: 3}"


def hedged_of(root: Path) -> list[tuple[bool, str, list[int]]]:
    """Of every trial that is suggested: whether it is hedged, its state, and rounds by seed."""
    store = Store.open(root, "tiny")
    trials = sorted((cell for cell in store.cells() if not cell.published), key=lambda cell: cell.number)
    return [
        (cell.hedged, store.row(cell).state.value, [len(store.history(cell, n)) for n in store.seeds(cell)])
        for cell in trials
    ]


@pytest.mark.parametrize("after", [None, *(pytest.param(n, marks=pytest.mark.system) for n in (14, 19, 23, 26))])
def test_every_third_trial_runs_its_first_seed_to_the_end_also_after_a_kill(
    compose: Compose,
    tmp_path: Path,
    stepped: list[tuple[float, int]],
    monkeypatch: pytest.MonkeyPatch,
    after: int | None,
) -> None:
    made = compose(HEDGED, "protocol.rounds=4", "execution.checkpoint_every=1")
    if after is not None:
        run_until_killed(made, tmp_path, stepped, after, monkeypatch)
    assert run_study(made, root=tmp_path, executor=inline.execute).exit_code == 0
    assert sum(sum(rounds) for _, _, rounds in trials_of(tmp_path)) == len(stepped), "no round ran twice"
    found = hedged_of(tmp_path)
    assert [place for place, (hedged, *_) in enumerate(found) if hedged] == [2, 5, 8]
    assert all(rounds[0] == 4 for hedged, _, rounds in found if hedged)
    assert ("pruned", [4]) in [(state, rounds) for hedged, state, rounds in found if hedged], "the rung of seeds stays"
    assert [1] in [rounds for hedged, _, rounds in found if not hedged]


def test_a_pruned_trial_is_stored_at_its_round_and_not_run_again(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    made: Any = compose(SEARCH, "protocol.rounds=4")
    assert run_study(made, root=tmp_path, executor=inline.execute).exit_code == 0
    store, ran = Store.open(tmp_path, "tiny"), len(stepped)
    results = {cell.id: there(store.result(cell, 1)) for cell in store.cells() if store.row(cell).state == "pruned"}
    assert {(result.status, result.rounds) for result in results.values()} >= {("partial", 1)}
    assert all(result.rounds == len(store.history(store.cell(key), 1)) for key, result in results.items())
    outcome = run_study(made, root=tmp_path, executor=inline.execute)
    assert (outcome.skipped, outcome.done) == (len(store.cells()), 0)
    assert len(stepped) == ran
