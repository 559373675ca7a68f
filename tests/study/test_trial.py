"""The states of a trial: every pair of state and event, its legs, and a machine that drives it."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fpl_tune.study import trial as module
from fpl_tune.study.status import Status
from fpl_tune.study.trial import OVER, TABLE, Event, Leg, State, Trial, ended, legs_of, of_results

HALVED = legs_of([1, 2], 9, [1, 3], first_alone=True)


def at(state: State) -> Trial:
    """A trial in a state, at its first leg."""
    values = {1: 0.5} if state is State.WAITING else {}
    return Trial(state, HALVED, 0, values)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_pair_leads_to_the_state_of_the_table_or_is_refused(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        after = at(state).after(event, values={1: 0.5})
        assert after.state is TABLE[state, event]
        assert after.leg == (1 if event in (Event.PASSED, Event.PROMOTED) else 0)
    else:
        with pytest.raises(ValueError, match=f"A trial that is {state} cannot be {event}"):
            at(state).after(event)


def test_the_table_in_the_documentation_names_every_pair() -> None:
    text = module.__doc__ or ""
    for state, event in TABLE:
        (row,) = [part for part in text.split("\n" + str(state) + " ")[1:]]
        row = row.split("\n=")[0]
        row = next((row[: row.index(f"\n{other} ")] for other in State if f"\n{other} " in row), row)
        assert f"{event} -> {TABLE[state, event]}" in row


def test_what_is_over_is_left_by_reopening_alone() -> None:
    assert {event for state, event in TABLE if state in OVER} == {Event.REOPENED}
    assert {state for state, event in TABLE if event is Event.REOPENED} == {*State} - {State.RUNNING}


def test_legs_of_a_grid_of_halving_and_of_a_halved_search() -> None:
    both = (1, 2)
    assert legs_of([1, 2], 9) == (Leg(both, 9),)
    assert legs_of([1, 2], 9, [1, 3]) == (Leg(both, 1, True), Leg(both, 3, True), Leg(both, 9))
    first, rest = (1,), (2,)
    assert (Leg(first, 1, True), Leg(first, 3, True), Leg(first, 9, True), Leg(rest, 9)) == HALVED
    assert legs_of([1], 9, [3], first_alone=True) == (Leg(first, 3, True), Leg(first, 9)), "no seed waits for it"
    assert legs_of([1, 2], 9, first_alone=True) == (Leg(both, 9),), "without rungs nothing is decided"


def test_seeds_apart_decide_when_the_last_of_them_has_reached_the_rung() -> None:
    together = Trial(State.RUNNING, legs_of([1, 2], 9, [3]))
    assert together.apart().legs == (Leg((1,), 3), Leg((2,), 3, True), Leg((1,), 9), Leg((2,), 9))
    behind = Trial(State.RUNNING, legs_of([1, 2], 9, [3]), 1)
    assert behind.apart().legs == (Leg((1, 2), 3, True), Leg((1,), 9), Leg((2,), 9)), "what is behind stays"


def test_a_trial_stopped_among_its_other_seeds_has_passed_its_last_rung() -> None:
    values = {leg.rounds: 0.5 for leg in HALVED if leg.decides}
    stopped = Trial(State.PRUNED, HALVED, len(HALVED) - 1, values)
    assert all(map(stopped.passed, values))


@pytest.mark.parametrize(
    "parts",
    [
        {"state": State.QUEUED},
        {"state": State.RUNNING, "legs": HALVED, "leg": 4},
        {"state": State.WAITING, "legs": HALVED},
        {"state": State.WAITING, "legs": legs_of([1], 9), "values": {9: 0.5}},
        {"state": State.PRUNED, "legs": HALVED, "counts": (1,)},
    ],
)
def test_parts_that_contradict_each_other_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trial"):
        Trial(**parts)


def test_the_worst_seed_says_how_a_trial_ends() -> None:
    done, diverged, failed = Status.DONE, Status.DIVERGED, Status.FAILED
    assert ended([done, done]) is Event.COMPLETED
    assert ended([done, diverged]) is Event.DIVERGED
    assert ended([failed, diverged, done]) is Event.FAILED


def test_a_cell_without_a_file_of_its_trial_is_what_its_results_say() -> None:
    done, partial, failed = Status.DONE, Status.PARTIAL, Status.FAILED
    assert of_results({}, [1, 2], 9) == Trial(legs=(Leg((1, 2), 9),))
    assert of_results({1: done}, [1, 2], 9) == Trial(legs=(Leg((2,), 9),), counts=(1,))
    assert of_results({1: done, 2: done, 7: done}, [1, 2], 9) == Trial(State.DONE, counts=(1, 2, 7))
    assert of_results({1: done, 2: failed}, [1, 2], 9) == Trial(State.FAILED, counts=(1,))
    assert of_results({1: partial}, [1, 2], 9).state is State.PRUNED


def test_a_row_is_done_exactly_if_its_seed_counts() -> None:
    waiting = Trial(State.WAITING, HALVED, 2, {9: 0.5})
    assert waiting.status_of(1, Status.DONE) == "waiting", "its first seed ran whole, and others may not"
    assert Trial(State.DONE, HALVED, 3, counts=(1, 2)).status_of(2, Status.DONE) == "done"
    assert Trial(State.PRUNED, HALVED, 0).status_of(1, Status.PARTIAL) == "pruned"
    more = Trial(legs=(Leg((3,), 9),), counts=(1, 2))
    assert (more.status_of(1, Status.DONE), more.status_of(3, Status.PARTIAL)) == ("done", "queued")
    assert Trial(State.FAILED, counts=(1,)).status_of(2, Status.FAILED) == "failed"


class Machine(RuleBasedStateMachine):
    """Drives a halved trial by drawn events, beside a model: the rounds that each seed has run."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = Trial(legs=HALVED)
        self.ran = {1: 0, 2: 0}
        self.rungs: list[int] = []

    def is_(self, *states: State) -> bool:
        return self.trial.state in states

    @precondition(lambda self: self.is_(State.QUEUED))
    @rule()
    def hand_out(self) -> None:
        assert all(self.ran[seed] < self.trial.present.rounds for seed in self.trial.present.seeds)
        self.trial = self.trial.after(Event.HANDED_OUT)

    @precondition(lambda self: self.is_(State.RUNNING))
    @rule(passes=st.booleans())
    def end_leg(self, passes: bool) -> None:
        leg = self.trial.present
        self.ran.update(dict.fromkeys(leg.seeds, leg.rounds))
        if self.trial.leg + 1 == len(self.trial.legs):
            self.trial = self.trial.after(Event.COMPLETED, counts=(1, 2))
            return
        values = {**self.trial.values, leg.rounds: 0.5} if leg.decides else self.trial.values
        self.rungs += [leg.rounds] if leg.decides else []
        held = leg.decides and not passes
        self.trial = self.trial.after(Event.HELD if held else Event.PASSED, values=values)

    @precondition(lambda self: self.is_(State.RUNNING))
    @rule(event=st.sampled_from([Event.INTERRUPTED, Event.STOPPED, Event.DIVERGED, Event.FAILED]))
    def go_wrong(self, event: Event) -> None:
        leg = self.trial.leg
        self.trial = self.trial.after(event)
        assert self.trial.leg == leg, "the same leg is tried again"

    @precondition(lambda self: self.is_(State.WAITING))
    @rule(event=st.sampled_from([Event.PROMOTED, Event.SETTLED]))
    def decide(self, event: Event) -> None:
        rung = self.trial.present.rounds
        self.trial = self.trial.after(event)
        assert self.trial.passed(rung) == (event is Event.PROMOTED)

    @precondition(lambda self: not self.is_(State.RUNNING))
    @rule()
    def reopen(self) -> None:
        self.trial = self.trial.after(Event.REOPENED, legs=HALVED, leg=0, values={}, counts=())
        self.ran, self.rungs = {1: 0, 2: 0}, []

    @invariant()
    def all_rungs_behind_have_values(self) -> None:
        assert sorted(self.trial.values) == self.rungs
        assert [leg.rounds for leg in HALVED[: self.trial.leg] if leg.decides] == [
            rung for rung in self.rungs if self.trial.passed(rung)
        ]

    @invariant()
    def only_whole_seeds_count(self) -> None:
        assert all(self.ran[seed] == 9 for seed in self.trial.counts)
        assert bool(self.trial.counts) == self.is_(State.DONE)
        assert bool(self.trial.left) != self.trial.over


TestMachine = Machine.TestCase
