"""CAPT: a general context and class-aware ones for long-tailed labels, averaged by the clients' images of each class.

Hou et al.: CAPT: Class-Aware Prompt Tuning for Federated Long-Tailed Learning with Vision-Language Model, 2025,
https://arxiv.org/abs/2503.06993. The code was read in a mirror (2373604131/clientLT, 24045d2). Its rounds pass one
model from client to client, and a bandit that uses test accuracy chooses how often rows are averaged; neither is
offered. All clients receive its averaged rows (`rows=released`), so its clusters of clients have no effect.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Traffic, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import mapped, new_layers


@fl.dataclass
class CAPT(FederatedAveraging):
    """Class k's context is [general, own k] [1 + l, d].

    - The general token is shared by all classes. A linear map of it is a token of the image, too.
    - The own tokens [K, l, d] of a class are averaged as `rows` says. They have no meaning for other classes.
    - π [K] are the class frequencies of all training images.

    The loss is cross-entropy with logits + prior · log π, + align · (L_general + L_own).

    n_own: l, tokens of a class's own context, >= 1.
    prior: weight of the logit adjustment in training, >= 0; 0 is plain cross-entropy. It has no effect if classes are
        equally frequent.
    align: weight of two terms that compare the contexts' tokens with image features at `temperature`, >= 0. L_general
        makes the images of a batch equally similar to the general token. L_own is a cross-entropy against the mean of
        each class's unit tokens, weighted by π. The terms exist where tokens are as wide as features (ViT-B), and the
        code weighs them by 1. The default also fits the other towers, where `align` must be 0.
    temperature: > 0.
    rows: weights in the average of a class's own context. `support`: the clients' numbers of images of the class, so
        that clients without one are not counted, and a class without images does not change. `released`, as in the
        code: equal weights for all clients with more than a tenth of their images in the class; a class without such a
        client does not change. `size`: the numbers of all images, as for the other leaves.
    """

    needs = "pixels"
    requires = ("vit", "same_classes")
    n_own: fl.AtLeastOne = 3
    prior: fl.Weight = 1.0
    align: fl.Weight = 0.0
    temperature: fl.Positive = 0.1
    rows: Literal["support", "released", "size"] = "support"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = f"must be 0 where tokens ({sizes.text_width}) are not as wide as features ({sizes.embed_dim})"
        fl.require(not self.align or sizes.text_width == sizes.embed_dim, "align", rule, self.align)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared = {"general": fl.new_context(task, 1, rng), "own": fl.new_context(task, self.n_own, rng, task.n_classes)}
        shared |= new_layers(task, rng, {"map": (task.text_width, task.vision_width or 0)})
        return State(shared, personal={}, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        total = task.counts.sum(0).clamp(min=1)
        local.buffers["prior"] = fl.replicate((total / total.sum()).to(task.dtype), len(clients))
        return local

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return super().start(task, state, clients)

    def _image(self, task: Task, local: Local, batch: Batch) -> Tensor:
        token = mapped(local.params, "map", local.params["general"])  # [C, 1, w]
        return fl.normalize(task.encode_images(batch.image, token)[0])

    def _scores(self, task: Task, local: Local, image: Tensor) -> Tensor:
        own = local.params["own"]  # [C, K, l, d]
        general = local.params["general"][:, None].expand(-1, own.shape[1], -1, -1)
        return fl.cosine_logits(task.scale, image, task.encode_prompts(torch.cat([general, own], 2), per_class=True))

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self._scores(task, local, self._image(task, local, batch))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        image, prior = self._image(task, local, batch), local.buffers["prior"]
        adjusted = self._scores(task, local, image) + self.prior * prior.log()[:, None]
        loss = fl.cross_entropy(adjusted, batch)
        if self.align:
            loss = loss + self.align * self._alignment(local.params, image, prior, batch)
        return loss, local.buffers

    def _alignment(self, leaf: Tree, image: Tensor, prior: Tensor, batch: Batch) -> Tensor:
        """[C] L_general + L_own."""
        general = (image @ fl.normalize(leaf["general"]).mT)[..., 0] / self.temperature  # [C, B]
        even = -general.masked_fill(~batch.mask, -torch.inf).log_softmax(1)
        scores = image @ fl.normalize(leaf["own"]).mean(2).mT / self.temperature  # [C, B, K]
        weighted = F.nll_loss((scores + prior.log()[:, None]).log_softmax(-1).mT, batch.label, reduction="none")
        return fl.mean_over(even, batch.mask) + fl.mean_over(weighted, batch.mask)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        shared = super().merge(task, state, clients, local).shared
        if self.rows != "size":
            weight = task.counts[clients].to(task.dtype)  # [C, K]
            if self.rows == "released":
                weight = (weight > 0.1 * weight.sum(1, keepdim=True)).to(task.dtype)
            total = weight.sum(0)[:, None, None]
            mean = torch.einsum("ck,ckld->kld", weight, local.params["own"]) / total.clamp(min=1)
            shared["own"] = torch.where(total > 0, mean, state.shared["own"])
        return state._replace(shared=shared)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """Clients also send their numbers of images by class, which discloses them, and receive π."""
        sent = fl.count(**state.shared)
        return Traffic(up={**sent, "histogram": task.n_classes}, down={**sent, "prior": task.n_classes})
