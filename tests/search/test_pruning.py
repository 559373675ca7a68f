from pathlib import Path
from typing import Any

import optuna
import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.config import PruneSpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.spec import validated
from fpl_tune.search.pruning import Decision, Paused, Pruner, check, expected_cost, make_pruner, resolved, rungs, score
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import expand
from fpl_tune.study.store import Store

from ..conftest import Compose


def rounds(values: list[float]) -> list[list[dict[str, Any]]]:
    """Records of two seeds in rounds of these validation accuracies."""
    return [[{"round": n, "seed": seed, "val/acc_mean": v} for seed in (1, 2)] for n, v in enumerate(values, 1)]


@pytest.fixture
def cells(compose: Compose) -> list[Any]:
    return expand(compose("axes: {optim: {lr: [1, 2, 3, 4, 5, 6]}}", "protocol.rounds=9"))


def test_the_last_evaluated_round_counts() -> None:
    """A round without an evaluation repeats nothing."""
    assert score([*rounds([0.2, 0.6]), [{"round": 3}, {"round": 3}]]) == pytest.approx(0.6)
    assert score([[{"round": 1}]]) is None


GO, PAUSE, STOP = Decision.CONTINUE, Decision.PAUSE, Decision.STOP


def test_a_rung_lets_its_best_third_go_on_and_promotes_when_it_has_room(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="halving", reduction=3, first_rung=1))
    decided = {}
    for cell, value in zip(cells, [0.5, 0.4, 0.45, 0.3, 0.7, 0.2], strict=True):
        decided[value] = pruner.decide(cell, rounds([value]))
    # The third is not the best of three, though the first is: it has room now. The fifth is the best of five.
    assert decided == {0.5: PAUSE, 0.4: PAUSE, 0.45: PAUSE, 0.3: PAUSE, 0.7: GO, 0.2: PAUSE}
    paused = [Paused(cell, 1) for cell, value in zip(cells, decided, strict=True) if decided[value] == PAUSE]
    assert pruner.promote(paused) == [Paused(cells[0], 1)], "of six the best two go on: 0.7 does already"
    assert pruner.promote(paused[1:]) == []
    assert pruner.decide(cells[0], rounds([0.5])) == GO, "reported again, it has passed"
    assert pruner.decide(cells[3], rounds([0.3, 0.3])) == GO, "round 2 is not a rung: 1, 3 and 9 are"


def test_after_a_restart_waiting_cells_are_at_their_rung_before_anything_is_decided(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="halving", reduction=3, first_rung=1))
    for cell, value in zip(cells[:4], [0.5, 0.6, 0.8, 0.9], strict=True):
        pruner.restore(cell, rounds([value]), passed=False)
    pruner.restore(cells[4], rounds([0.7, 0.7]), passed=False)
    paused = [Paused(cell, 1) for cell in cells[:4]]
    assert pruner.promote(paused) == [Paused(cells[3], 1)], "the best of five, whatever the order"
    assert pruner.decide(cells[4], rounds([0.7])) == GO, "it was beyond the rung"
    assert pruner.decide(cells[5], rounds([0.1])) == PAUSE
    assert pruner.promote(paused[:3]) == [Paused(cells[2], 1)], "the second of six"


def test_the_lowest_rung_is_settled_first_and_one_cell_always_goes_on(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="halving", first_rung=1, reduction=3))
    for cell, value in zip(cells[:2], (0.4, 0.5), strict=True):
        assert pruner.decide(cell, rounds([value])) == PAUSE
    assert pruner.decide(cells[2], rounds([0.6, 0.6, 0.6])) == PAUSE
    paused = [Paused(cells[0], 1), Paused(cells[1], 1), Paused(cells[2], 3)]
    assert pruner.settle(paused, ()) == ([Paused(cells[1], 1)], [Paused(cells[0], 1)])
    assert pruner.settle(paused[2:], ()) == ([Paused(cells[2], 3)], [])


def test_of_cells_that_tie_a_third_goes_on(cells: list[Any]) -> None:
    pruner = Pruner(PruneSpec(rule="halving", first_rung=1))
    paused = [Paused(cell, 1) for cell in cells if pruner.decide(cell, rounds([1.0])) == PAUSE]
    going = len(cells) - len(paused) + len(pruner.promote(paused))
    assert going == 2
    waiting = [p for p in paused if p not in pruner.promote(paused)]
    assert pruner.settle(waiting, ())[0] == []


def test_one_published_point_reaches_the_end(compose: Compose, tmp_path: Path, opened: Any) -> None:
    """The best of them at each rung goes on, however far behind it is."""
    made = compose("axes: {}\nsearch: {sampler: random, trials: 7, only: [optim.lr]}", "protocol.rounds=5")
    search, _ = opened(made, tmp_path)
    cells = list(iter(search.request, None))
    values = [0.2 if cell.id in search.published else 0.5 + 0.01 * number for number, cell in enumerate(cells)]
    pruner = Pruner(PruneSpec(rule="halving", first_rung=1), [], search)
    paused = [
        Paused(cell, 1) for cell, v in zip(cells, values, strict=True) if pruner.decide(cell, rounds([v])) == PAUSE
    ]
    waiting = [p for p in paused if p not in pruner.promote(paused)]
    going, pruned = pruner.settle(waiting, ())
    assert [p.cell.id in search.published for p in going] == [True]
    assert len(search.published) > 1
    assert sum(p.cell.id in search.published for p in pruned) == len(search.published) - 1


def test_cells_on_other_data_are_no_peers(compose: Compose) -> None:
    made = expand(compose("axes: {data: {shots: [2, 4]}, optim: {lr: [1, 2, 3]}}", "protocol.rounds=9"))
    pruner = Pruner(PruneSpec(rule="halving", first_rung=1, reduction=2))
    assert [pruner.decide(cell, rounds([v])) for cell, v in zip(made[:2], (0.8, 0.9), strict=True)] == [PAUSE, GO]
    assert [pruner.decide(cell, rounds([v])) for cell, v in zip(made[3:5], (0.1, 0.2), strict=True)] == [PAUSE, GO]


def test_references_and_the_last_round_are_never_pruned(compose: Compose) -> None:
    body = "axes: {optim: {lr: [1, 2]}}\nreferences: [{method: zeroshot, optim.lr: 1}]"
    made = expand(compose(body, "protocol.rounds=3"))
    pruner = Pruner(PruneSpec(rule="halving", first_rung=1, reduction=2))
    pruner.decide(made[0], rounds([0.9]))
    assert pruner.decide(made[1], rounds([0.1, 0.1, 0.1])) == GO
    assert pruner.decide(made[2], rounds([0.0])) == GO


class Impatient(optuna.pruners.BasePruner):
    def prune(self, study: optuna.Study, trial: Any) -> bool:
        return trial.last_step >= 2


@pytest.mark.parametrize(
    ("rule", "stopped"),
    [
        ("{name: median, n_startup_trials: 1}", [4, 4, 4, 3]),
        ("{name: patient, patience: 1, wrapped_pruner: {name: threshold, lower: 2.0}}", [4, 4, 4, 3]),
        ("impatient", [2, 2, 2, 2]),
    ],
)
def test_a_pruner_of_optuna_or_a_plug_in_stops_trials(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, stopped: list[int], opened: Any
) -> None:
    monkeypatch.setattr(plugins, "names", lambda kind: ["impatient"] if kind == "pruners" else [])
    monkeypatch.setattr(plugins, "load", lambda kind, name: Impatient)
    body = "axes: {}\nsearch: {sampler: random, trials: 4, only: [optim.lr]}\nprune: {rule: " + rule + "}"
    made = compose(body, "protocol.rounds=5")
    search, _ = opened(made, tmp_path)
    pruner, ends = Pruner(made.prune, [], search), []
    for levels in ([0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8], [0.6, 0.3, 0.2, 0.1]):
        cell = search.request()
        decisions = (pruner.decide(cell, rounds(levels[:number])) for number in range(1, 5))
        ends.append(next((number for number, found in enumerate(decisions, 1) if found == STOP), 4))
        kept = [list(history) for history in zip(*rounds(levels[: ends[-1]]), strict=True)]
        for record in (record for history in kept for record in history):
            record |= {"time/seconds": 1.0, "comm/up_bytes": 1, "comm/down_bytes": 1}
        search.report(cell, {seed: ({"status": "done"}, history) for seed, history in enumerate(kept, 1)})
    assert ends == stopped


@pytest.mark.parametrize(
    ("every", "expected"), [(1, (1, 3, 9)), (2, (2, 4, 10)), (4, (4, 12)), (20, ())], ids=lambda value: str(value)
)
def test_rungs_fall_on_validated_rounds_before_the_last(compose: Compose, every: int, expected: tuple[int]) -> None:
    made = compose("axes: {}", "protocol.rounds=20", f"protocol.eval_every={every}")
    assert rungs(PruneSpec(rule="halving", first_rung=1), made) == expected
    assert rungs(PruneSpec(rule=None), made) == ()
    assert rungs(PruneSpec(rule="halving"), made) == ((7 + -7 % every,) if expected else ()), "a third of the rounds"


def test_the_cost_of_a_trial_is_what_a_third_at_each_rung_leaves(compose: Compose) -> None:
    made, spec = compose("axes: {}", "protocol.rounds=9"), PruneSpec(rule="halving", first_rung=1)
    assert expected_cost(spec, made, 2) == pytest.approx((1 + 2 / 3 + 6 / 9 + 9 / 27) / 18)
    assert expected_cost(PruneSpec(rule=None), made, 2) == 1


@pytest.mark.parametrize(
    ("search", "rule"),
    [
        ("sampler: tpe", "halving"),
        ("sampler: {name: random}", "halving"),
        ("sampler: auto", "halving"),
        ("sampler: gp", "halving"),
        ("sampler: nsgaii", None),
        ("sampler: tpe, objectives: [val/acc_mean, comm/total_bytes]", None),
    ],
)
def test_by_default_samplers_that_were_measured_with_halving_get_it(
    compose: Compose, search: str, rule: str | None
) -> None:
    assert resolved(compose(f"axes: {{}}\nsearch: {{{search}}}")).rule == rule
    assert resolved(compose()).rule is None, "a grid of axes is never pruned unasked"
    assert resolved(compose(f"axes: {{}}\nsearch: {{{search}}}\nprune: {{rule: null}}")).rule is None


def test_where_no_round_precedes_the_last_validated_one_trials_run_whole_and_it_is_said(compose: Compose) -> None:
    made = compose("axes: {}\nsearch: {sampler: tpe}", "protocol.rounds=8", "protocol.eval_every=8")
    with pytest.warns(Notice, match="Every trial runs to its end: .* protocol.eval_every=8 of 8 rounds gives none"):
        check(made, [made])
    assert Pruner(resolved(made), seeds=[1, 2]).first_seeds(expand(made)[0]) == (1, 2)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["protocol.rounds=4", "protocol.eval_every=4"], "protocol.eval_every=4 of 4 rounds gives none"),
        (["protocol.rounds=4", "prune.first_rung=4"], "of 4 rounds gives none with prune.first_rung=4. Lower them"),
        (
            ["protocol.rounds=8", "protocol.eval_every=3", "prune.first_rung=7"],
            "eval_every=3 of 8 rounds gives none with prune.first_rung=7",
        ),
        (["protocol.rounds=8", "protocol.eval_every=8", "prune.rule=median"], "prune.rule=median needs a search"),
    ],
)
def test_rungs_that_never_compare_are_refused(
    compose: Compose, tmp_path: Path, overrides: list[str], says: str
) -> None:
    body = "axes: {optim: {lr: [1, 2]}}\nprune: {rule: halving}"
    with pytest.raises(ConfigError, match=says):
        run_study(compose(body, *overrides), root=tmp_path)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rule": "plateau"}, r"no pruning rule 'plateau'. Optuna's pruner does this: prune.rule=\{name: patient"),
        ({"rule": "halve"}, "There is no pruning rule 'halve'. Did you mean 'halving'"),
        ({"rule": {"name": "median", "n_startup": 1}}, "unexpected keyword argument 'n_startup'"),
        ({"reduction": 1}, "prune.reduction must be >= 2"),
        ({"first_rung": 0}, "prune.first_rung must be >= 1"),
        ({"confidence": 1}, "no field 'prune.confidence'. Halving compares ranks"),
    ],
)
def test_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_pruner(validated(PruneSpec, change, "prune"))


def test_a_pruned_cell_is_stored_at_its_round_and_not_run_again(
    compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Simulation.step

    def graded(self: Simulation) -> list[Record]:
        return [{**record, "val/acc_mean": 1 - self.run.optim.lr} for record in step(self)]

    monkeypatch.setattr(Simulation, "step", graded)
    body = "axes: {optim: {lr: [0.1, 0.2, 0.05]}}\nprune: {rule: halving, first_rung: 1, reduction: 2}"
    made = compose(body, "protocol.rounds=4")
    outcome = run_study(made, root=tmp_path)
    assert outcome.exit_code == 0
    store = Store.open(tmp_path, "tiny")
    assert store.summary()["status"].tolist() == ["pruned", "pruned", "done"]
    assert [(store.result(cell, 1) or {})["rounds"] for cell in store.cells()] == [2, 1, 4]
    found = store.result(store.cells()[1], 1)
    assert found is not None
    assert (found["status"], found["rounds"]) == ("pruned", 1)
    assert len(store.history(store.cells()[1], 1)) == 1
    assert run_study(made, root=tmp_path).skipped == 3
