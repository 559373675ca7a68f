"""Racing of seeds: who is stopped, how often wrongly, and what a study says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.config import PruneSpec
from fpl_tune.search.race import Elimination, Race
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import Cell, expand
from fpl_tune.study.selection import best
from fpl_tune.study.store import Store

Compose = Callable[..., Any]
LRS = "axes: {optim: {lr: [1, 2, 3, 4, 5]}}"


def record(value: float, clients: Sequence[float] = ()) -> list[Record]:
    return [{"round": 1, "val/acc_mean": value, "test/acc_mean": 0.5, "clients/val": list(clients)}]


def race_of(cells: list[Cell], figures: np.ndarray, *, batch: int, level: float = 0.05) -> dict[int, Elimination]:
    """Runs a race over figures [cells, seeds]; clients fell, by place."""
    seeds = list(range(figures.shape[1]))
    race, fallen = Race(PruneSpec(seeds=batch, level=level), seeds), {}
    for number, some in enumerate(race.batches):
        for place, cell in enumerate(cells):
            if number and place not in fallen and (fall := race.judge(cell, number)):
                fallen[place] = fall
        for place, cell in enumerate(cells):
            if place not in fallen:
                for seed in some:
                    race.note(cell, seed, {"status": "done"}, record(figures[place, seed]))
    return fallen


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Cell]:
    from fpl_tune import config

    path = tmp_path_factory.mktemp("race") / "race.yaml"
    path.write_text(f"defaults: [/study, _self_]\n{LRS}\n")
    return expand(*config.compose_study(str(path)))


@pytest.mark.parametrize("spread", [(1.0, 1.0), (3.0, 1.0), (1.0, 3.0)])
def test_an_equal_is_stopped_no_more_often_than_the_level_says(cells: list[Cell], spread: tuple[float, float]) -> None:
    """All cells are equal; seeds shift all of them alike. One cell's noise may be three times the others'."""
    rng, level, races = np.random.default_rng(1), 0.1, 120
    scale = np.array([spread[0], spread[1], 1, 1, 1])[:, None]
    wrong = 0
    for _ in range(races):
        figures = 0.6 + rng.normal(0, 0.05, (1, 6)) + scale * rng.normal(0, 0.02, (5, 6))
        wrong += 0 in race_of(cells, figures, batch=2, level=level)
    # Binomial(races, level): three deviations above
    assert wrong <= races * level + 3 * (races * level * (1 - level)) ** 0.5


def test_a_clear_loser_is_stopped_at_the_first_test_and_the_best_never(cells: list[Cell]) -> None:
    rng = np.random.default_rng(2)
    means = np.array([0.60, 0.62, 0.61, 0.66, 0.40])[:, None]
    for _ in range(20):
        figures = means + rng.normal(0, 0.05, (1, 6)) + rng.normal(0, 0.005, (5, 6))
        fallen = race_of(cells, figures, batch=2)
        seen = figures[:, :2].mean(1)
        assert int(seen.argmax()) == 3
        assert 3 not in fallen
        assert (fallen[4].leader, fallen[4].ran, fallen[4].of) == (cells[3].label, 2, 6)
        assert fallen[4].behind == pytest.approx(seen[3] - seen[4])
        assert fallen[4].p < fallen[4].limit


def test_the_test_is_the_two_way_t_test(cells: list[Cell]) -> None:
    from scipy import stats

    figures = np.random.default_rng(3).normal(0.5, 0.02, (5, 4)) - np.array([0.3, 0, 0, 0, 0])[:, None]
    fall = race_of(cells, figures, batch=3)[0]
    seen = figures[:, :3]
    leader = int(seen[1:].mean(1).argmax()) + 1
    residual = seen - seen.mean(1, keepdims=True) - seen.mean(0) + seen.mean()
    pooled = (2 * (residual**2).sum() / 8 / 3) ** 0.5
    own = stats.sem(seen[leader] - seen[0])
    assert fall.leader == cells[leader].label
    assert fall.error == pytest.approx(max(pooled, own))
    assert fall.p == pytest.approx(stats.t.sf(fall.behind / fall.error, 8))
    assert fall.limit == pytest.approx(0.05 / 4)  # four rivals, one test


def test_clients_that_disagree_keep_a_cell_in_the_race(cells: list[Cell]) -> None:
    for spread, out in ((0.0, True), (0.9, False)):
        race = Race(PruneSpec(seeds=2), [1, 2, 3])
        for place, cell in enumerate(cells[:2]):
            for seed in (1, 2):
                value = 0.5 + 0.1 * place + 0.001 * seed
                shifts = [spread, -spread, spread, -spread] if place else [0.0] * 4
                race.note(cell, seed, {"status": "done"}, record(value, [value + s for s in shifts]))
        assert (race.judge(cells[0], 1) is not None) is out
        assert race.judge(cells[1], 1) is None


def test_who_has_failed_seeds_or_no_rivals_is_not_judged(cells: list[Cell]) -> None:
    race = Race(PruneSpec(seeds=2), [1, 2, 3])
    for seed in (1, 2):
        race.note(cells[0], seed, {"status": "done"}, record(0.1 + 0.001 * seed))
    assert race.judge(cells[0], 1) is None
    race.note(cells[1], 1, {"status": "done"}, record(0.9))
    race.note(cells[1], 2, {"status": "failed"}, [])
    assert race.judge(cells[0], 1) is None
    assert race.judge(cells[1], 1) is None


# -- in a study ----------------------------------------------------------------------------------------------

BODY = "axes: {optim: {lr: [0.1, 0.2, 0.9]}}\nreferences: [{method: zeroshot, optim.lr: 0.5}]\nprune: {seeds: 2}"


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, tuple[int, ...]]]:
    """Validation accuracy 1 - lr with a little noise by seed; notes what is trained."""
    step, ran = Simulation.step, []

    def fake(self: Simulation) -> list[Record]:
        ran.append((self.run.optim.lr, tuple(self.seeds)))
        found = []
        for r in step(self):
            value = 1 - self.run.optim.lr + 0.001 * ((7 * r["seed"] + round(30 * self.run.optim.lr)) % 5)
            found.append({**r, "val/acc_mean": value, "clients/val": [value] * 4})
        return found

    monkeypatch.setattr(Simulation, "step", fake)
    return ran


def test_a_study_races_and_says_so(
    compose: Compose, tmp_path: Path, graded: list[tuple[float, tuple[int, ...]]]
) -> None:
    made = compose(BODY, "seeds=5", "protocol.rounds=1")
    assert run_study(*made, root=tmp_path).exit_code == 0
    assert graded[:4] == [(0.5, (1, 2, 3, 4, 5)), (0.1, (1, 2)), (0.2, (1, 2)), (0.9, (1, 2))]
    assert (0.1, (3, 4)) in graded
    assert (0.9, (3, 4)) not in graded
    store = Store.open(tmp_path, "tiny")
    summary = store.summary()
    assert summary["status"].tolist() == ["done", "eliminated", "eliminated", "done"]
    assert summary["n"].tolist() == [5, 2, 2, 5]
    left = store.result(store.cells()[2], 5)
    assert left is not None
    assert left["error"].startswith("eliminated after 2 of 5 seeds: on validation 79.8 ± ")
    assert "points behind lr=0.1 (p = " in left["error"]
    assert best(store).cell.label == "lr=0.1"

    graded.clear()
    assert run_study(*made, root=tmp_path).skipped == 4
    run_study(*compose(BODY, "seeds=7", "protocol.rounds=1"), root=tmp_path)  # out is out, also of further seeds
    assert graded == [(0.5, (6, 7)), (0.1, (6,)), (0.1, (7,))]
    graded.clear()
    run_study(*compose(BODY, "seeds=5", "protocol.rounds=1", "prune.seeds=null"), root=tmp_path)
    assert sorted(graded) == [(0.2, (3, 4, 5)), (0.9, (3, 4, 5))]
    assert Store.open(tmp_path, "tiny").summary()["n"].tolist() == [7, 5, 5, 7], "seeds of earlier runs stay"


def test_a_race_killed_and_continued_equals_undisturbed(
    compose: Compose, tmp_path: Path, graded: list[tuple[float, tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compose(BODY, "seeds=5", "protocol.rounds=1")
    run_study(*made, root=tmp_path / "whole")
    whole = list(graded)
    put = Store.put
    for after in (1, 5, 8, 12):
        graded.clear()
        root, left = tmp_path / str(after), [after]

        def dying(self: Store, *args: Any, left: list[int] = left, **kwargs: Any) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            put(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", dying)
            with pytest.raises(KeyboardInterrupt):
                run_study(*made, root=root)
        run_study(*made, root=root)
        assert {(lr, seed) for lr, seeds in graded for seed in seeds} == {(lr, s) for lr, ss in whole for s in ss}
        states = [Store.open(folder, "tiny").summary() for folder in (tmp_path / "whole", root)]
        for column in ("label", "status", "n"):
            assert states[0][column].tolist() == states[1][column].tolist()


def test_a_search_hears_the_mean_of_the_seeds_that_ran(
    compose: Compose, tmp_path: Path, graded: list[tuple[float, tuple[int, ...]]]
) -> None:
    import optuna

    from fpl_tune.search.record import open_storage
    from fpl_tune.search.search import Search

    body = (
        "axes: {}\nprune: {seeds: 2}\n"
        "search: {sampler: grid, only: [optim.lr], space: {optim.lr: {choices: [0.1, 0.2, 0.9]}}, batch: 3}"
    )
    made = compose(body, "seeds=4", "protocol.rounds=1")
    run_study(*made, root=tmp_path)
    search = Search.plan(*made)
    assert search is not None
    study = optuna.load_study(storage=open_storage(tmp_path / "tiny"), study_name=search.parts[0].key)
    trials = {t.user_attrs["params"]["optim.lr"]: t for t in study.get_trials()}
    assert [trials[lr].user_attrs["n"] for lr in (0.1, 0.9)] == [4, 2]
    assert {t.state.name for t in trials.values()} == {"COMPLETE"}
    assert trials[0.9].value == pytest.approx(0.1, abs=0.01)
