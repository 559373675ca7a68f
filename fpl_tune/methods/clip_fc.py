"""CLIP-FC: one linear layer on the image feature, averaged over clients, against hand-written prompts.

A baseline of FedAPT: Su, Yang, Li, Xue: Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning,
AAAI 2024, https://arxiv.org/abs/2211.07864 (its Table 1). The model is in the official code
(leondada/FedAPT, supervised/PromptModels/clip_base.py:141-177), a script that trains it is not.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import hand_logits, linear, new_linear


@fl.dataclass
class CLIPFC(FederatedAveraging):
    """Image feature W f + b of the raw feature f, D to D.

    start_from: `random`, PyTorch's default as in the official model, which begins below zero-shot; `identity`
        begins as zero-shot CLIP.
    weights: `uniform` average over the cohort (FedAPT's Eq. 12) or by `size`.
    """

    represents = "images"
    start_from: Literal["random", "identity"] = "random"
    weights: Weights = "uniform"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        weight, bias = new_linear(task, task.embed_dim, task.embed_dim, rng)
        if self.start_from == "identity":
            weight, bias = torch.eye(task.embed_dim).to(weight), torch.zeros_like(bias)
        return State(shared={"weight": weight, "bias": bias}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return linear(image, local.params["weight"], local.params["bias"])
