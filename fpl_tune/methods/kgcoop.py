"""KgCoOp, federated: PromptFL whose text features are kept close to those of the hand-written prompts.

Yao, Zhang, Xu: Visual-Language Prompt Tuning with Knowledge-guided Context Optimization, CVPR 2023,
https://arxiv.org/abs/2303.13283 (code: htyao89/KgCoOp, c43ccc3); federated in FedTPG (Qiu et al., ICLR 2024,
https://arxiv.org/abs/2310.06123), which starts from a random context, and in FLIP (0-ml/flip, ec3a848), whose weight is
1 where the original's is 8. The hand-written prompts are `clip.template=dataset`; DTD's are "a photo of a {}, a type of
texture." in the code.
"""

from __future__ import annotations

from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Task, Tree
from fpl_tune.methods._averaging import OneContext, Weights


@fl.dataclass
class KgCoOp(OneContext):
    """Cross-entropy + w · (1 - mean_k cos(ĝ_k(V), ĝ_k(hand))) of one averaged context V.

    w: weight of the term, >= 0; 0 is PromptFL. The larger, the closer to zero-shot CLIP. Gradients of the cross-entropy
        grow with the scale of the logits: 8 with the embedded CLIP's scale of 23 is like 35 with CLIP's 100, and keeps
        the predictions at those of zero-shot CLIP with every learning rate.
    n_ctx: number of context tokens, >= 1, and at most the number of tokens of `words`.
    words: text that the context starts from; empty: N(0, 0.02²), as in FedTPG.
    weights: average over the cohort by `size` or `uniform` (FedTPG).
    """

    w: fl.Weight = 8.0
    n_ctx: fl.AtLeastOne = 4
    words: str = "a photo of a"
    weights: Weights = "size"

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        text = self.representation(task, local, batch.image)
        fit = fl.cross_entropy(fl.cosine_logits(task.scale, batch.image, text), batch)
        away = 1 - (text * task.hand_text).sum(-1).mean(-1)
        return fit + self.w * away, local.buffers
