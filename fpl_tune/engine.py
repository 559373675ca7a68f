"""The round: start, steps, merge. The only loop over steps.

The cohorts of all seeds are concatenated along the client axis and trained as one batch, in blocks of clients if
memory asks for it. A client's data order depends on (seed, client, round) alone, so neither the other clients of the
cohort, nor the other seeds, nor the block size changes what it learns. A block of one client is the plain loop that
the batched path is tested against.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune import optim
from fpl_tune.method import Local, Method, State, Task, Tree, join
from fpl_tune.optim import OptimSpec, OptimState
from fpl_tune.task import ClientTask


class Cohort(NamedTuple):
    """Who trains in a round, for one seed."""

    seed: int
    round: int
    """Counted from 1 over all stages."""
    who: Tensor
    """[C] client ids"""


class RoundReport(NamedTuple):
    """What a round tells about its training."""

    loss: list[Tensor] | None
    """Per seed: [C] mean training loss over the last local epoch, nan for clients without images; None where the
    method learns nothing."""
    up: list[int]
    """Per seed: scalars sent by the cohort."""
    down: list[int]
    learned: int = 0
    """Scalars that one client learned."""


def derive(*key: object) -> int:
    """A seed for a generator from a key, stable across processes and versions: 63 bits of a digest."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def generator(*key: object) -> torch.Generator:
    """A CPU generator seeded by `derive(*key)`."""
    return torch.Generator().manual_seed(derive(*key))


def draw_cohort(
    n_clients: int,
    participation: float,
    seed: int,
    round_: int,
    *,
    everyone: bool = False,
    domain: Tensor | None = None,
) -> Tensor:
    """[C] ascending client ids, drawn uniformly without replacement; C = max(1, floor(participation · N)).

    domain: [N] ids; the share is then drawn among the clients of each domain, one of each at least (FedAPT, Table 2).
    """
    if everyone:
        return torch.arange(n_clients)
    if domain is not None:
        groups = [(domain == d).nonzero()[:, 0].cpu() for d in domain.unique()]
        drawn = [_draw(held, participation, ("cohort", seed, round_, i)) for i, held in enumerate(groups)]
        return torch.cat(drawn).sort().values
    return _draw(torch.arange(n_clients), participation, ("cohort", seed, round_))


def _draw(clients: Tensor, share: float, key: tuple[object, ...]) -> Tensor:
    size = max(1, int(share * len(clients)))
    if size == len(clients):
        return clients
    return clients[torch.randperm(len(clients), generator=generator(*key))[:size]].sort().values


class _Plan(NamedTuple):
    """The batches of all seeds' cohorts, a row per client: its places and steps are on the CPU, the rest is not."""

    seed: Tensor
    """[C] places among the seeds, ascending."""
    who: Tensor
    """[C] client ids"""
    steps: Tensor
    """[C] how many batches each has."""
    widths: list[int]
    """[T] images in the largest batch of a step."""
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride] - a tuple has an `index` too
    """[C, T, B] positions in each client's table, the spare row where there is nothing left."""
    factor: Tensor
    """[C, T] multiplier of the learning rate."""
    last: Tensor
    """[C, T] bool: the step belongs to the last epoch."""
    draw: Tensor
    """[C, T, B] random numbers that choose among the views of each image."""


def _plan(tasks: Sequence[ClientTask], cohorts: Sequence[Cohort], epochs: float, spec: OptimSpec) -> _Plan:
    """Every image once an epoch, in an order of the client's own."""
    clients = [(t, c, i, id_) for t, c in zip(tasks, cohorts, strict=True) for i, id_ in enumerate(c.who.tolist())]
    passes = [_passes(int(task.train.size[id_]), epochs, cohort, id_) for task, cohort, _, id_ in clients]
    steps = torch.tensor([sum(-(-len(order) // spec.batch) for order in orders) for orders in passes])
    shape = (len(steps), int(steps.max()))
    index, draw = torch.zeros(2, *shape, spec.batch, dtype=torch.int64)
    factor, last = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    widths = [0] * shape[1]
    for row, ((task, cohort, place, client), orders) in enumerate(zip(clients, passes, strict=True)):
        index[row] = task.train.spare
        first = 0
        for number, order in enumerate(orders):
            sizes = [min(spec.batch, len(order) - seen) for seen in range(0, len(order), spec.batch)]
            span = slice(first, first + len(sizes))
            index[row, span].view(-1)[: len(order)] = order
            factor[row, span] = optim.rate_factor(spec.schedule, number, len(orders), place)
            last[row, span] = number == len(orders) - 1
            widths[span] = map(max, widths[span], sizes)
            first = span.stop
        if task.train.views or task.train.second:
            looks = generator("view", cohort.seed, client, cohort.round)
            draw[row, :first] = torch.randint(1 << 30, (first, spec.batch), generator=looks)
    seed = torch.cat([torch.full((len(cohort.who),), s) for s, cohort in enumerate(cohorts)])
    who = torch.cat([cohort.who for cohort in cohorts])
    return _Plan(seed, who, steps, widths, *(part.to(tasks[0].device) for part in (index, factor, last, draw)))


def _passes(size: int, epochs: float, cohort: Cohort, client: int) -> list[Tensor]:
    """Positions of a client's images, pass by pass, every pass in an order of its own; none of a client without images.

    A broken number of epochs goes on where the round before ended: half an epoch a round sees every image in two.
    """
    if float(epochs).is_integer():
        rng = generator("order", cohort.seed, client, cohort.round)
        return [torch.randperm(size, generator=rng) for _ in range(int(epochs) if size else 0)]
    first = round((cohort.round - 1) * epochs * size)
    end = max(first + 1, round(cohort.round * epochs * size))
    found = []
    for epoch in range(first // size, -(-end // size)) if size else ():
        order = torch.randperm(size, generator=generator("order", cohort.seed, client, "epoch", epoch))
        found.append(order[max(0, first - epoch * size) : end - epoch * size])
    return found


def _concat(locals_: Sequence[Local]) -> Local:
    def join(trees: Sequence[Tree]) -> Tree:
        return {name: torch.cat([tree[name] for tree in trees]) for name in trees[0]}

    return Local(join([part.train for part in locals_]), join([part.fixed for part in locals_]))


def _rows(local: Local, rows: slice | Tensor) -> Local:
    return Local(
        {name: leaf[rows] for name, leaf in local.train.items()},
        {name: leaf[rows] for name, leaf in local.fixed.items()},
    )


def run_round(
    method: Method,
    tasks: Sequence[ClientTask],
    states: Sequence[State],
    cohorts: Sequence[Cohort],
    *,
    epochs: float,
    spec: OptimSpec,
    block: int | None = None,
) -> tuple[list[State], RoundReport]:
    """One round of every seed: states [S] -> next states [S].

    block: rows (clients of all seeds) trained at once; None trains them all at once. The result does not depend on it.
    """
    with torch.no_grad():
        sent = [method.traffic(t, s, c.who) for t, s, c in zip(tasks, states, cohorts, strict=True)]
        starts = [method.start(t, s, c.who) for t, s, c in zip(tasks, states, cohorts, strict=True)]
    local = _concat(starts)
    sizes = [len(c.who) for c in cohorts]
    total = sum(sizes)
    loss = None
    if local.train:
        plan = _plan(tasks, cohorts, epochs, spec)
        blocks = torch.arange(total).split(block or total)
        done = [_train(method, tasks, local, plan, rows, spec) for rows in blocks]
        local, loss = _concat([d[0] for d in done]), torch.cat([d[1] for d in done])
    states_after, first = [], 0
    with torch.no_grad():
        for task, state, cohort, size in zip(tasks, states, cohorts, sizes, strict=True):
            states_after.append(method.merge(task, state, cohort.who, _rows(local, slice(first, first + size))))
            first += size
    report = RoundReport(
        loss=None if loss is None else list(loss.split(sizes)),
        up=[_scalars(t.up, n) for t, n in zip(sent, sizes, strict=True)],
        down=[_scalars(t.down, n) for t, n in zip(sent, sizes, strict=True)],
        learned=sum(leaf[0].numel() for leaf in local.train.values()),
    )
    return states_after, report


def kept_bytes(method: Method, task: ClientTask, state: State, spec: OptimSpec) -> int:
    """Bytes that one step of one client keeps for its gradient, by a forward pass of the client with most images.

    They depend on shapes alone, so that equal configurations count the same.
    """
    who = task.size.argmax()[None]
    index = torch.arange(spec.batch, device=task.device).clamp(max=task.train.spare)[None]
    with torch.no_grad():
        local = method.start(task, state, who)
    if not local.train:
        return 0
    frozen = {weight.untyped_storage().data_ptr() for weight in task.towers.model.parameters()}
    held: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def note(tensor: Tensor) -> None:
        """Keeps the storage, not the tensor: a graph that holds its own outputs is never freed."""
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage

    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.train.items()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda _: _):
        method.loss(task, Local(leaves, local.fixed), task.train.batch(who, index, torch.zeros_like(index)))
    return sum(storage.nbytes() for address, storage in held.items() if address not in frozen)


def _scalars(sent: dict[str, int | Tensor], n_clients: int) -> int:
    return sum(int(v.sum()) if isinstance(v, Tensor) else v * n_clients for v in sent.values())


def _train(
    method: Method, tasks: Sequence[ClientTask], local: Local, plan: _Plan, block: Tensor, spec: OptimSpec
) -> tuple[Local, Tensor]:
    """All local steps of the rows of a block. Returns what they hold and their mean loss [C] in the last epoch.

    A step is as long and as wide as it has images: who has no batch left is out of it, and columns that only pad, too.
    """
    start, zeros = _rows(local, block), torch.zeros(len(block), device=plan.factor.device)
    going = _Going(block, start.train, start.fixed, optim.start(spec, start.train), zeros, zeros)
    ended: list[_Going] = []
    here = _by_seed(plan, block)
    shared: Task = tasks[0]
    for t in range(int(plan.steps[block].max())):
        stays = plan.steps[going.row] > t
        if not stays.all():
            ended.append(going.at(~stays))
            going = going.at(stays)
            here = _by_seed(plan, going.row)
        row, train, wide = going.row, going.train, slice(plan.widths[t])
        batch = join(
            [tasks[s].train.batch(plan.who[r], plan.index[r, t, wide], plan.draw[r, t, wide]) for s, r in here]
        )
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in train.items()}
        loss, moved = method.loss(shared, Local(leaves, going.fixed), batch)
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
        grads = {n: torch.zeros_like(train[n]) if g is None else g for n, g in zip(leaves, found, strict=True)}
        with torch.no_grad():
            train, state = optim.step(spec, train, grads, going.optim, plan.factor[row, t])
            heard = plan.last[row, t]
            total = going.total + torch.where(heard, loss.detach().to(zeros.dtype), 0)
            fixed = {name: leaf.detach() for name, leaf in moved.items()}
            going = _Going(row, train, fixed, state, total, going.counted + heard)
    ended.append(going)
    order = torch.cat([part.row for part in ended]).argsort()
    after = _rows(_concat([Local(part.train, part.fixed) for part in ended]), order)
    total, counted = (torch.cat([getattr(part, name) for part in ended])[order] for name in ("total", "counted"))
    return after, torch.where(counted > 0, total / counted.clamp(min=1), float("nan"))


def _by_seed(plan: _Plan, row: Tensor) -> list[tuple[int, Tensor]]:
    """The rows of each seed that has any."""
    seed = plan.seed[row]
    return [(s, row[seed == s]) for s in seed.unique().tolist()]


class _Going(NamedTuple):
    """Clients between two steps."""

    row: Tensor
    """[C] rows of the plan, ascending, on the CPU"""
    train: Tree
    fixed: Tree
    optim: OptimState
    total: Tensor
    """[C] losses of the last epoch so far, and of how many steps"""
    counted: Tensor

    def at(self, which: Tensor) -> _Going:
        """Those of a bool mask [C]."""
        kept = which.nonzero()[:, 0]
        train, fixed = _rows(Local(self.train, self.fixed), kept)
        first, second = _rows(Local(self.optim.first, self.optim.second), kept)
        state = self.optim._replace(first=first, second=second)
        return _Going(self.row[kept], train, fixed, state, self.total[kept], self.counted[kept])
