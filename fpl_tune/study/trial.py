"""A trial, a cell's way through a study, as one value and the events that change it. Nothing here reads or writes.

A trial is run in legs. A leg is what a worker is handed: seeds, and the round that they run to. A cell of a grid has
one leg, all seeds to the last round; under halving it has a leg for each rung. A trial of a halved search runs its
first seed to each rung and to the end, then its other seeds. Seeds that were trained together and failed get legs of
their own.

========  ==================================================================================================
state     event -> next state
========  ==================================================================================================
queued    handed out -> running; reopened -> queued
running   passed -> queued (the next leg); held -> waiting; completed -> done; stopped -> pruned;
          diverged -> diverged; failed -> failed; interrupted -> queued (the same leg, from its checkpoint)
waiting   promoted -> queued (the next leg); settled -> pruned; reopened -> queued
done      reopened -> queued (more seeds, other data or another method, `--retry`, another rule)
pruned    reopened -> queued
diverged  reopened -> queued
failed    reopened -> queued
========  ==================================================================================================

A pair that is not in the table raises `ValueError`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fpl_tune.study.status import FAILURES, Status


class State(StrEnum):
    """Where a trial stands. A member equals its string."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    """At a rung, with a checkpoint: halving decides whether it goes on."""
    DONE = "done"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    FAILED = "failed"


OVER = frozenset({State.DONE, State.PRUNED, State.DIVERGED, State.FAILED})


class Event(StrEnum):
    """What changes the state of a trial."""

    HANDED_OUT = "handed out"
    PASSED = "passed"
    """A leg has ended, and the next one may begin."""
    HELD = "held"
    """A leg has ended at a rung that has no room for the trial."""
    COMPLETED = "completed"
    """The last leg has ended."""
    PROMOTED = "promoted"
    SETTLED = "settled"
    """No other trial can reach the rung any more, and this one is not among its best."""
    STOPPED = "stopped"
    """By a pruner of Optuna."""
    INTERRUPTED = "interrupted"
    """The leg ended early, and is to be tried again: after a crash, an error, or the end of the process."""
    DIVERGED = "diverged"
    FAILED = "failed"
    REOPENED = "reopened"


TABLE: dict[tuple[State, Event], State] = {
    (State.QUEUED, Event.HANDED_OUT): State.RUNNING,
    (State.QUEUED, Event.REOPENED): State.QUEUED,
    (State.RUNNING, Event.PASSED): State.QUEUED,
    (State.RUNNING, Event.HELD): State.WAITING,
    (State.RUNNING, Event.COMPLETED): State.DONE,
    (State.RUNNING, Event.STOPPED): State.PRUNED,
    (State.RUNNING, Event.DIVERGED): State.DIVERGED,
    (State.RUNNING, Event.FAILED): State.FAILED,
    (State.RUNNING, Event.INTERRUPTED): State.QUEUED,
    (State.WAITING, Event.PROMOTED): State.QUEUED,
    (State.WAITING, Event.SETTLED): State.PRUNED,
    (State.WAITING, Event.REOPENED): State.QUEUED,
    **{(state, Event.REOPENED): State.QUEUED for state in OVER},
}

_ENDS_LEG = {Event.PASSED, Event.PROMOTED}
_FAILED = (State.FAILED, State.DIVERGED)


@dataclass(frozen=True)
class Leg:
    """Seeds, and the round that they run to."""

    seeds: tuple[int, ...]
    rounds: int
    decides: bool = False
    """Whether halving compares trials at its end."""


@dataclass(frozen=True)
class Trial:
    """The whole state of a trial.

    Raises:
        ValueError: the parts contradict each other.
    """

    state: State = State.QUEUED
    legs: tuple[Leg, ...] = ()
    """The way: those behind, the present one, those ahead."""
    leg: int = 0
    """The present leg: to be handed out, under way, or the one that ended where the trial waits or was stopped."""
    values: dict[int, float] = field(default_factory=dict)
    """The objective at the rungs that it has reached, by round."""
    counts: tuple[int, ...] = ()
    """Seeds whose results enter means and comparisons: of a trial that is over, or was before it was reopened."""
    rule: str = ""
    """The pruning that the legs follow."""

    def __post_init__(self) -> None:
        if self.state not in OVER and self.leg >= len(self.legs):
            raise ValueError(f"a trial that is {self.state} has a leg {self.leg}, but there are {len(self.legs)}")
        if self.state is State.WAITING and not (self.present.decides and self.present.rounds in self.values):
            raise ValueError("a trial waits at the end of a leg that halving decides on, and has a value there")
        if self.state is State.PRUNED and self.counts:
            raise ValueError("results of a pruned trial do not count")

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to run, unless it is reopened."""
        return self.state in OVER

    @property
    def present(self) -> Leg:
        """The present leg."""
        return self.legs[self.leg]

    @property
    def left(self) -> tuple[Leg, ...]:
        """Legs that are still to run."""
        return () if self.over else self.legs[self.leg + (self.state is State.WAITING) :]

    @property
    def seeds_left(self) -> tuple[int, ...]:
        """Seeds of the legs that are still to run."""
        return tuple(dict.fromkeys(seed for leg in self.left for seed in leg.seeds))

    def after(self, event: Event, **changes: Any) -> Trial:
        """The trial after an event.

        Args:
            event: what happened.
            changes: other parts that it changes.

        Raises:
            ValueError: the event cannot happen in this state.
        """
        if (self.state, event) not in TABLE:
            raise ValueError(f"A trial that is {self.state} cannot be {event}.")
        leg = self.leg + (event in _ENDS_LEG)
        return replace(self, **{"state": TABLE[self.state, event], "leg": leg, **changes})

    def passed(self, rung: int) -> bool:
        """Whether it went on from a rung that it has reached."""
        held = self.state in (State.WAITING, State.PRUNED) and self.leg < len(self.legs) and self.present.decides
        return rung in self.values and not (held and self.present.rounds == rung)

    def apart(self) -> Trial:
        """The trial with legs of one seed in place of those of all seeds of the present leg."""
        together, legs = self.present.seeds, list[Leg]()
        for leg in self.legs[self.leg :]:
            alone = [replace(leg, seeds=(seed,), decides=False) for seed in leg.seeds]
            alone[-1] = replace(alone[-1], decides=leg.decides)
            legs += alone if leg.seeds == together else [leg]
        return replace(self, legs=(*self.legs[: self.leg], *legs))

    def status_of(self, seed: int, status: str) -> str:
        """What tables call a seed's result: done exactly if it counts, else what became of it or of its trial."""
        if seed in self.counts:
            return Status.DONE.value
        return str(status) if status in FAILURES else self.state.value


def legs_of(
    seeds: Sequence[int], rounds: int, rungs: Sequence[int] = (), *, first_alone: bool = False
) -> tuple[Leg, ...]:
    """The legs of a new trial.

    Args:
        seeds: all of them.
        rounds: the last round.
        rungs: rounds after which halving decides; without any, all seeds run to the end together.
        first_alone: whether the first seed runs through all rungs, the last round among them, before the others begin.
    """
    first, rest = tuple(seeds), ()
    if rungs and first_alone:
        first, rest = tuple(seeds[:1]), tuple(seeds[1:])
    way = [*(Leg(first, rung, True) for rung in rungs), Leg(first, rounds, bool(rest))]
    return (*way, Leg(rest, rounds)) if rest else tuple(way)


def ended(statuses: Collection[str]) -> Event:
    """The event that ends a trial whose seeds ended so: the worst of them decides."""
    for status, event in ((Status.FAILED, Event.FAILED), (Status.DIVERGED, Event.DIVERGED)):
        if status in statuses:
            return event
    return Event.COMPLETED


def of_results(statuses: Mapping[int, str], wanted: Sequence[int], rounds: int) -> Trial:
    """The trial of a cell that has results, but no file of its own: of an earlier release, or one that is damaged.

    Args:
        statuses: by seed.
        wanted: the study's seeds.
        rounds: of the cell.
    """
    whole = tuple(seed for seed, status in statuses.items() if status == Status.DONE)
    if Status.PARTIAL in statuses.values():
        return Trial(State.PRUNED)
    if missing := tuple(seed for seed in wanted if seed not in statuses):
        return Trial(legs=(Leg(missing, rounds),), counts=whole)
    return Trial(TABLE[State.RUNNING, ended(statuses.values())], counts=whole)
