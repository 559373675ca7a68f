"""Server optimisers, which use the clients' updates as gradients: FedAvgM, FedAdam and FedYogi around any method.

FedAvgM: Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019, https://arxiv.org/abs/1909.06335. FedAdam and FedYogi: Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar,
McMahan: Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295 (Algorithm 2).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, Method, State, Task
from fpl_tune.wrappers._wrapper import Wrapper


@fl.dataclass
class ServerOptimizer(Wrapper):
    """A shared leaf x that clients train moves by η m / (√v + τ). Δ is its change by `inner`.

    `avgm`: m ← β₁ m + Δ, and the denominator is 1. `adam` and `yogi`: m ← β₁ m + (1 - β₁) Δ, without bias correction;
    v ← β₂ v + (1 - β₂) Δ² or v ← v - (1 - β₂) Δ² sign(v - Δ²), starting from τ². A stage starts with m = 0.

    inner: the method whose averages are smoothed.
    optimizer: `avgm`, `adam` or `yogi`.
    lr: η, > 0. `avgm` with η = 1 and β₁ = 0 is `inner`.
    beta1, beta2: in [0, 1); `avgm` has no β₂.
    tau: τ > 0; the smaller, the more adaptive. `avgm` has none.
    """

    adds = ("server.",)

    inner: Method
    optimizer: Literal["avgm", "adam", "yogi"] = "avgm"
    lr: fl.Positive = 1.0
    beta1: fl.Decay = 0.9
    beta2: fl.Decay = 0.99
    tau: fl.Positive = 1e-3

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        moments = {}
        for name in self.exchanged(task, state):
            moments[f"server.m.{name}"] = torch.zeros_like(state.shared[name])
            if self.optimizer != "avgm":
                moments[f"server.v.{name}"] = torch.full_like(state.shared[name], self.tau**2)
        return state._replace(server={**state.server, **moments})

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        names = [name.removeprefix("server.m.") for name in state.server if name.startswith("server.m.")]
        before = {name: state.shared[name].clone() for name in names}
        after = super().merge(task, state, clients, local)
        shared, moments = dict(after.shared), {}
        for name, x in before.items():
            move, m = after.shared[name] - x, state.server[f"server.m.{name}"]
            if self.optimizer == "avgm":
                m = step = self.beta1 * m + move
            else:
                m = torch.lerp(move, m, self.beta1)
                v, square = state.server[f"server.v.{name}"], move.square()
                away = v - square
                v = v - (1 - self.beta2) * (away if self.optimizer == "adam" else square * away.sign())
                moments[f"server.v.{name}"] = v
                step = m / (v.sqrt() + self.tau)
            moments[f"server.m.{name}"] = m
            shared[name] = x + self.lr * step
        return after._replace(shared=shared, server={**after.server, **moments})
