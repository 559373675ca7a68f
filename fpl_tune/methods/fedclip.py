"""FedCLIP: an attention adapter on the image feature, averaged over clients.

Lu, Hu, Wang, Xie: FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning, IEEE Data
Engineering Bulletin 2023, https://arxiv.org/abs/2302.13485. Official code: microsoft/PersonalizedFL, fedclip
(commit 441670e, nets/models.py), whose sentence is `clip.template='a picture of a {}'`. FedAPT
(https://github.com/leondada/FedAPT) compares with a form of its own; that its script ends an epoch after 131 batches is
no matter of a method's (`protocol.epochs` below one goes through a part of the images). The official optimiser is
`optim.name=adam optim.betas=[0.9,0.98] optim.eps=1e-6 optim.weight_decay=0.2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fpl_tune.method import (
    Batch,
    Local,
    Method,
    State,
    Task,
    Traffic,
    Tree,
    average,
    cosine_logits,
    count,
    cross_entropy,
    put,
    spread,
    unit,
)
from fpl_tune.methods._attention import Form, adapted, new_adapter
from fpl_tune.methods._contrast import contrastive


@dataclass(frozen=True)
class FedCLIP(Method):
    """Image feature a(f) ⊙ f against hand-written prompts; a is a two-layer network of D units each.

    form: `sigmoid` is FedAPT's a = sigmoid(W₂ relu(W₁ f)), `softmax` the official a = softmax(W₂ tanh(W₁ f)).
    objective: `ce`, cross-entropy over all classes, or the official `contrastive`, symmetric InfoNCE between the
        images of a batch and their class sentences, where images of one class are each other's negatives.
    weights: `uniform` average over the cohort (both codes) or by `size`.
    broadcast: False is what FedAPT's script for one client per domain does (prompt-fedclip.py:127): the average is
        evaluated but never sent back, so that clients train alone.
    """

    form: Form = "sigmoid"
    objective: Literal["ce", "contrastive"] = "ce"
    weights: Literal["uniform", "size"] = "uniform"
    broadcast: bool = True

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        adapter = new_adapter(task, rng)
        if self.broadcast:
            return State(shared=adapter, personal={}, server={})
        own = {name: spread(leaf, task.n_clients) for name, leaf in adapter.items()}
        return State(shared={}, personal=own, server=adapter)

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        if self.broadcast:
            return self.deploy(task, state, who)
        return Local(train={name: leaf[who] for name, leaf in state.personal.items()}, fixed={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.hand_text.expand(len(batch.image), -1, -1)
        return cosine_logits(task.scale, adapted(local.train, batch.image, self.form), text)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.objective == "ce":
            return cross_entropy(self.logits(task, local, batch), batch), local.fixed
        image, text = unit(adapted(local.train, batch.image, self.form)), task.hand_text[batch.label]
        return contrastive(task.scale * image @ text.mT, batch.mask), local.fixed

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        weight = torch.ones_like(who) if self.weights == "uniform" else task.size[who]
        mean = {name: average(rows, weight) for name, rows in local.train.items()}
        if self.broadcast:
            return state._replace(shared=mean)
        own = {name: put(leaf, who, local.train[name]) for name, leaf in state.personal.items()}
        return state._replace(personal=own, server=mean)

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        mean = state.shared if self.broadcast else state.server
        return Local(train={name: spread(leaf, len(who)) for name, leaf in mean.items()}, fixed={})

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(**state.shared, **state.server)
        return Traffic(up=sent, down=sent if self.broadcast else {})
