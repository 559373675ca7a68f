"""SCAFFOLD around any method with shared leaves: control variates correct the drift of clients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020, https://arxiv.org/abs/1910.06378 (Algorithm 1). The server's rate is 1. The paper and its code in PFLlib
(TsingZ0/PFLlib) average clients uniformly, as `weights=uniform` does.
"""

from __future__ import annotations

from copy import copy
from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree
from fpl_tune.wrappers._wrapper import Wrapper


@fl.dataclass
class Scaffold(Wrapper):
    """A client's step uses the gradient g - c_i + c for every leaf that came from the server.

    After training, c_i is the mean of g over the round's steps, and c moves by Σ w_i (c_i⁺ - c_i) over the cohort,
    where w_i is the client's share of all clients. With plain SGD and a constant rate, that is the paper's option II,
    c_i - c + (x - y_i) / (K η); it also holds with momentum, Adam and schedules of the rate. Uploads and downloads
    double.

    inner: the method whose gradients are corrected.
    weights: weights of clients in c and in `inner`'s average: by `size`, the numbers of training images, or `uniform`.
        Models descend c, so `size` has the objective of a method that averages by images, and `uniform` another one if
        clients have unequal numbers of images.
    """

    adds = ("control.",)
    newer = ("weights",)

    inner: Method
    weights: Literal["size", "uniform"] = "size"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        fits = self.weights == "uniform" or getattr(self.inner, "weights", "size") == "size"
        remedy = "Two averages would have two objectives: set method.weights=uniform."
        fl.require(fits, "weights", "must be uniform where method.inner.weights is", self.weights, remedy)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        names = self.exchanged(task, state, whole=True)
        control = {f"control.{name}": torch.zeros_like(state.shared[name]) for name in names}
        own = {name: fl.replicate(leaf, task.n_clients) for name, leaf in control.items()}
        return State({**state.shared, **control}, {**state.personal, **own}, state.server)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        added = {"steps": torch.zeros(len(clients), dtype=task.dtype, device=task.device)}
        for name, control in _controls(state).items():
            added[f"correction.{name}"] = control - state.personal[f"control.{name}"][clients]
            added[f"control.{name}"] = torch.zeros_like(local.params[name])
        return local._replace(buffers={**local.buffers, **added})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        with torch.enable_grad():
            leaves = fl.fresh_leaves(local.params)
            loss, moved = super().loss(task, local._replace(params=leaves), batch)
            raw = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
        gradients = {name: g for name, g in zip(leaves, raw, strict=True) if g is not None}
        counted: Tree = {"steps": local.buffers["steps"] + 1}
        for name in gradients:
            if f"correction.{name}" in local.buffers:
                counted[f"control.{name}"] = local.buffers[f"control.{name}"] + gradients[name]
                gradients[name] = gradients[name] + local.buffers[f"correction.{name}"]
        return fl.with_gradient(loss, local.params, gradients), {**local.buffers, **moved, **counted}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        if self.weights == "uniform":
            task = copy(task)
            task.size = torch.ones_like(task.size)
        after = super().merge(task, state, clients, local)
        share = task.size[clients].to(task.dtype) / task.size.sum()
        shared, personal, steps = dict(after.shared), dict(after.personal), local.buffers["steps"]
        for name, control in _controls(state).items():
            own = state.personal[f"control.{name}"]
            old, steps_ = own[clients], steps.view(-1, *[1] * control.ndim)
            new = torch.where(steps_ > 0, local.buffers[f"control.{name}"] / steps_.clamp(min=1), old)
            personal[f"control.{name}"] = fl.scatter_rows(own, clients, new)
            shared[f"control.{name}"] = control + torch.einsum("c,c...->...", share, new - old)
        return State(shared, personal, after.server)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        sent = super().traffic(task, state, clients)
        control = fl.count(**{f"control.{name}": leaf for name, leaf in _controls(state).items()})
        return Traffic(up={**sent.up, **control}, down={**sent.down, **control})


def _controls(state: State) -> Tree:
    """The server's control variates, by the leaf that they correct."""
    return {n.removeprefix("control."): leaf for n, leaf in state.shared.items() if n.startswith("control.")}
