"""VPT, federated: averaged prompts in the image tower, with hand-written sentences.

Jia, Tang, Chen, Cardie, Belongie, Hariharan, Lim: Visual Prompt Tuning, ECCV 2022, https://arxiv.org/abs/2203.12119;
federated in FedMGP (Bo et al., NeurIPS 2025, https://arxiv.org/abs/2511.00480; code: weihao-bo/FedMGP, 3a02697), whose
settings are the defaults.
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._blocks import hand_logits
from fpl_tune.methods._deep import DeepPrompts, see, visual_prompts


@fl.dataclass
class VPT(DeepPrompts):
    """J visual prompts [J, n, w] after the patches, one for each of the first J blocks of the image tower.

    n_tokens: n, tokens of a prompt, >= 1.
    depth: J, >= 1 and at most the number of blocks; 1 prompts the input only (shallow), more replace the tokens at
        the inputs of the next blocks (deep).
    """

    requires = ("vit",)
    represents = "images"
    n_tokens: fl.AtLeastOne = 4
    depth: fl.AtLeastOne = 1

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State({"visual": visual_prompts(task, self.n_tokens, self.depth, rng)}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return see(task, image, local.params["visual"])
