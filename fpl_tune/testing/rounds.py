"""Runs a few rounds of a method on toy tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Local, Method, State, generator
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing.toys import TowerKind, toy_task

COHORTS = ((0, 2), (1, 2), (2, 0, 1))
"""Clients by round: one trains three times, two train twice, and the last one never."""
SIZES = ((6, 5, 7, 3), (3, 7, 5, 6))
"""Training images by seed and client."""
SPEC = OptimSpec(lr=0.05, batch=4)
EPOCHS = 2


@dataclass
class Toy:
    """A method, and the tasks of two seeds on which it is checked."""

    method: Method
    tasks: tuple[ClientTask, ClientTask]
    kind: TowerKind = "vit"

    @cached_property
    def history(self) -> list[State]:
        """States of the first seed, the initial one and those after each round of `COHORTS`. Do not write to them."""
        return [states[0] for states in play(self.method, self.tasks[:1])]


def toy(method: Method, *, kind: TowerKind = "vit") -> Toy:
    """Builds the argument of all checks: a method and tasks."""
    one, two = (toy_task(method.needs, kind=kind, seed=seed, sizes=sizes) for seed, sizes in enumerate(SIZES))
    return Toy(method, (one, two), kind)


def play(
    method: Method,
    tasks: Sequence[ClientTask],
    *,
    cohorts: Sequence[Sequence[int]] = COHORTS,
    seeds: Sequence[int] = (0, 1),
    block: int | None = None,
    states: Sequence[State] | None = None,
    first: int = 1,
    spec: OptimSpec = SPEC,
    epochs: int = EPOCHS,
    graphs: Graphs | None = None,
    rounds: int | None = None,
    reuse: bool = False,
) -> list[list[State]]:
    """Runs rounds of two local epochs in batches of four.

    `rounds` is the length of the stage; None: it ends with the last cohort. With `reuse`, states of one round may be
    overwritten by the next.

    Returns:
        The states by round (the initial ones first) and seed.
    """
    if states is None:
        states = [method.init(t, generator("init", s)) for t, s in zip(tasks, seeds, strict=False)]
    history = [list(states)]
    for round_, clients in enumerate(cohorts, start=first):
        drawn = [Cohort(s, round_, torch.tensor(clients).to(t.device)) for s, t in zip(seeds, tasks, strict=False)]
        stage = range(1, 1 + (rounds or first + len(cohorts) - 1))
        more = {"block": block, "stage": stage, "graphs": graphs, "reuse": reuse}
        after, _ = run_round(method, tasks, history[-1], drawn, epochs=epochs, spec=spec, **more)
        history.append(after)
    return history


def assert_same(actual: State | Local, expected: State | Local, *, tolerance: float = 0.0) -> None:
    """Asserts equal names and shapes, and equal numbers; floating-point numbers within `tolerance`."""
    for kind in expected._fields:
        assert getattr(actual, kind).keys() == getattr(expected, kind).keys(), kind
        for name, leaf in getattr(expected, kind).items():
            bound = tolerance if leaf.is_floating_point() else 0.0
            torch.testing.assert_close(
                getattr(actual, kind)[name], leaf, rtol=bound, atol=bound, msg=lambda m, n=name: f"{n}: {m}"
            )
