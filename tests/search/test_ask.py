"""Suggestions are a function of the table: whatever process asks, in whatever order rows are, it is told the same."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from fpl_tune.search.ask import ask, study_of, trials_of
from fpl_tune.study.cells import Cell, Suggestion
from fpl_tune.study.results import Status
from fpl_tune.study.standing import Row, Run

from ..conftest import Asked, Compose, there
from .conftest import drawn_results, score

TWO = """
axes: {}
search: {trials: 60, only: [optim.lr, optim.momentum], space: {optim.lr: {low: 1.0e-3, high: 1.0},
  optim.momentum: {low: 0.0, high: 0.9}}}
"""
NARROW = "{optim.lr: {low: 1.0e-3, high: 0.3}, optim.momentum: {low: 0.0, high: 0.9}}"
SAMPLERS = ["random", "tpe", "gp", "qmc", "{name: nsgaii, population_size: 4}", "{name: nsgaiii, population_size: 4}"]


def stored(rows: Sequence[Row]) -> list[Row]:
    """Rows as another process reads them: what was suggested has been through JSON, and their order is lost."""
    found = list[Row]()
    for row in rows:
        suggestion = Suggestion(**json.loads(json.dumps(asdict(there(row.cell.suggestion)))))
        found.append(replace(row, cell=replace(row.cell, suggestion=suggestion)))
    return random.Random(len(found)).sample(found, len(found))


def ended(asked: Asked, cell: Cell, state: str) -> None:
    """What comes of a trial."""
    if state == "done":
        asked.note(cell, drawn_results(score(cell)))
    elif state == "diverged":
        asked.note(cell, {1: []}, "diverged")
    elif state == "partial":
        asked.note(cell, {1: drawn_results(score(cell), rounds=1)[1]}, "partial")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_suggestion_depends_on_the_table_alone(compose: Compose, sampler: str) -> None:
    made, draw = compose(TWO, f"search.sampler={sampler}"), random.Random(1)
    asked = Asked(made)
    for _ in range(9):
        again = Asked(made, rows=stored(asked.rows))
        cell = there(asked.request())
        assert there(again.request()) == cell
        assert again.rows[-1].cell.suggestion == cell.suggestion
        ended(asked, cell, draw.choice(["done", "done", "partial", "running", "diverged"]))
    assert len({cell.cell.id for cell in asked.rows}) == 9


@pytest.mark.parametrize(("sampler", "room"), [("{name: nsgaii, population_size: 4}", "trial"), ("qmc", "study")])
def test_what_a_sampler_notes_is_stored_with_the_suggestion(compose: Compose, sampler: str, room: str) -> None:
    """The generation of a trial, and how many points of the sequence are used: both go on from trial to trial."""
    asked, notes = Asked(compose(TWO, f"search.sampler={sampler}")), list[int]()
    for _ in range(14):
        cell = there(asked.request())
        ended(asked, cell, "done")
        notes += [value for value in there(cell.suggestion).attrs.get(room, {}).values() if isinstance(value, int)]
    assert notes == sorted(notes)
    assert notes[-1] - notes[0] >= 2


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "{name: qmc, scramble: true}"])
def test_the_seed_of_the_search_draws_other_trials(compose: Compose, sampler: str) -> None:
    """From the first one on; equal seeds draw equal ones."""

    def suggested(seed: int) -> list[dict[str, Any]]:
        asked = Asked(compose(TWO, f"search.sampler={sampler}", f"search.seed={seed}"))
        for _ in range(4):
            cell = there(asked.request())
            asked.note(cell, drawn_results(score(cell)))
        return [there(row.cell.suggestion).params for row in asked.rows if not row.cell.published]

    first, again, other = suggested(0), suggested(0), suggested(1)
    assert first == again
    assert len(first) == len(other) > 0
    assert not any(point in first for point in other)


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsgaii", "brute_force"])
def test_points_that_are_known_are_gaps_and_a_sampler_without_new_ones_ends(compose: Compose, sampler: str) -> None:
    body = "axes: {}\nsearch: {trials: 30, only: [method.n_ctx], space: {method.n_ctx: {choices: [1, 2, 4, 8]}}}"
    asked = Asked(compose(body, f"search.sampler={sampler}"))
    while (cell := asked.request()) is not None:
        asked.note(cell, drawn_results(cell.run.method.n_ctx / 10))  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(row.cell.varied["method.n_ctx"] for row in asked.rows) == [1, 2, 4, 8]
    assert len({row.cell.trial_number for row in asked.rows}) == 4


def test_trials_outside_of_the_space_are_kept_and_told_to_no_sampler(compose: Compose) -> None:
    asked = Asked(compose(TWO, "search.sampler=random"))
    for _ in range(8):
        ended(asked, there(asked.request()), "done")
    narrow = Asked(compose(TWO, "search.sampler=gp", f"search.space={NARROW}"), rows=asked.rows)
    part, design = narrow.search.parts[0], narrow.table.design
    told = trials_of(part, narrow.rows)
    inside = {row.cell.trial_number for row in narrow.rows if row.cell.varied["optim.lr"] <= 0.3}
    assert 0 < len(inside) < 8
    assert {number for number, trial in enumerate(told) if trial.params} == inside
    new = there(ask(part, design, narrow.rows))
    assert new.varied["optim.lr"] <= 0.3
    assert new.trial_number == 1 + max(row.cell.trial_number for row in asked.rows), (
        "another sampler goes on with the numbers"
    )


def test_a_widened_space_tries_the_published_point_that_was_outside(compose: Compose) -> None:
    body = "axes: {}\nsearch: {sampler: random, trials: 3, only: [optim.lr], space: {optim.lr: {low: 0.1, high: 1}}}"
    asked = Asked(compose(body))
    asked.all()
    assert not any(row.cell.published for row in asked.rows)
    wide = Asked(compose(body, "search.space={optim.lr: {low: 1.0e-4, high: 1.0}}"), rows=asked.rows)
    points = wide.search.parts[0].points
    assert points
    assert [cell.varied for cell in wide.all() if cell.published] == points


def test_every_third_suggested_trial_is_hedged(compose: Compose) -> None:
    asked = Asked(compose(TWO, "search.sampler=random", "protocol.rounds=9"))
    cells = [there(asked.request()) for _ in range(12)]
    assert not any(cell.hedged and cell.published for cell in cells)
    hedged = [cell.hedged for cell in cells if not cell.published]
    assert hedged == [i % 3 == 2 for i in range(len(hedged))]


def test_samplers_are_told_what_trials_have_reached(compose: Compose) -> None:
    """A trial that diverged has the worst value seen, one that was stopped its last one; what runs has none."""
    made = compose(TWO, "search.sampler=random")
    asked, told = Asked(made), dict[str, Any]()
    states = ["done", "partial", "running", "diverged", "failed"]
    for state in states:
        cell = there(asked.request())
        ended(asked, cell, state)
        if state == "failed":
            asked.table.rows[cell.id] = Row(cell, asked.table.design, {1: Run(Status.FAILED, 0)})
        told[state] = cell.trial_number
    part = asked.search.parts[0]
    trials = trials_of(part, asked.rows)
    found = {state: trials[number] for state, number in told.items()}
    assert {state: trial.state for state, trial in found.items()} == {
        "done": TrialState.COMPLETE,
        "partial": TrialState.PRUNED,
        "running": TrialState.RUNNING,
        "diverged": TrialState.COMPLETE,
        "failed": TrialState.FAIL,
    }
    values = [found[state].values[0] for state in ("done", "partial", "diverged")]
    assert values[2] == min(values[:2])
    assert trials_of(part, asked.rows, partial_as_complete=True)[told["partial"]].state is TrialState.COMPLETE
    assert [*found["partial"].intermediate_values] == [1]
    assert found["done"].intermediate_values == {1: pytest.approx(values[0]), 2: pytest.approx(values[0])}
    people = trials_of(part, asked.rows, diverged_as_worst=False)
    assert people[told["diverged"]].state is TrialState.FAIL


def test_with_several_objectives_samplers_see_what_is_under_way_as_complete_with_the_totals_of_all_rounds(
    compose: Compose,
) -> None:
    objectives = "search.objectives=[val/acc_mean,comm/total_bytes]"
    asked = Asked(compose(TWO, "search.sampler=random", "protocol.rounds=6", objectives))
    for rounds, state in ((6, "done"), (3, "partial")):
        asked.note(there(asked.request()), drawn_results(0.8, rounds=rounds), state)
    (part,) = asked.search.parts
    study = study_of(part, asked.rows, InMemoryStorage(), RandomSampler())
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 2
    assert [trial.values for trial in study.trials] == [pytest.approx([0.8, 120.0])] * 2
    people = trials_of(part, asked.rows, diverged_as_worst=False)
    assert [(trial.state, trial.values[1]) for trial in people] == [(TrialState.COMPLETE, 120), (TrialState.PRUNED, 60)]


def test_samplers_receive_the_mean_over_seeds_after_each_round(compose: Compose) -> None:
    asked = Asked(compose(TWO, "search.sampler=random"))
    for rounds in (5, 3):  # whole, and stopped on the way
        cell = there(asked.request())
        asked.note(cell, drawn_results(0.8, rounds=rounds, rises=True), "done" if rounds == 5 else "partial")
    trials = trials_of(asked.search.parts[0], asked.rows)
    for trial, rounds in zip(trials, (5, 3), strict=True):
        assert trial.intermediate_values == pytest.approx({r: 0.8 * r / rounds for r in range(1, rounds + 1)})


def test_a_trial_says_how_sure_its_mean_is_where_it_has_several_seeds(compose: Compose) -> None:
    asked = Asked(compose(TWO, "search.sampler=random"))
    for seeds in ((1,), (1, 2)):
        histories = drawn_results(0.8)  # 0.79 and 0.81, whose mean has a standard error of 0.01
        asked.note(there(asked.request()), {seed: histories[seed] for seed in seeds})
    one, two = trials_of(asked.search.parts[0], asked.rows)
    assert one.user_attrs["sem"] == {"val/acc_mean": None}
    assert two.user_attrs["sem"] == pytest.approx({"val/acc_mean": 0.01})


def test_searches_of_one_study_draw_numbers_of_their_own(compose: Compose) -> None:
    asked = Asked(compose(TWO.replace("axes: {}", "axes: {protocol: {epochs: [1, 2]}}"), "search.sampler=random"))
    rates: dict[float, set[float]] = {1: set(), 2: set()}
    for _ in range(16):
        cell = there(asked.request())
        ended(asked, cell, "done")
        if not cell.published:
            rates[cell.run.protocol.epochs].add(cell.run.optim.lr)
    assert min(map(len, rates.values())) > 2
    assert rates[1].isdisjoint(rates[2])


def test_optuna_says_nothing_and_unchanged_trials_are_built_once(
    compose: Compose, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(compose(TWO, "search.sampler=random"))
    optuna.logging.set_verbosity(optuna.logging.INFO)
    for _ in range(2):
        ended(asked, there(asked.request()), "done")
    assert "A new study" not in capfd.readouterr().err
    (part,) = asked.search.parts
    before, again = trials_of(part, asked.rows), trials_of(part, asked.rows)
    assert [*map(id, before)] == [*map(id, again)]
