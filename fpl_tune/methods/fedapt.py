"""FedAPT, supervised: one meta prompt that frozen keys unlock for each domain, and a reader of domains.

Su, Yang, Li, Xue: Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning, AAAI 2024,
https://arxiv.org/abs/2211.07864. Official code: leondada/FedAPT (commit dcbda2c, supervised). Where they differ the
paper's value is the default: its scripts for one client per domain start with 24 context tokens, not 16.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods import _domains as domains
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import image_by_image


@fl.dataclass
class FedAPT(FederatedAveraging):
    """Meta prompt p [K, l, d] and reader Q [n, D]; a client of domain i trains p ⊙ (1 + kᵢ) and Q on the label i.

    Class-specific prompts have no meaning for other classes, so novel classes are rejected.

    n_ctx: l, >= 1.
    keys: how the server draws the keys kᵢ [l, d] (Table 9): `uniform` in [0, 1), `normal`, `binary` 0 or 1, or
        `orthogonal` to each other with entries of mean square one; `none`, and then no reader, is PromptFL with
        class-specific prompts.
    temperature: τ > 0 of the softmax over domains; towards 0 an image unlocks the key of one domain.
    unlock: what is evaluated (Table 4). `image`: the keys that the reader finds in the image (Eq. 5); `own`: the key
        of the client's domain, as in training; `none`: the meta prompt alone; or a domain's number: its key for all.
    inference: `precomputed` text features of every key, mixed by image (Figure 3); `exact` encodes every image's
        own prompt. They agree as τ goes to 0.
    weights: `uniform` average over the cohort (Eq. 12) or by `size`.
    """

    requires = ("same_classes",)
    own_metrics = (fl.Metric("reader/acc_mean", unit="%", maximize=True),)

    n_ctx: fl.AtLeastOne = 16
    keys: domains.Keys = "uniform"
    temperature: fl.Positive = 0.01
    unlock: Literal["image", "own", "none"] | int = "image"
    inference: Literal["precomputed", "exact"] = "precomputed"
    weights: Weights = "uniform"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        domains.check_keys(sizes, self.keys, self.n_ctx, self.unlock)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return domains.keyed_state(task, self.keys, self.n_ctx, rng, task.n_classes)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return super().start(task, state, clients)._replace(buffers=domains.training_buffers(task, state, clients))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss = fl.cross_entropy(self.logits(task, local, batch), batch)
        if "reader" in local.params:
            loss = loss + domains.domain_loss(local.params["reader"], batch, local.buffers["domain"])
        return loss, local.buffers

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        prompt = local.params["prompt"]
        if "key" in local.buffers:  # the key that the client holds
            text = task.encode_prompts(prompt * (1 + local.buffers["key"][:, None]), per_class=True)
            return fl.cosine_logits(task.scale, batch.image, text)
        keys = local.buffers["keys"]
        weight = domains.domain_weights(local.params["reader"], batch.image, self.temperature)

        def exact(image: Tensor, weight: Tensor) -> Tensor:
            key = torch.einsum("cbn,cnld->cbld", weight, keys)[:, :, None]
            text = task.encode_prompts(prompt[:, None] * (1 + key), per_class=True, cache=False)  # [C, B, K, D]
            return task.scale * torch.einsum("cbd,cbkd->cbk", fl.normalize(image), text)

        if self.inference == "exact":
            return image_by_image(exact, task.n_classes, batch.image, weight)
        text = task.encode_prompts(prompt[:, None] * (1 + keys[:, :, None]), per_class=True)  # [C, n, K, D]
        return task.scale * torch.einsum("cbd,cnkd,cbn->cbk", fl.normalize(batch.image), text, weight)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """Keys are sent once, before training."""
        return super().start(task, state, clients)._replace(buffers=domains.unlocked(self.unlock, task, state, clients))

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        """Accuracy of the reader (Fig. 6)."""
        return domains.reader_metrics(state.shared["reader"], task) if "reader" in state.shared else {}
