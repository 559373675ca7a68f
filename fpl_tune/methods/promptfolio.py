"""PromptFolio: a portfolio of a global and a local prompt, mixed as text features.

Pan, Huang, Shi: Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and Method, NeurIPS
2024, https://arxiv.org/abs/2409.19610. Official code: PanBikang/PromptFolio, 8f729aa. A mixture of two unit features is
shorter than one; the code does not scale it to unit length (`normalise`), and has a constant θ, while the paper derives
the best one. Its single optimiser passes momentum from client to client, which is not possible if clients train in
parallel.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

import torch
from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Task
from fpl_tune.methods._averaging import TwoContexts


@fl.dataclass
class PromptFolio(TwoContexts):
    """Client i compares images with t = (1 - θ) ĝ(p_G) + θ ĝ(p_i), where p_G is averaged and p_i is personal.

    theta: θ, the share of the client's own prompt, in [0, 1]; 0 is PromptFL, 1 is CoOp.
    n_ctx: number of context tokens of either prompt, >= 1: 16 in the ports, 8 in the released scripts.
    normalise: scale t to unit length. It has no effect if θ is 0 or 1.
    """

    theta: fl.Share = 0.4
    n_ctx: fl.AtLeastOne = 16
    normalise: bool = False

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        both = task.encode_prompts(torch.stack([local.params["prompt"], local.params["own"]], 1))  # [C, 2, K, D]
        text = torch.lerp(both[:, 0], both[:, 1], self.theta)
        return fl.cosine_logits(task.scale, batch.image, fl.normalize(text) if self.normalise else text)
