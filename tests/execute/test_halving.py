"""Successive halving in a study: trials pause with a checkpoint, resume when their rung has room, and survive kills."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from fpl_tune.config import Study
from fpl_tune.execute import inline
from fpl_tune.execute.runner import run_study
from fpl_tune.search.record import open_storage
from fpl_tune.search.search import Search
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

from ..conftest import Compose, Heard, there

LRS = [0.5, 0.3, 0.4, 0.1, 0.2, 0.6]
BODY = f"axes: {{optim: {{lr: {LRS}}}}}\nprune: {{rule: halving, first_rung: 1, reduction: 2}}"


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Validation accuracy falls with the learning rate. (lr, round) of every round that is trained."""
    step, ran = Simulation.step, []

    def graded(self: Simulation) -> list[Record]:
        ran.append((self.run.optim.lr, self.round + 1))
        return [{**record, "val/acc_mean": 1 - self.run.optim.lr} for record in step(self)]

    monkeypatch.setattr(Simulation, "step", graded)
    return ran


def rounds_of(root: Path) -> dict[str, tuple[str, int]]:
    """State of the trial and rounds by cell."""
    store = Store.open(root, "tiny")
    return {cell.label: (str(store.trial(cell).state), len(store.history(cell, 1))) for cell in store.cells()}


def test_a_paused_trial_resumes_from_its_checkpoint_and_no_round_runs_twice(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    made = compose(BODY, "protocol.rounds=4")
    outcome = run_study(made, root=tmp_path, executor=inline.execute, callbacks=[log := Heard()])
    assert (outcome.exit_code, outcome.done, outcome.pending) == (0, 6, 0)
    assert len(set(stepped)) == len(stepped), "a round ran twice"
    assert [(float(at[3:-2]), r) for at, r in log.rounds if at.endswith("/1")] == stepped
    found = rounds_of(tmp_path)
    assert found["lr=0.1"] == ("done", 4), "the best one is never lost"
    assert found["lr=0.6"] == ("pruned", 1)
    assert sorted(status for status, _ in found.values()) == ["done", *["pruned"] * 5]
    assert "lr=0.3" in log.paused
    assert found["lr=0.3"] == ("pruned", 2), "promoted from round 1, stopped at round 2"
    assert sum(r for _, r in found.values()) == len(stepped) < 4 * 6 * 0.6
    assert not list((tmp_path / "tiny").rglob("ckpt-*"))
    store = Store.open(tmp_path, "tiny")
    assert [len(store.history(cell, 2)) for cell in store.cells()] == [r for _, r in found.values()]


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


_undisturbed: dict[str, tuple[Any, int]] = {}


def undisturbed(
    made: Study, root: Path, stepped: list[tuple[float, int]], found: Callable[[Path], Any]
) -> tuple[Any, int]:
    """What a study leaves when nothing goes wrong, and the rounds that it trains; run once per process."""
    key = str(made.node)
    if key not in _undisturbed:
        run_study(made, root=root, executor=inline.execute)
        _undisturbed[key] = found(root), len(stepped)
        stepped.clear()
    return _undisturbed[key]


@pytest.mark.parametrize("after", [8, *(pytest.param(n, marks=pytest.mark.system) for n in (1, 2, 3, 5, 10))])
def test_a_study_killed_among_paused_trials_ends_as_undisturbed(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The process dies before its round `after` + 1; what waits at a rung is rebuilt from the checkpoints."""
    made = compose(BODY, "protocol.rounds=4")
    expected, rounds = undisturbed(made, tmp_path / "whole", stepped, rounds_of)
    run_until_killed(made, tmp_path / "killed", stepped, after, monkeypatch)
    assert run_study(made, root=tmp_path / "killed", executor=inline.execute).exit_code == 0
    assert rounds_of(tmp_path / "killed") == expected
    assert len(set(stepped)) == len(stepped) == rounds, "every rung has a checkpoint, so that no round is lost"


def test_checkpoints_at_a_url_are_resumed_after_a_kill(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study's folder holds no checkpoints, as where another node wrote them."""
    url = f"execution.checkpoints=file://{tmp_path / 'bucket'}"
    made = compose(BODY, "protocol.rounds=4", url)
    run_until_killed(made, tmp_path / "out", stepped, 6, monkeypatch)
    for path in (tmp_path / "out").rglob("round-*.safetensors"):
        path.unlink()
    assert run_study(made, root=tmp_path / "out", executor=inline.execute).exit_code == 0
    assert rounds_of(tmp_path / "out")["lr=0.1"] == ("done", 4)
    assert len(set(stepped)) == len(stepped)
    assert rounds_of(tmp_path / "out")["lr=0.6"] == ("pruned", 1)


def test_a_search_does_not_wait_for_paused_trials(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    body = (
        "axes: {}\nsearch: {sampler: random, trials: 8, only: [optim.lr]}\n"
        "prune: {rule: halving, first_rung: 1, reduction: 2}"
    )
    outcome = run_study(compose(body, "protocol.rounds=4"), root=tmp_path, executor=inline.execute)
    assert (outcome.exit_code, outcome.done) == (0, 8)
    best = min(stepped)[0]
    assert [r for lr, r in stepped if lr == best] == 2 * [1, 2, 3, 4], "the second seed follows the first"
    assert sum(status == "pruned" for status, _ in rounds_of(tmp_path).values()) >= 4


HEDGED = "axes: {}\nsearch: {sampler: tpe, trials: 14, only: [optim.lr]}\nprune: {first_rung: 1, hedge: 3}"


def hedged_of(root: Path) -> list[tuple[bool, str, list[int]]]:
    """Of every trial that is suggested: whether it is hedged, its state, and rounds by seed."""
    store = Store.open(root, "tiny")
    search = there(Search.plan(store.spec()))
    trials = sorted((cell for cell in store.cells() if cell.id not in search.published), key=lambda c: c.number)
    return [
        (search.hedged(cell), str(store.trial(cell).state), [len(store.history(cell, n)) for n in store.seeds(cell)])
        for cell in trials
    ]


@pytest.mark.parametrize("after", [None, 19, *(pytest.param(n, marks=pytest.mark.system) for n in (14, 23, 26))])
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


SEARCH = "axes: {}\nsearch: {sampler: tpe, budget: 4, only: [optim.lr]}\nprune: {first_rung: 1, reduction: 2}"


def trials_of(root: Path) -> list[tuple[float, str, list[int]]]:
    """Rate, status and rounds by seed of every trial."""
    store = Store.open(root, "tiny")
    states = {row["cell"]: row["status"] for row in store.summaries()}
    return [
        (cell.run.optim.lr, states[cell.id], [len(store.history(cell, seed)) for seed in store.seeds(cell)])
        for cell in store.cells()
    ]


def test_the_budget_pays_first_seeds_and_the_others_of_what_survives(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]]
) -> None:
    outcome = run_study(compose(SEARCH, "protocol.rounds=4"), root=tmp_path, executor=inline.execute)
    assert (outcome.exit_code, outcome.pending) == (0, 0)
    found, full = trials_of(tmp_path), 2 * 4
    assert sum(sum(rounds) for _, _, rounds in found) == len(stepped), "no round ran twice"
    assert 4 * full <= len(stepped) <= 5 * full
    assert {len(rounds) for _, status, rounds in found if status == "done"} == {2}
    assert {status for _, status, rounds in found if len(rounds) == 1} == {"pruned"}
    assert [1] in [rounds for _, _, rounds in found]
    assert min(found)[1:] == ("done", [4, 4]), "the best one gets all seeds"
    store = Store.open(tmp_path, "tiny")
    assert best(store).cell.run.optim.lr == min(found)[0]
    storage = open_storage(store.folder)
    (study,) = optuna.get_all_study_summaries(storage)
    told = optuna.load_study(study_name=study.study_name, storage=storage).trials
    assert [trial.state.name == "COMPLETE" for trial in told] == [status == "done" for _, status, _ in found]
    assert all(trial.value == pytest.approx(1 - lr) for trial, (lr, _, _) in zip(told, found, strict=True))


@pytest.mark.parametrize("after", [21, *(pytest.param(n, marks=pytest.mark.system) for n in (1, 9, 11, 31))])
def test_a_search_with_a_budget_that_is_killed_ends_as_undisturbed(
    compose: Compose, tmp_path: Path, stepped: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    made = compose(SEARCH, "protocol.rounds=4", "execution.checkpoint_every=1")
    expected, _ = undisturbed(made, tmp_path / "whole", stepped, trials_of)
    run_until_killed(made, tmp_path / "killed", stepped, after, monkeypatch)
    assert run_study(made, root=tmp_path / "killed", executor=inline.execute).exit_code == 0
    assert trials_of(tmp_path / "killed") == expected
