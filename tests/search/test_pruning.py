from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.config import PruneSpec
from fpl_tune.errors import ConfigError
from fpl_tune.search.pruning import Pruner, score
from fpl_tune.study.cells import expand
from fpl_tune.study.store import Store
from fpl_tune.trial import Record, Trial

Compose = Callable[..., Any]


def rounds(values: list[float], *, spread: float = 0.0, seeds: int = 2) -> list[list[dict[str, Any]]]:
    """Records of rounds with these means over seeds, which lie `spread` apart."""
    found = []
    for number, value in enumerate(values, 1):
        shifts = [spread * (i - (seeds - 1) / 2) for i in range(seeds)]
        found.append([{"round": number, "seed": i + 1, "val/acc_mean": value + s} for i, s in enumerate(shifts)])
    return found


@pytest.fixture
def cells(compose: Compose) -> list[Any]:
    return expand(*compose("axes: {optim: {lr: [1, 2, 3, 4, 5, 6]}}", "protocol.rounds=9"))


def test_score_smooths_over_rounds_and_takes_the_larger_error() -> None:
    history = rounds([0.2, 0.4, 0.8], spread=0.1)
    found = score(history, 2)
    assert found is not None
    assert found.mean == pytest.approx(0.6)
    assert found.error == pytest.approx(0.1 / math.sqrt(2) / math.sqrt(2))  # std of two values 0.1 apart, over √2
    for record in history[-1]:
        record["clients/val"] = [0.0, 1.0, 0.0, 1.0]
    wider = score(history, 2)
    assert wider is not None
    assert wider.error == pytest.approx(math.sqrt(2 * (1 / 3) / 4) / 2)  # var 1/3 over 4 clients, two seeds
    assert score([[{"round": 1}]], 1) is None


def test_halving_without_noise_keeps_the_best_third_at_each_rung(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="halving", reduction=3, first_rung=1, confidence=0))
    kept = {}
    for cell, value in zip(cells, [0.5, 0.4, 0.6, 0.3, 0.7, 0.65], strict=True):
        kept[value] = pruner.keep(cell, rounds([value]))
    # The first two always pass; then a cell passes that is among the best third of those seen so far.
    assert kept == {0.5: True, 0.4: True, 0.6: True, 0.3: False, 0.7: True, 0.65: True}
    assert pruner.keep(cells[3], rounds([0.3, 0.3]))  # round 2 is no rung: 1, 3, 9 are


def test_noise_keeps_what_cannot_be_told_apart(cells: list[Any]) -> None:
    values = [0.50, 0.52, 0.54, 0.49, 0.55, 0.48]
    for confidence, spread, expected in ((0.0, 0.2, False), (1.0, 0.2, True), (1.0, 0.0001, False)):
        pruner = Pruner(PruneSpec(rule="halving", reduction=3, confidence=confidence))
        kept = [pruner.keep(cell, rounds([value], spread=spread)) for cell, value in zip(cells, values, strict=True)]
        assert kept[-1] is expected


def test_cells_on_other_data_are_no_peers(compose: Compose) -> None:
    made = expand(*compose("axes: {data: {shots: [2, 4]}, optim: {lr: [1, 2, 3]}}", "protocol.rounds=9"))
    pruner = Pruner(PruneSpec(rule="halving", reduction=2, confidence=0))
    assert all(pruner.keep(cell, rounds([0.9])) for cell in made[:3])
    assert pruner.keep(made[3], rounds([0.1]))


def test_references_and_the_last_round_are_never_pruned(compose: Compose) -> None:
    body = "axes: {optim: {lr: [1, 2]}}\nreferences: [{method: zeroshot, optim.lr: 1}]"
    made = expand(*compose(body, "protocol.rounds=3"))
    pruner = Pruner(PruneSpec(rule="halving", reduction=2, confidence=0))
    assert pruner.keep(made[0], rounds([0.9]))
    assert not pruner.keep(made[1], rounds([0.1]))
    assert pruner.keep(made[1], rounds([0.1, 0.1, 0.1]))
    assert pruner.keep(made[2], rounds([0.0]))


def test_plateau_stops_what_gains_nothing(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="plateau", first_rung=1, reduction=2))
    assert pruner.keep(cells[0], rounds([0.1, 0.2, 0.3, 0.4]))
    assert not pruner.keep(cells[0], rounds([0.1, 0.4, 0.4, 0.4]))
    assert pruner.keep(cells[0], rounds([0.1, 0.4]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "halve"}, "no prune.rule 'halve'. Did you mean 'halving'"),
        ({"reduction": 1}, "prune.reduction must be >= 2"),
        ({"first_rung": 0}, "prune.first_rung must be >= 1"),
        ({"smoothing": 0}, "prune.smoothing must be >= 1"),
        ({"confidence": -1}, "prune.confidence must be >= 0"),
    ],
)
def test_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Pruner(PruneSpec(**change))


def test_a_pruned_cell_is_stored_at_its_round_and_not_run_again(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trial.step

    def graded(self: Trial) -> list[Record]:
        return [{**record, "val/acc_mean": 1 - self.run.optim.lr} for record in step(self)]

    monkeypatch.setattr(Trial, "step", graded)
    body = "axes: {optim: {lr: [0.1, 0.2, 0.05]}}\nprune: {rule: halving, reduction: 2, confidence: 0}"
    made = compose(body, "protocol.rounds=4")
    outcome = run_study(*made, root=tmp_path)
    assert outcome.exit_code == 0
    store = Store.open(tmp_path, "tiny")
    assert store.summary()["status"].tolist() == ["done", "pruned", "done"]
    found = store.result(store.cells()[1], 1)
    assert found is not None
    assert (found["status"], found["rounds"]) == ("pruned", 1)
    assert len(store.history(store.cells()[1], 1)) == 1
    assert run_study(*made, root=tmp_path).skipped == 3
