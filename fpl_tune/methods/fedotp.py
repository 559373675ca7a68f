"""FedOTP: a global and a local prompt share an image's patches by partial optimal transport.

Li, Huang, Wang, Shi: Global and Local Prompts Cooperation via Optimal Transport for Federated Learning, CVPR 2024,
https://arxiv.org/abs/2403.00041. Official code: HongxiaLee/FedOTP, 9948611. It stops the iteration when the error,
averaged over the batch, is small, or after 100 steps. Here the number of steps is fixed, so that clients are
independent, and the iteration runs in double precision, since exp(-1 / ε) underflows in half precision. Its optimiser
passes its momentum from client to client, which is not possible if clients train in parallel.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

import torch
from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Task
from fpl_tune.methods._averaging import TwoContexts
from fpl_tune.methods._transport import Entropy, transported


@fl.dataclass
class FedOTP(TwoContexts):
    """Logit of a class: s · Σ_mn T_mn · cos(patch_m, text_n), n the global or the local prompt; T has no gradient.

    gamma: γ, share of the patches' mass that is transported, in (0, 1]; 1 is balanced transport.
    epsilon: weight of the entropy, >= 0.005, so that exp(-2 / ε) does not underflow: 0.01 in the few-shot scripts, 0.1
        in CIFAR's. The larger, the more uniform T.
    iterations: number of iterations, >= 1. With a small epsilon, patches may exceed their mass until convergence.
    n_ctx: number of context tokens of either prompt, >= 1.
    """

    needs = "patches"

    gamma: fl.Fraction = 0.8
    epsilon: Entropy = 0.01
    iterations: fl.AtLeastOne = 100
    n_ctx: fl.AtLeastOne = 16

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.encode_prompts(torch.stack([local.params["prompt"], local.params["own"]], 1))  # [C, 2, K, D]
        return transported(task.scale, batch.image, text, self.gamma, self.epsilon, self.iterations)
