"""Federated averaging, which most methods share; a method that does something else writes it out."""

from __future__ import annotations

import torch
from torch import Tensor

from fpl_tune.method import Local, Method, State, Task, Traffic, average, count, put, spread


class FederatedAveraging(Method):
    """A client trains every leaf of `State.shared`, which the server averages, and its rows of `State.personal`.

    The average is by number of training images, or uniform where a field `weights` of the method says `uniform`.
    """

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        received = {name: spread(leaf, len(who)) for name, leaf in state.shared.items()}
        return Local(train=received | {name: leaf[who] for name, leaf in state.personal.items()}, fixed={})

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        uniform = getattr(self, "weights", "size") == "uniform"
        weight = torch.ones_like(who) if uniform else task.size[who]
        shared = {name: average(local.train[name], weight) for name in state.shared}
        personal = {name: put(leaf, who, local.train[name]) for name, leaf in state.personal.items()}
        return state._replace(shared=shared, personal=personal)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(**state.shared)
        return Traffic(up=sent, down=sent)
