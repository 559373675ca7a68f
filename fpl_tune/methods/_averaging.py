"""Federated averaging, which most methods share."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic
from fpl_tune.methods._blocks import word_context

Weights = Literal["uniform", "size"]


class FederatedAveraging(Method):
    """A client trains every leaf of `State.shared`, which the server averages, and its rows of `State.personal`."""

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        received = {name: fl.replicate(leaf, len(clients)) for name, leaf in state.shared.items()}
        return Local(params=received | {name: leaf[clients] for name, leaf in state.personal.items()}, buffers={})

    def weight(self, task: Task, clients: Tensor) -> Tensor:
        """[C] weights of the average: numbers of training images, or ones if a field `weights` is `uniform`."""
        return torch.ones_like(clients) if getattr(self, "weights", "size") == "uniform" else task.size[clients]

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        shared = {name: fl.average(local.params[name], self.weight(task, clients)) for name in state.shared}
        personal = {name: fl.scatter_rows(leaf, clients, local.params[name]) for name, leaf in state.personal.items()}
        return state._replace(shared=shared, personal=personal)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        sent = fl.count(**state.shared)
        return Traffic(up=sent, down=sent)


class OneContext(FederatedAveraging):
    """A client predicts with one context, `prompt`. It starts from the field `words`, if there is one."""

    represents = "classes"
    n_ctx: int

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        context = word_context(task, getattr(self, "words", ""), self.n_ctx, rng)
        return State(shared={"prompt": context}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, batch.image, self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return task.encode_prompts(local.params["prompt"])


class TwoContexts(FederatedAveraging):
    """A client predicts with the averaged context `prompt` and the personal context `own`."""

    n_ctx: int

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared, own = fl.new_context(task, self.n_ctx, rng, 2)
        return State({"prompt": shared.clone()}, {"own": fl.replicate(own, task.n_clients)}, {})
