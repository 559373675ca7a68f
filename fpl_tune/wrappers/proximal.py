"""FedProx around any method with a shared part.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127 (Eq. 2). The released prompt-learning codes compute the term from detached tensors, so
that it has no gradient, which is `mu=0`; here it has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, Tree, require
from fpl_tune.wrappers._wrapper import Wrapper, exchanged


@dataclass(frozen=True)
class Proximal(Wrapper):
    """The local loss plus μ/2 · ‖w − w_received‖² over every leaf that came from the server.

    inner: the method whose loss is extended.
    mu: weight of the proximal term, >= 0; 0 is `inner`. 0.005 is what pFedPrompt (App. A.3) found best.
    """

    inner: Method
    mu: float = 0.005

    def __post_init__(self) -> None:
        require(math.isfinite(self.mu) and self.mu >= 0, "mu", "must be a finite number >= 0", self.mu)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return self.inner.init(task, rng, before)

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        local = self.inner.start(task, state, who)
        names = exchanged(local, state.shared, "proximal")
        return local._replace(fixed={**local.fixed, **{f"received.{n}": local.train[n].clone() for n in names}})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, moved = self.inner.loss(task, local, batch)
        for name, leaf in local.train.items():
            if f"received.{name}" in local.fixed:
                away = leaf - local.fixed[f"received.{name}"]
                loss = loss + self.mu / 2 * away.flatten(1).square().sum(1)
        return loss, {**local.fixed, **moved}

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        return self.inner.merge(task, state, who, local)

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        return self.inner.deploy(task, state, who)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        return self.inner.traffic(task, state, who)
