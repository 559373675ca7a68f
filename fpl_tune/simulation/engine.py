"""The round: start, steps, merge. The only loop over steps.

The cohorts of all seeds are concatenated along the client axis and trained as one batch, in blocks of clients if
memory asks for it. A client's data order depends on (seed, client, round) alone, so neither the other clients of the
cohort, nor the other seeds, nor the block size changes what it learns. A block of one client is the plain loop that
the batched path is tested against.

On an accelerator a step never synchronizes: all inputs are on the device before step 1
(`fpl_tune.simulation.batches`), so that it can be recorded once and replayed (`fpl_tune.simulation.graphs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.clients import MaliciousSpec
from fpl_tune.method import Local, Method, State, Task, Traffic, derive, in_place
from fpl_tune.simulation import optim
from fpl_tune.simulation.attacks import attacked
from fpl_tune.simulation.batches import Cohort, Plan, plan_round
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.optim import OptimState
from fpl_tune.simulation.task import ClientTask


class RoundReport(NamedTuple):
    """Training figures of a round."""

    loss: list[Tensor] | None
    """Per seed: [C] mean training loss over the last local epoch, nan for clients without images; None where the
    method learns nothing."""
    up: list[int]
    """Per seed: scalars sent by the cohort."""
    down: list[int]
    """Per seed: scalars received by the cohort and by the clients that are absent."""
    vain: list[int]
    """Per seed: scalars received by the clients that are absent."""


def run_round(
    method: Method,
    tasks: Sequence[ClientTask],
    states: Sequence[State],
    cohorts: Sequence[Cohort],
    *,
    epochs: float,
    spec: OptimSpec,
    block: int | None = None,
    stage: range | None = None,
    graphs: Graphs | None = None,
    reuse: bool = False,
    malicious: MaliciousSpec | None = None,
) -> tuple[list[State], RoundReport]:
    """One round of every seed. The state of a seed whose cohort is empty stays as it is.

    Args:
        method: what is trained.
        tasks, states, cohorts: by seed [S].
        epochs: local epochs.
        spec: the clients' optimiser.
        block: clients, over all seeds, trained at once; None: all. The result does not depend on it.
        stage: the rounds of the stage, by number; None: this one alone.
        graphs: what records and replays steps where that saves time; None: every step runs eagerly.
        reuse: the next states may take the memory of `states`, which are not to be read again, even after an error.
        malicious: the attack of the cohorts' `liars`; None: they do not change what they send.

    Returns:
        The next states [S], and what was measured.
    """
    stage = stage or range(cohorts[0].round, cohorts[0].round + 1)
    tasks = [
        task.during(
            stage.index(cohort.round) + 1,
            len(stage),
            derive("method", cohort.seed, cohort.round),
            attacked=cohort.liars is not None,
        )
        for task, cohort in zip(tasks, cohorts, strict=True)
    ]
    sizes = [len(c.clients) for c in cohorts]
    whos = torch.cat([c.clients for c in cohorts]).to(tasks[0].device).split(sizes)
    present = [i for i, size in enumerate(sizes) if size]
    with torch.no_grad():
        sent = {i: method.traffic(tasks[i], states[i], whos[i]) for i in present}
        starts = [method.start(tasks[i], states[i], whos[i]) for i in present]
        scalars = _scalars(method, tasks, states, cohorts, sent)
    states_after, loss = list(states), None
    if not present:
        return states_after, RoundReport(None, *scalars)
    local = Local.joined(starts)
    if local.params:
        plan, total = plan_round(tasks, cohorts, whos, epochs, spec), sum(sizes)
        blocks = [slice(first, first + (block or total)) for first in range(0, total, block or total)]
        done = [_train(method, tasks[0], local.at(rows), plan.at(rows), spec, graphs) for rows in blocks]
        local, loss = Local.joined([d[0] for d in done]), torch.cat([d[1] for d in done])
    first = 0
    with torch.no_grad(), in_place() if reuse else nullcontext():
        for i, start in zip(present, starts, strict=True):
            rows = slice(first, first := first + sizes[i])
            uploads = local.at(rows)
            if malicious is not None and cohorts[i].liars is not None:
                uploads = attacked(malicious, cohorts[i], sent[i].up, start, uploads)
            states_after[i] = method.merge(tasks[i], states[i], whos[i], uploads)
    return states_after, RoundReport(None if loss is None else list(loss.split(sizes)), *scalars)


def _scalars(
    method: Method,
    tasks: Sequence[Task],
    states: Sequence[State],
    cohorts: Sequence[Cohort],
    sent: Mapping[int, Traffic],
) -> tuple[list[int], list[int], list[int]]:
    """Scalars sent up, sent down, and sent down to absent clients, by seed. Counts that differ by client are read from
    the device at once."""
    totals = [[0] * len(cohorts) for _ in range(3)]
    counted: list[tuple[list[int], int, Tensor]] = []

    def add(into: Sequence[list[int]], seed: int, counts: Mapping[str, int | Tensor], clients: int) -> None:
        for total in into:
            for count in counts.values():
                if isinstance(count, Tensor):
                    counted.append((total, seed, count.sum()))
                else:
                    total[seed] += count * clients

    for seed, cohort in enumerate(cohorts):
        if seed in sent:
            add(totals[:1], seed, sent[seed].up, len(cohort.clients))
            add(totals[1:2], seed, sent[seed].down, len(cohort.clients))
        if cohort.absent is not None and len(cohort.absent):
            received = method.traffic(tasks[seed], states[seed], cohort.absent.to(tasks[seed].device)).down
            add(totals[1:], seed, received, len(cohort.absent))
    if counted:
        read = torch.stack([count for *_, count in counted]).tolist()
        for (total, seed, _), scalars in zip(counted, read, strict=True):
            total[seed] += scalars
    up, down, vain = totals
    return up, down, vain


def kept_bytes(method: Method, task: ClientTask, state: State, spec: OptimSpec) -> int:
    """Bytes that one step of one client keeps for its gradient, by a forward pass of the client with most images.

    They depend on shapes alone, so that equal configurations count the same.
    """
    clients = task.size.argmax()[None]
    index = torch.arange(spec.batch, device=task.device).clamp(max=task.train.spare)[None]
    with torch.no_grad():
        local = method.start(task, state, clients)
    if not local.params:
        return 0
    frozen = [weight.untyped_storage() for weight in task.towers.model.parameters()]
    storages: dict[int, torch.UntypedStorage] = {}  # by id, as tensors without values have no address; held

    def note(tensor: Tensor) -> Tensor:
        """Keeps the numbers, not the tensor: a graph that holds its own outputs is never freed."""
        storage = tensor.untyped_storage()
        storages[id(storage)] = storage
        return tensor.detach()  # read again where a loss takes gradients of its own

    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.params.items()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        method.loss(task, Local(leaves, local.buffers), task.train.batch(clients, index, torch.zeros_like(index)))
    return sum(storage.nbytes() for key, storage in storages.items() if key not in set(map(id, frozen)))


# -- local training --------------------------------------------------------------------------------------------


class _Training(NamedTuple):
    """Clients between two steps; every leaf [C, ...]."""

    local: Local
    optim: OptimState
    total: Tensor
    """[C] sum of the losses of the last epoch so far."""

    def at(self, rows: Tensor) -> _Training:
        first, second = Local(self.optim.first, self.optim.second).at(rows)
        return _Training(self.local.at(rows), self.optim._replace(first=first, second=second), self.total[rows])


def _train(
    method: Method, task: ClientTask, local: Local, plan: Plan, spec: OptimSpec, graphs: Graphs | None
) -> tuple[Local, Tensor]:
    """All local steps of a block of clients.

    Returns:
        What the clients hold, and their mean loss [C] in the last epoch.
    """
    replayed = None
    if graphs is not None and graphs.suit(method, plan):
        replayed = graphs.train(method, task, local, plan, spec)
    after, total = replayed or _eager(method, task, local, plan, spec)
    counted = plan.last.sum(1)
    return after, torch.where(counted > 0, total / counted.clamp(min=1), float("nan"))


def _eager(method: Method, task: Task, local: Local, plan: Plan, spec: OptimSpec) -> tuple[Local, Tensor]:
    """Steps that are as long and as wide as they have images: a client without a batch left leaves, and columns that
    only pad are cut.

    Returns:
        What the clients hold, and the sum [C] of their losses in the last epoch.
    """
    zeros = torch.zeros(len(plan.last), device=plan.last.device)
    now = _Training(local, optim.start(spec, local.params), zeros)
    done = 0
    phases, order = _phases(plan)
    ended: list[_Training] = []
    for end, stay, leave in phases:
        for t in range(done, end):
            now = _step(method, task, now, plan, t, spec)
        done = end
        if stay is None:
            ended.append(now)
        else:
            ended.append(now.at(leave))
            now, plan = now.at(stay), plan.at(stay)
    after = Local.joined([part.local for part in ended])
    total = torch.cat([part.total for part in ended])
    if order is not None:
        after, total = after.at(order), total[order]
    return after, total


def _phases(plan: Plan) -> tuple[list[tuple[int, Tensor | None, Tensor]], Tensor | None]:
    """When clients leave: (step, rows that stay, rows that leave) each time, rows counted among those still there; and
    the order that puts the rows that left first, second, ... back in place. One copy to the device."""
    left, parts, order = list(enumerate(plan.steps.tolist())), [], []
    for end in sorted({steps for _, steps in left}):
        stay = [i for i, (_, steps) in enumerate(left) if steps > end]
        leave = [i for i, (_, steps) in enumerate(left) if steps == end]
        parts.append((end, stay, leave))
        order += [left[i][0] for i in leave]
        left = [left[i] for i in stay]
    if len(parts) == 1:
        return [(parts[0][0], None, plan.last)], None
    back = torch.tensor(order).argsort().tolist()
    flat = [*back, *(i for _, stay, leave in parts for i in (*stay, *leave))]
    sizes = [len(back), *(len(rows) for _, *both in parts for rows in both)]
    moved = iter(torch.tensor(flat).to(plan.last.device).split(sizes))
    back = next(moved)
    return [(end, next(moved) if stay else None, next(moved)) for end, stay, _ in parts], back


def _step(method: Method, task: Task, now: _Training, plan: Plan, t: int, spec: OptimSpec) -> _Training:
    """Step number `t` of all clients of the plan."""
    factor = None if plan.factor is None else plan.factor[:, t]
    loss, local, state = optim.descend(spec, method, task, now.local, plan.batch(t), now.optim, factor)
    total = now.total
    if plan.ends[t]:
        total = torch.where(plan.last[:, t], total + loss.to(total.dtype), total)
    return _Training(local, state, total)
