"""Federated averaging, which most methods share; a method that does something else writes it out."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, Method, State, Task, Traffic

Weights = Literal["uniform", "size"]


class FederatedAveraging(Method):
    """A client trains every leaf of `State.shared`, which the server averages, and its rows of `State.personal`."""

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        received = {name: fl.spread(leaf, len(who)) for name, leaf in state.shared.items()}
        return Local(train=received | {name: leaf[who] for name, leaf in state.personal.items()}, fixed={})

    def weight(self, task: Task, who: Tensor) -> Tensor:
        """[C] in the average: numbers of training images, or ones where a field `weights` says `uniform`."""
        return torch.ones_like(who) if getattr(self, "weights", "size") == "uniform" else task.size[who]

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        shared = {name: fl.average(local.train[name], self.weight(task, who)) for name in state.shared}
        personal = {name: fl.put(leaf, who, local.train[name]) for name, leaf in state.personal.items()}
        return state._replace(shared=shared, personal=personal)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = fl.count(**state.shared)
        return Traffic(up=sent, down=sent)
