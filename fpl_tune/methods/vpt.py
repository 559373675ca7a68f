"""VPT, federated: prompts in the image tower, averaged; sentences are hand-written.

Jia, Tang, Chen, Cardie, Belongie, Hariharan, Lim: Visual Prompt Tuning, ECCV 2022, https://arxiv.org/abs/2203.12119;
federated in FedMGP (Bo et al., NeurIPS 2025, https://arxiv.org/abs/2511.00480; code: weihao-bo/FedMGP, 3a02697), whose
settings are the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, Sizes, State, Task, cosine_logits
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._checks import require_positive, require_vit
from fpl_tune.methods._deep import require_depth, see, visual_prompts


@dataclass(frozen=True)
class VPT(FederatedAveraging):
    """J visual prompts [J, n, w] behind the patches, one for each of the first J blocks of the image tower.

    n_tokens: n, tokens of a prompt, >= 1.
    depth: J, >= 1 and at most the number of blocks; 1 prompts the input only (shallow), more replace the tokens at
        the inputs of the next blocks (deep).
    """

    needs: ClassVar[Literal["pooled", "patches", "pixels"]] = "pixels"
    n_tokens: int = 4
    depth: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "n_tokens", "depth")

    def check(self, sizes: Sizes) -> None:
        require_vit(sizes, "vpt")
        require_depth(sizes, self.depth, text=False)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State({"visual": visual_prompts(task, self.n_tokens, self.depth, rng)}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image = see(task, batch.image, local.train["visual"])
        return cosine_logits(task.scale, image, task.hand_text.expand(len(image), -1, -1))
