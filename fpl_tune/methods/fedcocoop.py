"""FedCoCoOp: federated averaging of a context that a small network shifts for every image.

Zhou, Yang, Loy, Liu: Conditional Prompt Learning for Vision-Language Models, CVPR 2022,
https://arxiv.org/abs/2203.05557; federated in FedPGP (Cui et al., ICML 2024, https://arxiv.org/abs/2405.09771),
which gives no settings; those of CoCoOp are used. FedPGP's released loop averages only a tensor called `ctx`, so the
network would be passed from client to client, which is not possible if clients train in parallel. Here both are
averaged by number of training images.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import image_by_image, mapped, new_layers, word_context


@fl.dataclass
class FedCoCoOp(FederatedAveraging):
    """Context of image x: every token plus π(f̂), π a network D -> D/r -> d on the unit image feature.

    The text tower runs for every image and class, on B · K sentences per client and step. Use a small `optim.batch` (1
    in CoCoOp).

    n_ctx: tokens of the context, >= 1.
    words: text whose first `n_ctx` tokens the context starts from; empty: N(0, 0.02²).
    reduction: r, >= 1, at most D. With π's second layer at zero this is PromptFL.
    """

    n_ctx: fl.AtLeastOne = 4
    words: str = "a photo of a"
    reduction: fl.AtLeastOne = 16

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = f"must be at most the feature width {sizes.embed_dim}"
        fl.require(self.reduction <= sizes.embed_dim, "reduction", rule, self.reduction)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        hidden = task.embed_dim // self.reduction
        shared: Tree = {"prompt": word_context(task, self.words, self.n_ctx, rng)}
        shared |= new_layers(
            task, rng, {"net.first": (task.embed_dim, hidden), "net.second": (hidden, task.text_width)}
        )
        return State(shared, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        leaf, image = local.params, fl.normalize(batch.image)
        shift = mapped(leaf, "net.second", mapped(leaf, "net.first", image).relu())  # [C, B, d]

        def score(image: Tensor, shift: Tensor) -> Tensor:
            text = task.encode_prompts(leaf["prompt"][:, None] + shift[:, :, None], cache=False)  # [C, B, K, D]
            return task.scale * torch.einsum("cbd,cbkd->cbk", image, text)

        return image_by_image(score, task.n_classes, image, shift)
