"""A linear classifier on frozen image features, by federated averaging: the "tuning" rows of FedAPT's Table 1.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629; compared with prompts in FedAPT (Su et al., AAAI
2024, https://arxiv.org/abs/2211.07864), whose ViT-tuning head has 512 · 345 + 345 parameters, so that its ViT is
CLIP's ViT-B/32. Wrapped in `proximal`, this is the head-only FedProx.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import linear, new_linear


@fl.dataclass
class LinearHead(FederatedAveraging):
    """Logits W f + b over the training classes. Other classes (base-to-novel) are rejected.

    feature: `raw` features of the tower, or `unit` length times s, the scale of CLIP's own logits.
    start_from: `random`, PyTorch's default, or `text`, the features of the hand-written prompts as W, which is
        zero-shot CLIP with `unit`.
    weights: average over the cohort by `size` (FedAvg) or `uniform` (FedAPT's Eq. 12).
    """

    requires = ("same_classes",)

    feature: Literal["raw", "unit"] = "raw"
    start_from: Literal["random", "text"] = "random"
    weights: Weights = "size"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        weight, bias = new_linear(task, task.embed_dim, task.n_classes, rng)
        if self.start_from == "text":
            weight, bias = task.hand_text.clone(), torch.zeros_like(bias)
        return State(shared={"weight": weight, "bias": bias}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image = task.scale * fl.normalize(batch.image) if self.feature == "unit" else batch.image
        return linear(image, local.params["weight"], local.params["bias"])
