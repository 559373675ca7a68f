"""ProGrad, federated: PromptFL whose steps never contradict zero-shot CLIP as a teacher.

Zhu, Niu, Han, Wu, Zhang: Prompt-aligned Gradient for Prompt Tuning, ICCV 2023, https://arxiv.org/abs/2205.14865 (code:
BeierZhu/Prompt-align, 1b76203). The federated port of FLIP (0-ml/flip, ec3a848) adds the teacher's loss without
projection, which is distillation: `form="distil"`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Task, Tree
from fpl_tune.methods._averaging import OneContext
from fpl_tune.methods._blocks import hand_logits


@fl.dataclass
class ProGrad(OneContext):
    """One averaged context, whose steps never contradict a teacher, the hand-written prompts.

    - g_a is the gradient of the cross-entropy.
    - g_b is the gradient of the teacher's loss, T² times the cross-entropy of predictions with the teacher's, both at
      temperature T. There are no steps along g_b itself.
    - If ⟨g_a, g_b⟩ < 0, a client steps along g_a - λ ⟨g_a, ĝ_b⟩ ĝ_b, else along g_a.

    lam: λ, share of the conflicting component that is removed, in [0, 1]; 0 is PromptFL. A teacher with broad
        predictions, such as the embedded CLIP with its logit scale of 23, conflicts with nearly every step towards the
        labels.
    temperature: T, > 0.
    n_ctx: number of context tokens, >= 1, and at most the number of tokens of `words`.
    words: text that the context starts from; empty: N(0, 0.02²).
    form: `project`, or `distil`: cross-entropy + λ · the teacher's loss.
    """

    lam: fl.Share = 1.0
    temperature: Annotated[fl.Positive, Field(allow_inf_nan=False)] = 1.0
    n_ctx: fl.AtLeastOne = 4
    words: str = "a photo of a"
    form: Literal["project", "distil"] = "project"

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.form == "distil":
            fit, teach = self._losses(task, local, batch)
            return fit + self.lam * teach, local.buffers
        with torch.enable_grad():
            leaves = fl.fresh_leaves(local.params)
            fit, teach = self._losses(task, local._replace(params=leaves), batch)
            (g_a,) = torch.autograd.grad(fit.sum(), list(leaves.values()), retain_graph=True)
            (g_b,) = torch.autograd.grad(teach.sum(), list(leaves.values()))
        return fl.with_gradient(fit.detach(), local.params, {"prompt": self.aligned(g_a, g_b)}), local.buffers

    def _losses(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the labels and T² times that with the teacher, each [C]."""
        logits = self.logits(task, local, batch)
        teacher = (hand_logits(task, batch.image) / self.temperature).softmax(-1)
        teach = -(teacher * (logits / self.temperature).log_softmax(-1)).sum(-1) * self.temperature**2
        return fl.cross_entropy(logits, batch), fl.mean_over(teach, batch.mask)

    def aligned(self, g_a: Tensor, g_b: Tensor) -> Tensor:
        """g_a [C, ...] without the share λ of its component against g_b [C, ...].

        If the context equals the teacher's, g_b is rounding noise without a meaningful direction. A g_b of less than
        100 rounding errors of g_a is therefore ignored. The official code projects on it.
        """
        along = (g_a * g_b).flatten(1).sum(1)
        a, b = (g.flatten(1).square().sum(1) for g in (g_a, g_b))
        eps = torch.finfo(g_b.dtype).eps
        share = torch.where(b > (100 * eps) ** 2 * a, self.lam * along.clamp(max=0) / b, 0.0)
        return g_a - share.view(-1, *([1] * (g_a.ndim - 1))) * g_b
