"""Bytes of a run, without training: they depend on cohorts and shapes, not on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fpl_tune.config import RunSpec
from fpl_tune.core.metrics import BYTES_PER_SCALAR
from fpl_tune.method import Adapter, State
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.task import ClientTask
from fpl_tune.simulation.worlds import cohort_of, initial_state

_STEADY = 3  # equal rounds after which a stage with all clients in every round is taken as constant


class Sent(NamedTuple):
    """Of all clients and rounds of a seed."""

    up: int
    """Bytes."""
    down: int
    clients: int
    """Clients of all rounds, each counted in every round in which it is sampled."""


def bytes_sent(run: RunSpec, seed: int, task: ClientTask) -> Sent:
    """The exact number of bytes that all clients of a seed send up, and receive, over a whole run.

    If bytes differ between clients, its rounds are simulated with `start` and `merge`, on images and text features that
    are all equal. Counts that are the same for every client follow from shapes, which no round changes.

    Args:
        run: the run.
        seed: the seed.
        task: its `dummy_task`.
    """
    task = SilentTask(**{field.name: getattr(task, field.name) for field in fields(task)})
    up = down = number = updates = 0
    state: State | None = None
    for stage in run.stages if run.learns else run.stages[:1]:
        method = checked(stage.method)
        state = initial_state(method, task, seed, state)
        recent: list[tuple[int, int, int]] = []
        rounds, first = stage.rounds if run.learns else 1, number + 1
        for within in range(rounds):
            number += 1
            cohort = cohort_of(run, task, seed, number, first)
            now = task.during(within + 1, stage.rounds, key=0, attacked=cohort.liars is not None)
            clients = cohort.clients
            sampled = clients if cohort.absent is None else torch.cat([clients, cohort.absent])
            with torch.no_grad():
                sent, received = (method.traffic(now, state, some) for some in (clients, sampled))
            this = _bytes(sent.up, len(clients)), _bytes(received.down, len(sampled)), len(sampled)
            up, down, updates = up + this[0], down + this[1], updates + this[2]
            recent = [*recent[1 - _STEADY :], this]
            if (
                run.protocol.participation == 1
                and not run.clients.drop
                and len(recent) == _STEADY
                and len(set(recent)) == 1
            ):
                left = rounds - within - 1
                up, down, updates = up + left * this[0], down + left * this[1], updates + left * this[2]
                number += left
                break
            if any(isinstance(count, Tensor) for count in (*sent.up.values(), *sent.down.values())) and len(clients):
                with torch.no_grad():
                    state = method.merge(now, state, clients, method.start(now, state, clients))
    return Sent(up, down, updates)


def _bytes(counts: Mapping[str, int | Tensor], clients: int) -> int:
    """Bytes of the scalars of all clients of a round."""
    scalars = (int(n.sum()) if isinstance(n, Tensor) else n * clients for n in counts.values())
    return sum(scalars) * BYTES_PER_SCALAR


class SilentTask(ClientTask):
    """A task that encodes no prompt: all text features are equal."""

    @property
    def hand_text(self) -> Tensor:
        return self.equal(self.n_classes)

    def sentences(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        lead = () if adapter is None else (len(next(iter(adapter.leaf.values()))),)
        return self.equal(*lead, len(templates), self.n_classes)

    def encode_prompts(
        self,
        context: Tensor,
        *,
        per_class: bool = False,
        names: Sequence[str] | None = None,
        adapter: Adapter | None = None,
        **how: Any,
    ) -> Tensor:
        lead = context.shape[: -3 if per_class else -2]
        if adapter is not None and not lead:
            lead = (len(next(iter(adapter.leaf.values()))),)
        return self.equal(*lead, self.n_classes if names is None else len(names))

    def equal(self, *lead: int) -> Tensor:
        """Unit features [*lead, D] that are all equal."""
        return torch.full((*lead, self.embed_dim), self.embed_dim**-0.5, dtype=self.dtype, device=self.device)
