"""FedCLIP: an attention adapter on the image feature, averaged over clients.

Lu, Hu, Wang, Xie: FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning, IEEE Data
Engineering Bulletin 2023, https://arxiv.org/abs/2302.13485. Official code: microsoft/PersonalizedFL, fedclip
(commit 441670e, nets/models.py), whose sentence is `clip.template='a picture of a {}'`. FedAPT
(https://github.com/leondada/FedAPT) compares with its own form. Its script ends an epoch after 131 batches, which can
be approximated by `protocol.epochs` below one. The official optimiser is
`optim.name=adam optim.betas=[0.9,0.98] optim.eps=1e-6 optim.weight_decay=0.2`.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

from typing import Literal

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Traffic, Tree
from fpl_tune.methods._attention import Form, adapted, new_adapter
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import contrastive, hand_logits


@fl.dataclass
class FedCLIP(FederatedAveraging):
    """Image feature a(f) ⊙ f against hand-written prompts; a is a two-layer network of D units each.

    form: `sigmoid` is FedAPT's a = sigmoid(W₂ relu(W₁ f)), `softmax` the official a = softmax(W₂ tanh(W₁ f)).
    objective: `ce`, cross-entropy over all classes, or the official `contrastive`, symmetric InfoNCE between the
        images of a batch and their class sentences, where images of one class are each other's negatives.
    weights: `uniform` average over the cohort (both codes) or by `size`.
    broadcast: if False, the average is evaluated but never sent back, so that clients train separately, as in FedAPT's
        script for one client per domain (prompt-fedclip.py:127).
    """

    represents = "images"
    form: Form = "sigmoid"
    objective: Literal["ce", "contrastive"] = "ce"
    weights: Weights = "uniform"
    broadcast: bool = True

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        adapter = new_adapter(task, rng)
        if self.broadcast:
            return State(shared=adapter, personal={}, server={})
        own = {name: fl.replicate(leaf, task.n_clients) for name, leaf in adapter.items()}
        return State(shared={}, personal=own, server=adapter)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return adapted(local.params, image, self.form)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.objective == "ce":
            return super().loss(task, local, batch)
        image, text = fl.normalize(self.representation(task, local, batch.image)), task.hand_text[batch.label]
        return contrastive(task.scale * image @ text.mT, batch.mask), local.buffers

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        mean = {name: fl.average(local.params[name], self.weight(task, clients)) for name in state.server}
        return super().merge(task, state, clients, local)._replace(server=mean)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self.start(task, State(state.shared | state.server, personal={}, server={}), clients)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        sent = fl.count(**state.shared, **state.server)
        return Traffic(up=sent, down=sent if self.broadcast else {})
