import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import optuna
import pytest

from fpl_tune.api import start_study as run_study
from fpl_tune.config import PruneSpec
from fpl_tune.core import plugins
from fpl_tune.core.errors import ConfigError, Notice
from fpl_tune.core.spec import validated
from fpl_tune.search.pruning import (
    Halving,
    check,
    expected_cost,
    leg_shares,
    make_pruner,
    planned_trials,
    resolved,
    rungs,
    score,
)
from fpl_tune.simulation.simulation import Record, Simulation
from fpl_tune.study.cells import expand
from fpl_tune.study.store import Store
from fpl_tune.study.trial import Event, State, Trial, legs_of

from ..conftest import Compose


def rounds(values: list[float]) -> list[list[dict[str, Any]]]:
    """Records of two seeds in rounds of these validation accuracies."""
    return [[{"round": n, "seed": seed, "val/acc_mean": v} for seed in (1, 2)] for n, v in enumerate(values, 1)]


def test_the_last_evaluated_round_counts() -> None:
    """A round without an evaluation repeats nothing; costs are totals so far."""
    assert score([*rounds([0.2, 0.6]), [{"round": 3}, {"round": 3}]]) == pytest.approx(0.6)
    assert score([[{"round": 1}]]) is None
    assert score(rounds([0.2, float("nan")])) is None
    sent = [[{"comm/up_bytes": 10 * r, "comm/down_bytes": r} for _ in (1, 2)] for r in (1, 2)]
    assert score(sent, "comm/total_bytes") == 22


class Rungs:
    """Trials of a study's cells, and the pruner that decides on them."""

    def __init__(
        self, made: Any, cells: list[Any] | None = None, published: Any = (), hedged: Collection[int] = ()
    ) -> None:
        self.cells = {cell.id: cell for cell in (expand(made) if cells is None else cells)}
        self.keys, self.trials = list(self.cells), dict[str, Trial]()
        self.halving = Halving(made, self.cells, self.trials, lambda: published, lambda cell: cell.number in hedged)

    def reach(self, index: int, value: float, rung: int = 1) -> bool:
        """A trial reaches a rung. Returns whether it goes on at once; else it waits."""
        key = self.keys[index]
        legs = legs_of([1, 2], 9, [1, 3], first_alone=True)
        values = {**(self.trials[key].values if key in self.trials else {}), rung: value}
        self.trials[key] = Trial(State.RUNNING, legs, {1: 0, 3: 1, 9: 2}[rung], values)
        passes = self.halving.passes(key)
        self.trials[key] = self.trials[key].after(Event.PASSED if passes else Event.HELD)
        return passes

    def waiting(self) -> list[str]:
        return [key for key, trial in self.trials.items() if trial.state is State.WAITING]

    def promote(self) -> list[int]:
        """Promotes what may go on; places of the cells."""
        found = self.halving.promote(self.waiting())
        for key in found:
            self.trials[key] = self.trials[key].after(Event.PROMOTED)
        return [self.keys.index(key) for key in found]

    def settle(self) -> tuple[list[int], list[int]]:
        going, pruned = self.halving.settle(self.waiting(), ())
        return [self.keys.index(key) for key in going], [self.keys.index(key) for key in pruned]


@pytest.fixture
def study(compose: Compose) -> Any:
    """study(reduction, metric): six cells, rungs after rounds 1 and 3."""

    def make(reduction: int = 3) -> Any:
        body = "axes: {optim: {lr: [1, 2, 3, 4, 5, 6]}}\nprune: {rule: halving, first_rung: 1}"
        return compose(body, "protocol.rounds=9", f"prune.reduction={reduction}")

    return make


def test_a_rung_lets_its_best_third_go_on_and_promotes_when_it_has_room(study: Any) -> None:
    rungs = Rungs(study())
    decided = [rungs.reach(i, value) for i, value in enumerate([0.5, 0.4, 0.45, 0.3, 0.7, 0.2])]
    # The third is not the best of three, though the first is: it has room now. The fifth is the best of five.
    assert decided == [False, False, False, False, True, False]
    assert rungs.promote() == [0], "of six the best two go on: 0.7 does already"
    assert rungs.promote() == []


def test_the_lowest_rung_is_settled_first_and_one_cell_always_goes_on(study: Any) -> None:
    rungs = Rungs(study())
    rungs.reach(0, 0.4)
    rungs.reach(1, 0.5)
    assert rungs.reach(2, 0.6)
    rungs.reach(2, 0.6, 3)
    going, pruned = rungs.settle()
    assert (going, pruned) == ([], [0, 1]), "the best of three went on before"
    for index in pruned:
        key = rungs.keys[index]
        rungs.trials[key] = rungs.trials[key].after(Event.SETTLED)
    assert rungs.settle() == ([2], [])


def test_a_rung_that_a_running_trial_can_still_reach_is_not_settled(study: Any) -> None:
    rungs = Rungs(study())
    rungs.reach(0, 0.4)
    running = rungs.keys[1]
    rungs.trials[running] = Trial(State.RUNNING, legs_of([1, 2], 9, [1, 3]))
    assert rungs.halving.settle(rungs.waiting(), [running]) == ([], [])
    rungs.trials[running] = Trial(State.RUNNING, legs_of([1, 2], 9, [1, 3]), 1, {1: 0.3})
    going, _ = rungs.halving.settle(rungs.waiting(), [running])
    assert going == [rungs.keys[0]], "it has left that rung behind"


def test_of_cells_that_tie_a_third_goes_on(study: Any) -> None:
    rungs = Rungs(study())
    going = sum(rungs.reach(i, 1.0) for i in range(6)) + len(rungs.promote())
    assert going == 2
    assert rungs.settle()[0] == []


def test_one_published_point_reaches_the_end(compose: Compose, tmp_path: Path, opened: Any) -> None:
    """The best of them at each rung goes on, however far behind it is."""
    body = "axes: {}\nsearch: {sampler: random, trials: 7, only: [optim.lr]}\nprune: {first_rung: 1}"
    made = compose(body, "protocol.rounds=9")
    search, _ = opened(made, tmp_path)
    cells = list(iter(search.request, None))
    rungs = Rungs(made, cells, search.published)
    for number, cell in enumerate(cells):
        rungs.reach(number, 0.2 if cell.id in search.published else 0.5 + 0.01 * number)
    rungs.promote()
    going, pruned = rungs.settle()
    assert [rungs.keys[i] in search.published for i in going] == [True]
    assert len(search.published) > 1
    assert sum(rungs.keys[i] in search.published for i in pruned) == len(search.published) - 1


def test_a_hedged_trial_passes_the_rungs_of_rounds_and_is_ranked_there_and_at_the_rung_of_seeds(study: Any) -> None:
    rungs = Rungs(study(), hedged=[2])
    assert [rungs.reach(i, value) for i, value in ((0, 0.8), (1, 0.7), (2, 0.1))] == [False, False, True]
    assert rungs.promote() == [0], "the best of three, one of which is hedged"
    assert rungs.reach(2, 0.1, 3)
    assert not rungs.reach(2, 0.1, 9), "the other seeds are for the best third"
    assert rungs.reach(0, 0.8, 3) is False
    assert rungs.settle() == ([], [1])
    key = rungs.keys[1]
    rungs.trials[key] = rungs.trials[key].after(Event.SETTLED)
    assert rungs.settle() == ([0], []), "of two, one of which passed unasked, the better one passes"
    rungs.reach(0, 0.8, 9)
    assert rungs.settle() == ([0], [2])


def test_hedged_trials_make_no_room_for_others_at_the_rung_of_seeds(study: Any) -> None:
    """Two rungs before it, a hedged trial counts as a ninth: of 1 and 5 of 9, none goes on at once; of 3, one does."""
    rungs = Rungs(study(), hedged=range(5))
    for i in range(5):
        assert rungs.reach(i, 0.1 * i)
        assert rungs.reach(i, 0.1 * i, 3)
        assert not rungs.reach(i, 0.1 * i, 9)
    rungs.reach(5, 0.9)
    rungs.reach(5, 0.9, 3)
    assert not rungs.reach(5, 0.9, 9)
    assert rungs.promote() == []
    assert rungs.settle()[0] == [5]


def test_a_trial_that_waited_before_the_study_had_a_hedge_goes_on(study: Any) -> None:
    rungs = Rungs(study())
    rungs.reach(0, 0.8)
    rungs.reach(1, 0.1)
    assert rungs.promote() == []
    rungs.halving = Halving(study(), rungs.cells, rungs.trials, hedged=lambda cell: cell.number == 1)
    assert rungs.promote() == [1]


def test_cells_on_other_data_are_no_peers(compose: Compose) -> None:
    body = "axes: {data: {shots: [2, 4]}, optim: {lr: [1, 2, 3]}}\nprune: {rule: halving, first_rung: 1, reduction: 2}"
    rungs = Rungs(compose(body, "protocol.rounds=9"))
    assert [rungs.reach(i, value) for i, value in ((0, 0.8), (1, 0.9))] == [False, True]
    assert [rungs.reach(i, value) for i, value in ((3, 0.1), (4, 0.2))] == [False, True]


def test_a_loss_is_pruned_where_it_is_high(compose: Compose) -> None:
    """Trials are compared by the search's own objective, in its direction."""
    body = "axes: {}\nsearch: {sampler: random, trials: 4, only: [optim.lr], objectives: [val/loss]}"
    made = compose(body, "prune.rule=halving", "prune.first_rung=1", "prune.reduction=2", "protocol.rounds=9")
    cells = expand(compose("axes: {optim: {lr: [1, 2]}}", "protocol.rounds=9"))
    rungs = Rungs(made, cells)
    assert [rungs.reach(0, 2.0), rungs.reach(1, 0.5)] == [False, True]


@pytest.mark.parametrize("rule", ["halving", "median"])
def test_rules_that_compare_one_objective_are_refused_with_two(compose: Compose, tmp_path: Path, rule: str) -> None:
    body = "axes: {}\nsearch: {sampler: random, trials: 4, objectives: [val/acc_mean, comm/total_bytes]}"
    says = f"prune.rule={rule} compares trials by one objective, but search.objectives has val/acc_mean, comm/total_b"
    with pytest.raises(ConfigError, match=says):
        run_study(compose(body, f"prune.rule={rule}", "protocol.rounds=9"), root=tmp_path)
    assert not (tmp_path / "tiny").exists()


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
    ends = []
    for levels in ([0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8], [0.5, 0.6, 0.7, 0.8], [0.6, 0.3, 0.2, 0.1]):
        cell = search.request()
        decisions = ((number, search.should_prune(cell, number, level)) for number, level in enumerate(levels, 1))
        ends.append(next((number for number, stops in decisions if stops), 4))
        kept = [list(history) for history in zip(*rounds(levels[: ends[-1]]), strict=True)]
        for record in (record for history in kept for record in history):
            record |= {"time/seconds": 1.0, "comm/up_bytes": 1, "comm/down_bytes": 1}
        search.note(cell, Trial(State.DONE, counts=(1, 2)), dict(enumerate(kept, 1)))
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


def test_the_cost_of_a_trial_includes_what_hedged_ones_run(compose: Compose) -> None:
    made = compose("axes: {}", "protocol.rounds=9")

    def spec(hedge: int | None) -> PruneSpec:
        return PruneSpec(rule="halving", first_rung=3, hedge=hedge)

    assert leg_shares(spec(4), made) == pytest.approx([1, 1 / 4 + 3 / 4 / 3, 1 / 9])
    assert expected_cost(spec(4), made, 2) == pytest.approx((3 + 6 / 2 + 9 / 9) / 18)
    assert expected_cost(spec(1), made, 2) == pytest.approx((9 + 9 / 9) / 18), "all run their first seed"
    assert expected_cost(spec(None), made, 2) < expected_cost(spec(5), made, 2) < expected_cost(spec(4), made, 2)
    search = compose("axes: {}\nsearch: {sampler: tpe, budget: 12}", "protocol.rounds=9", "seeds=2")
    assert planned_trials(search, search) == math.ceil(12 / expected_cost(spec(3), made, 2))


@pytest.mark.parametrize(
    ("body", "hedge"),
    [
        ("search: {sampler: tpe}", 3),
        ("search: {sampler: tpe}\nprune: {hedge: 5}", 5),
        ("search: {sampler: tpe}\nprune: {hedge: null}", None),
        ("search: {sampler: tpe}\nprune: {rule: null, hedge: 3}", None),
        ("search: {sampler: tpe}\nprune: {rule: median}", None),
        ("prune: {rule: halving}", None),
    ],
)
def test_a_search_with_halving_has_a_hedge_by_default(compose: Compose, body: str, hedge: int | None) -> None:
    assert resolved(compose(f"axes: {{}}\n{body}")).hedge == hedge


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "search: {sampler: tpe}\nprune: {hedge: 4, reduction: 2}",
            "prune.hedge=4 lets trials pass rungs of rounds, but prune.reduction=2 with protocol.eval_every=8 of 8 "
            "rounds leaves none. Lower them, or set prune.hedge=auto.",
        ),
        ("prune: {rule: halving, hedge: 4}", "prune.hedge=4 needs a search, but there is none. Set prune.hedge=auto."),
    ],
)
def test_a_hedge_without_a_rung_or_a_search_is_refused(compose: Compose, body: str, says: str) -> None:
    made = compose(f"axes: {{}}\n{body}", "protocol.rounds=8", "protocol.eval_every=8")
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        check(made, [made])


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
    assert rungs(resolved(made), made) == ()


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
        ({"rule": "halve"}, "There is no pruning rule 'halve'. Did you mean 'halving'"),
        ({"rule": {"name": "median", "n_startup": 1}}, "unexpected keyword argument 'n_startup'"),
        ({"reduction": 1}, "prune.reduction must be >= 2"),
        ({"first_rung": 0}, "prune.first_rung must be >= 1"),
        ({"hedge": 0}, "prune.hedge must be >= 1"),
        ({"hedge": "often"}, "prune.hedge must be a whole number, but is 'often'"),
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
    assert (found["status"], found["rounds"]) == ("partial", 1)
    assert len(store.history(store.cells()[1], 1)) == 1
    assert run_study(made, root=tmp_path).skipped == 3
