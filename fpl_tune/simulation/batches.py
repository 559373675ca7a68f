"""Cohorts and batches: the clients of a round, and their images step by step.

Everything is drawn from (seed, client, round) alone and planned on the CPU before the first step, so that the steps
themselves read tables on the device and never wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, generator
from fpl_tune.simulation import optim
from fpl_tune.simulation.task import ClientData, ClientTask, Picked, side_by_side


class Cohort(NamedTuple):
    """The clients that train in a round, for one seed."""

    seed: int
    round: int
    """Counted from 1 over all stages."""
    clients: Tensor
    """[C] client ids, on the CPU."""
    before: Tensor | None = None
    """[C] clients that the released loops visit before each one, from the first round on; None: those ahead of it in
    `clients`."""
    orders: Mapping[int, Sequence[Tensor]] | None = None
    """Positions of each client's images, pass by pass; None: drawn."""
    work: Mapping[int, float] | None = None
    """Share of the local epochs that slow clients do, by client; None: all do all."""
    liars: Tensor | None = None
    """[C] bool, on the CPU: clients that attack in this round; None: nobody."""
    absent: Tensor | None = None
    """[A] ids, on the CPU, of clients that were sampled and whose updates do not arrive; None: nobody."""


def draw_cohort(
    n_clients: int,
    participation: float,
    seed: int,
    round_: int,
    *,
    everyone: bool = False,
    domain: Tensor | None = None,
) -> Tensor:
    """Draws clients uniformly without replacement.

    Args:
        n_clients: N.
        participation: share of the clients, in (0, 1].
        seed: of the replicate.
        round_: counted from 1.
        everyone: all clients, whatever the share.
        domain: [N] ids; the share is then drawn among the clients of each domain, at least one of each (FedAPT,
            Table 2).

    Returns:
        [C] client ids in the order drawn; C = max(1, floor(participation · N)).
    """
    if everyone:
        return torch.arange(n_clients)
    if domain is not None:
        domain = domain.cpu()
        groups = [(domain == d).nonzero()[:, 0] for d in domain.unique()]
        return torch.cat([_draw(held, participation, ("cohort", seed, round_, i)) for i, held in enumerate(groups)])
    return _draw(torch.arange(n_clients), participation, ("cohort", seed, round_))


def cohort_size(n_clients: int, participation: float) -> int:
    """Number of clients that train in a round."""
    return max(1, int(participation * n_clients + 1e-9))  # 0.29 · 100 is a little less than 29


def _draw(clients: Tensor, share: float, key: tuple[object, ...]) -> Tensor:
    size = cohort_size(len(clients), share)
    if size == len(clients):
        return clients
    return clients[torch.randperm(len(clients), generator=generator(*key))[:size]]


class Plan(NamedTuple):
    """The batches of all seeds' cohorts, a row per client: C clients, T steps, at most B images a step.

    `steps`, `widths` and `ends` are on the CPU, the rest is where the images are trained on.
    """

    data: ClientData
    """The tables that `picked` points into."""
    picked: Picked
    """[C, T, B] the spare row after a client's last image."""
    steps: Tensor
    """[C] steps of each client."""
    widths: list[int]
    """[T] images in the largest batch of a step."""
    factor: Tensor | None
    """[C, T] multiplier of the learning rate; None where all are 1."""
    last: Tensor
    """[C, T] bool: the step belongs to the client's last epoch."""
    ends: list[bool]
    """[T] whether the step belongs to any client's last epoch."""

    def at(self, rows: slice | Tensor) -> Plan:
        """The plan of some clients: a slice, or indices on the device, of which `steps` keeps all."""
        picked = self.picked.at(rows)
        factor = None if self.factor is None else self.factor[rows]
        steps = self.steps[rows] if isinstance(rows, slice) else self.steps
        return self._replace(picked=picked, factor=factor, last=self.last[rows], steps=steps)

    def batch(self, t: int) -> Batch:
        """Step number `t`, as wide as its largest batch."""
        return self.data.take(self.picked.at((slice(None), t, slice(self.widths[t]))))


def plan_round(
    tasks: Sequence[ClientTask], cohorts: Sequence[Cohort], clients: Sequence[Tensor], epochs: float, spec: OptimSpec
) -> Plan:
    """The plan of a round: every image once an epoch, in an order of the client's own.

    Args:
        tasks, cohorts: by seed.
        clients: the cohorts' clients [C], on the tasks' device.
        epochs: local epochs; may be broken.
        spec: batch size and schedule.
    """
    members = [(t, c, i, id_) for t, c in zip(tasks, cohorts, strict=True) for i, id_ in enumerate(c.clients.tolist())]
    orders_of = [passes(task.train.sizes[id_], epochs, cohort, id_) for task, cohort, _, id_ in members]
    steps = torch.tensor([sum(-(-len(order) // spec.batch) for order in orders) for orders in orders_of])
    shape = (len(steps), int(steps.max()))
    index, draw = torch.zeros(2, *shape, spec.batch, dtype=torch.int64)
    factor, last = torch.ones(shape), torch.zeros(shape, dtype=torch.bool)
    widths = [0] * shape[1]
    looks = bool(tasks[0].train.views or tasks[0].train.second)
    for row, ((task, cohort, position, client), orders) in enumerate(zip(members, orders_of, strict=True)):
        index[row] = task.train.spare
        first = 0
        for number, order in enumerate(orders):
            sizes = [min(spec.batch, len(order) - seen) for seen in range(0, len(order), spec.batch)]
            span = slice(first, first + len(sizes))
            index[row, span].view(-1)[: len(order)] = order
            before = position if cohort.before is None else int(cohort.before[position])
            factor[row, span] = optim.rate_factor(spec.schedule, number, len(orders), before, task.round, task.rounds)
            last[row, span] = number == len(orders) - 1
            widths[span] = map(max, widths[span], sizes)
            first = span.stop
        if looks:
            rng = generator("view", cohort.seed, client, cohort.round)
            draw[row, :first] = torch.randint(1 << 30, (first, spec.batch), generator=rng)
    device = tasks[0].device
    data, offsets = side_by_side([task.train for task in tasks])
    index, draws = index.to(device), draw.to(device) if looks else None
    picked, first = [], 0
    for task, clients_, offset in zip(tasks, clients, offsets, strict=True):
        span = slice(first, first + len(clients_))
        part = task.train.pick(clients_, index[span], None if draws is None else draws[span])
        picked.append(part._replace(rows=part.rows + offset))
        first = span.stop
    varies = bool((factor != 1).any())
    return Plan(
        data,
        Picked.join(picked),
        steps,
        widths,
        factor.to(device) if varies else None,
        last.to(device),
        last.any(0).tolist(),
    )


def passes(size: int, epochs: float, cohort: Cohort, client: int) -> list[Tensor]:
    """Positions of a client's images, pass by pass, every pass in an order of its own; none of a client without images.

    What the cohort gives replaces the draw. A broken number of epochs continues where the round before ended: half an
    epoch a round sees every image in two.
    """
    if cohort.orders is not None:
        return list(cohort.orders[client])
    epochs *= (cohort.work or {}).get(client, 1)
    rng = generator("order", cohort.seed, client, cohort.round)
    found = []
    for epoch, span in spans(size, epochs, cohort.round).items():
        if not float(epochs).is_integer():
            rng = generator("order", cohort.seed, client, "epoch", epoch)
        found.append(torch.randperm(size, generator=rng)[span.start : span.stop])
    return found


def spans(size: int, epochs: float, round_: int) -> dict[int, range]:
    """The part of each epoch that a client trains on in a round, counted from 1; see `passes`."""
    if not size or float(epochs).is_integer():
        return {epoch: range(size) for epoch in range(int(epochs) if size else 0)}
    first = round((round_ - 1) * epochs * size)
    end = max(first + 1, round(round_ * epochs * size))
    return {
        epoch: range(max(0, first - epoch * size), min(size, end - epoch * size))
        for epoch in range(first // size, -(-end // size))
    }
