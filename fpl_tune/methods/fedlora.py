"""FLoRA: low-rank updates of the text tower's attention, averaged over clients.

Nguyen, Muñoz, Jannesari: FLoRA: Enhancing Vision-Language Models with Parameter-Efficient Federated Learning, 2024,
https://arxiv.org/abs/2404.15182. Official code: dphuongn/FLoRA, e6ce44c, whose scripts change the output projection of
attention in all text blocks. Other layers and the image tower are not offered. Its optimiser is `optim=` {name: adam,
lr: 5e-5, betas: [0.9, 0.98], eps: 1e-6, weight_decay: 0.2}; in the code Adam's moments live on from round to round,
here every round begins with new ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Adapter, Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import contrastive


@dataclass(frozen=True, config=fl.SPEC)
class FedLoRA(FederatedAveraging):
    """W x + s · B A x beside the output projection W of attention, A [J, d, r] normal, B [J, r, d] from zero.

    A and B are averaged separately, by number of training images: the mean of products is not the product of means.

    rank: r, >= 1.
    alpha: >= 0; 0 is zero-shot CLIP and trains nothing.
    scaling: s. `alpha` as in the code; `alpha/rank` as in LoRA, with which the rank may change at one learning rate.
    objective: `ce`, cross-entropy over all classes, or the code's `contrastive`, symmetric InfoNCE between the images
        of a batch and their class sentences, where images of one class are each other's negatives.
    """

    rank: fl.AtLeastOne = 2
    alpha: fl.Weight = 32.0
    scaling: Literal["alpha", "alpha/rank"] = "alpha"
    objective: Literal["ce", "contrastive"] = "ce"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        blocks, width = task.n_text_blocks, task.text_width
        a = torch.randn(blocks, width, self.rank, generator=rng) / self.rank**0.5
        b = torch.zeros(blocks, self.rank, width)
        return State({n: leaf.to(task.device, task.dtype) for n, leaf in (("a", a), ("b", b))}, personal={}, server={})

    def _text(self, task: Task, local: Local) -> Tensor:
        """[C, K, D] unit features of the hand-written sentences under each client's text tower."""
        scale = self.alpha / (self.rank if self.scaling == "alpha/rank" else 1)
        leaf = {"a": local.params["a"], "b": scale * local.params["b"]}
        return fl.normalize(task.sentences([task.template], adapter=Adapter(_low_rank, leaf, place="attention"))[:, 0])

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, batch.image, self._text(task, local))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.objective == "ce":
            return fl.cross_entropy(self.logits(task, local, batch), batch), local.buffers
        text = self._text(task, local)
        own = text.gather(1, batch.label.unsqueeze(-1).expand(-1, -1, text.shape[-1]))
        return contrastive(task.scale * fl.normalize(batch.image) @ own.mT, batch.mask), local.buffers


def _low_rank(leaf: Tree, x: Tensor) -> Tensor:
    """Mixed values [C, n, d] -> what the update adds to their projection."""
    return x @ leaf["a"] @ leaf["b"]
