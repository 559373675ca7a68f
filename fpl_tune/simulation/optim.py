"""SGD, Adam and AdamW on trees with a client axis, and learning-rate schedules.

Every leaf is [C, ...] and every operation is elementwise, so that one update is C independent optimisers. A client
that has run out of batches is left untouched, momentum included. Optimisers live inside a round: each client
starts each round with a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, Local, Method, Task, Tree


class OptimState(NamedTuple):
    """Moments [C, ...] of each leaf and the number of steps that each client has taken."""

    first: Tree
    second: Tree
    steps: int | Tensor
    """A tensor where the step is recorded as a graph."""


def start(spec: OptimSpec, train: Tree) -> OptimState:
    """The state before the first step: zeros."""
    zeros = {name: torch.zeros_like(leaf) for name, leaf in train.items()}
    second = {name: torch.zeros_like(leaf) for name, leaf in train.items()} if spec.name != "sgd" else {}
    return OptimState(zeros, second, 0)


def step(
    spec: OptimSpec,
    train: Tree,
    grads: Mapping[str, Tensor | None],
    state: OptimState,
    factor: Tensor | None = None,
) -> tuple[Tree, OptimState]:
    """One update of every client.

    Args:
        spec: the optimiser.
        train: leaves [C, ...].
        grads: gradients of the leaves; a leaf without one stays as it is, decay included.
        state: moments and number of steps.
        factor: [C] multiplier of each client's learning rates; None is 1.

    Returns:
        The next leaves and state.
    """
    steps = state.steps + 1
    moved, first, second = dict(train), dict(state.first), dict(state.second)
    for name, leaf in train.items():
        gradient = grads[name]
        if gradient is None:
            continue
        if spec.name != "adamw" and spec.weight_decay:
            gradient = gradient.add(leaf, alpha=spec.weight_decay)
        if spec.name == "sgd":
            update = first[name] = gradient.add(state.first[name], alpha=spec.momentum)
        else:
            b1, b2 = spec.betas
            first[name] = (b1 * state.first[name]).add(gradient, alpha=1 - b1)
            second[name] = (b2 * state.second[name]).addcmul(gradient, gradient, value=1 - b2)
            update = (first[name] / (1 - b1**steps)) / ((second[name] / (1 - b2**steps)).sqrt() + spec.eps)
        if spec.name == "adamw":
            update = update.add(leaf, alpha=spec.weight_decay)
        rate = spec.rate(name)
        if factor is None or not spec.follows(name):
            moved[name] = leaf.sub(update, alpha=rate)
        else:
            by_client = factor.to(leaf.dtype).view(-1, *([1] * (leaf.ndim - 1)))
            moved[name] = leaf.addcmul(update, by_client, value=-rate)
    return moved, OptimState(first, second, steps)


def descend(
    spec: OptimSpec,
    method: Method,
    task: Task,
    local: Local,
    batch: Batch,
    state: OptimState,
    factor: Tensor | None,
) -> tuple[Tensor, Local, OptimState]:
    """One step of local training: the losses [C], the leaves after it, and the optimiser's next state."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.params.items()}
    loss, fixed = method.loss(task, Local(leaves, local.buffers), batch)
    grads = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
    with torch.no_grad():
        train, state = step(spec, local.params, dict(zip(leaves, grads, strict=True)), state, factor)
    fixed = {name: leaf.detach() if leaf.requires_grad else leaf for name, leaf in fixed.items()}
    return loss.detach(), Local(train, fixed), state


def rate_factor(schedule: str, epoch: int, epochs: int, before: int = 0, round_: int = 1, rounds: int = 1) -> float:
    """Multiplier of the learning rate in a local epoch.

    Args:
        schedule: as in `OptimSpec`. `shared_cosine` is CoOp's: the first epoch of all runs at a warm-up rate, here 0,
            and the cosine of period 2 · epochs goes on from client to client and from round to round.
        epoch: counted from 0.
        epochs: local epochs of a round.
        before: clients that were visited before, in all rounds.
        round_: counted from 1.
        rounds: of the stage.
    """
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / epochs)) / 2
    if schedule == "rounds_cosine":
        return (1 + math.cos(math.pi * (round_ - 1) / rounds)) / 2
    stepped = before * epochs + epoch
    return 0.0 if stepped == 0 else (1 + math.cos(math.pi * (stepped - 1) / epochs)) / 2
