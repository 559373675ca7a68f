"""SGD, Adam and AdamW on trees with a client axis, and learning-rate schedules.

Every leaf is [C, ...] and every operation is elementwise, so that one update is C independent optimisers. A client
that has run out of batches is left untouched, momentum included. Optimisers live inside a round: each client
starts each round with a fresh one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fpl_tune.method import Batch, Local, Method, Task, Tree
from fpl_tune.spec import SPEC, AtLeastOne, Rate


@dataclass(frozen=True, config=SPEC)
class OptimSpec:
    """The clients' optimiser. Defaults are those of CoOp and its federated descendants (SGD)."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """adam adds the weight decay to the gradient, as SGD does; adamw decays the weights themselves."""
    lr: Rate = 0.002
    """Learning rate of every leaf that `groups` does not name. 0 trains nothing."""
    groups: dict[str, Rate] = field(default_factory=dict)
    """Learning rates by leaf name or by the part of it before the first dot, e.g. {gate: 0.01}."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """SGD's momentum; 0 is plain gradient descent."""
    weight_decay: Rate = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's and AdamW's."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's and AdamW's, added to the root of the second moment."""
    batch: AtLeastOne = 32
    """Images per step and client."""
    schedule: Literal["constant", "cosine", "rounds_cosine", "shared_cosine"] = "constant"
    """constant; cosine over a client's local epochs; rounds_cosine: over the rounds of a stage (FedTPG); shared_cosine:
    one cosine scheduler that all clients of all rounds step in turn, as the released code of PromptFL and pFedMoAP
    does (a client's rate then depends on its place), while the rates of `groups` stay constant."""

    def rate(self, leaf: str) -> float:
        """Learning rate of a leaf by its name."""
        return self.groups.get(leaf, self.groups.get(leaf.split(".")[0], self.lr))

    def follows(self, leaf: str) -> bool:
        """Whether a leaf's rate follows the schedule: the released shared scheduler belongs to one optimiser."""
        return self.schedule != "shared_cosine" or not {leaf, leaf.split(".")[0]} & self.groups.keys()


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
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.train.items()}
    loss, fixed = method.loss(task, Local(leaves, local.fixed), batch)
    grads = torch.autograd.grad(loss, list(leaves.values()), torch.ones_like(loss), allow_unused=True)
    with torch.no_grad():
        train, state = step(spec, local.train, dict(zip(leaves, grads, strict=True)), state, factor)
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
