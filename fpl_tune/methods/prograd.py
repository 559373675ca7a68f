"""ProGrad, federated: PromptFL whose steps never go against what zero-shot CLIP would teach.

Zhu, Niu, Han, Wu, Zhang: Prompt-aligned Gradient for Prompt Tuning, ICCV 2023, https://arxiv.org/abs/2205.14865 (code:
BeierZhu/Prompt-align, 1b76203). The federated port of FLIP (0-ml/flip, ec3a848) adds the teacher's loss and projects
nothing, which is distillation: `form="distil"`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, State, Task, Tree, cosine_logits, cross_entropy, mean_over, require
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._checks import require_positive
from fpl_tune.methods._gradients import free, with_gradient
from fpl_tune.methods._layers import word_context


@dataclass(frozen=True)
class ProGrad(FederatedAveraging):
    """One averaged context; where <g_a, g_b> < 0, a client steps along g_a - λ <g_a, ĝ_b> ĝ_b, elsewhere along g_a.

    g_a is the gradient of the cross-entropy, g_b of the teacher's loss, T² times the cross-entropy of predictions with
    those of the hand-written prompts, both at temperature T, which itself is never descended.

    lam: λ, share of the conflicting component that is removed, in [0, 1]; 0 is PromptFL. A teacher with broad
        predictions, as the embedded CLIP's at its logits' scale of 23, conflicts with nearly every step to the labels.
    temperature: T, > 0.
    n_ctx: number of context tokens, >= 1, and at most the number of tokens of `words`.
    words: text that the context starts from; empty: N(0, 0.02²).
    form: `project`, or `distil`: cross-entropy + λ · the teacher's loss.
    """

    lam: float = 1.0
    temperature: float = 1.0
    n_ctx: int = 4
    words: str = "a photo of a"
    form: Literal["project", "distil"] = "project"

    def __post_init__(self) -> None:
        require(0 <= self.lam <= 1, "lam", "must lie in [0, 1]", self.lam)
        fits = math.isfinite(self.temperature) and self.temperature > 0
        require(fits, "temperature", "must be a finite number > 0", self.temperature)
        require_positive(self, "n_ctx")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={"prompt": word_context(task, self.words, self.n_ctx, rng)}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.text(local.train["prompt"]))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.form == "distil":
            fit, teach = self._losses(task, local, batch)
            return fit + self.lam * teach, local.fixed
        with torch.enable_grad():
            leaves = free(local.train)
            fit, teach = self._losses(task, local._replace(train=leaves), batch)
            (g_a,) = torch.autograd.grad(fit.sum(), list(leaves.values()), retain_graph=True)
            (g_b,) = torch.autograd.grad(teach.sum(), list(leaves.values()))
        return with_gradient(fit.detach(), local.train, {"prompt": self.aligned(g_a, g_b)}), local.fixed

    def _losses(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the labels and T² times that with the teacher, each [C]."""
        logits = self.logits(task, local, batch)
        hand = cosine_logits(task.scale, batch.image, task.hand_text.expand(len(batch.image), -1, -1))
        teacher = (hand / self.temperature).softmax(-1)
        teach = -(teacher * (logits / self.temperature).log_softmax(-1)).sum(-1) * self.temperature**2
        return cross_entropy(logits, batch), mean_over(teach, batch.mask)

    def aligned(self, g_a: Tensor, g_b: Tensor) -> Tensor:
        """g_a [C, ...] without λ of its component against g_b [C, ...]."""
        along = (g_a * g_b).flatten(1).sum(1)
        length = g_b.flatten(1).square().sum(1).clamp(min=torch.finfo(g_b.dtype).tiny)
        share = self.lam * along.clamp(max=0) / length
        return g_a - share.view(-1, *([1] * (g_a.ndim - 1))) * g_b
