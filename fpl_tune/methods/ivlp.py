"""IVLP, federated: independent prompts in both towers, averaged.

Rasheed, Khattak, Maaz, Khan, Khan: Fine-tuned CLIP Models are Efficient Video Learners, CVPR 2023,
https://arxiv.org/abs/2212.03640; as a baseline of PromptSRC (code: muzairkhattak/PromptSRC, bb95c77: 4 tokens, depth 9)
and, federated, of FedMGP (Bo et al., NeurIPS 2025, https://arxiv.org/abs/2511.00480; code: weihao-bo/FedMGP, 3a02697),
whose settings are the defaults. FedTPG's "VLP", which adds the visual tokens after the first LayerNorm, is not offered.
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._deep import DeepPrompts, both_features, both_prompts


@fl.dataclass
class IVLP(DeepPrompts):
    """J text prompts [J, l, d] and J visual prompts [J, n, w], one pair for each of the first J blocks.

    n_ctx: l, tokens of a text prompt, >= 1.
    n_tokens: n, tokens of a visual prompt, >= 1.
    depth: J, >= 1 and at most the number of blocks of either tower; 1 prompts the inputs only (shallow).
    words: text whose first `n_ctx` words are the start of the first text prompt, while the others stay between it and
        the class name; if empty, N(0, 0.02²), as for the deeper ones.
    """

    n_ctx: fl.AtLeastOne = 2
    n_tokens: fl.AtLeastOne = 2
    depth: fl.AtLeastOne = 1
    words: str = "a photo of a"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared = both_prompts(task, self.n_ctx, self.n_tokens, self.depth, self.words, rng)
        return State(shared, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, *both_features(task, local.params, batch.image, self.words))
