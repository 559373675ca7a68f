"""FOCoOp: contexts of classes and of everything else, trained against the worst features near them.

Liao, Liu, Qian, Zhou, Xu, Wang, Chen, Zheng, Chua: FOCoOp: Enhancing Out-of-Distribution Robustness in Federated Prompt
Learning for Vision-Language Models, ICML 2025, https://arxiv.org/abs/2506.16218. Official code: PengyangZhou/FOCoOp,
f30f6f3. It ships with `dro=False, uot=False`, which is `form="released"`. With these switches on, the second ascent is
penalised by the size of the first one's noise instead of its own; γ falls with every step until it divides by zero; and
transported contexts are not normalised, so they shrink by the number of classes. Here each noise has its own penalty, γ
is constant, and a transported context is a mean. The words that the code appends to the outer contexts, those of
WordNet least similar to the classes, are not shipped: an outer context is a whole sentence. The FPR95 that the paper
prints is, in the code, the share of known images that are missed if 5 % of the unknown ones pass; `test/fpr95` is the
share of unknown images that pass if 95 % of the known ones do.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging

_NO_DIRECTION = 1e-4
"""Length of gradients below which steps are shorter: in single precision, these are rounding noise. The code has 1e-8.
"""


@fl.dataclass
class FOCoOp(FederatedAveraging):
    """Contexts of the K classes, and M outer contexts without a class.

    - (1 - φ) P_i + φ P_G [K, l, d] are a client's contexts of the classes. P_i is personal, P_G is averaged.
    - O [M, l, d] are the outer contexts, which all clients share.
    - t and u are the features of the two. Predictions run over the K classes, the loss over all K + M.

    The loss of an image is ℓ = CE + ½ (log Σ_m exp(o_m) - mean_m o_m), with o the outer logits. It is taken under
    noise:
    - δ on t ascends CE - γ mean ‖δ_k‖.
    - ε on u then ascends CE + the other term - γ mean ‖ε_m‖.
    - Each ascent has `steps` steps of length `rate` along the gradient.

    The loss of a batch is τγ log mean exp(ℓ / τγ) over its images. It lies between their mean and their maximum.

    The server transports all clients' outer contexts onto the averaged P_G at squared Euclidean cost, with marginals
    penalised by 0.1 KL, and splits them into two clusters by their transported mass:
    - Those with more mass belong to the classes: P_G ← ema · P_G + (1 - ema) · their transported mean.
    - Among the others, the M with the least mass are the new O.

    n_ctx: l, number of context tokens, >= 1.
    outer: M, >= 2.
    share: φ, the share of P_G, in [0, 1].
    gamma: γ > 0. The larger, the smaller the noise, and the closer the loss of a batch to the mean over its images.
    tau: τ > 0.
    steps: number of steps of either ascent, >= 1.
    rate: length of a step, > 0 and at most 0.5 / `steps`, as features have length one. The code has an option 0.001 but
        uses 1, so that its noise is four times as long as the features, with losses of some hundreds.
    ema: share of the averaged P_G that is kept, in [0, 1].
    form: as `meant`, or as `released`: plain cross-entropy over K + M, and averages.
    """

    requires = ("same_classes",)

    n_ctx: fl.AtLeastOne = 16
    outer: Annotated[int, Field(ge=2, le=10_000)] = 100
    share: fl.Share = 0.2
    gamma: fl.Positive = 10.0
    tau: fl.Positive = 0.1
    steps: fl.AtLeastOne = 4
    rate: fl.Positive = 1e-3
    ema: fl.Share = 0.5
    form: Literal["meant", "released"] = "meant"

    def __post_init__(self) -> None:
        fits = self.form == "released" or self.rate * self.steps <= 0.5
        rule = f"must be at most 0.5 / method.steps, here {0.5 / self.steps:g}"
        fl.require(fits, "rate", rule, self.rate, "Longer noise drowns features, whose length is one.")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        prompt, outer = (fl.new_context(task, self.n_ctx, rng, n) for n in (task.n_classes, self.outer))
        return State({"prompt": prompt, "outer": outer}, {"own": fl.replicate(prompt, task.n_clients)}, {})

    def _text(self, task: Task, local: Local) -> Tensor:
        """[C, K, D] unit features of the classes."""
        mixed = torch.lerp(local.params["own"], local.params["prompt"], self.share)
        return task.encode_prompts(mixed, per_class=True)

    def _both(self, task: Task, local: Local) -> tuple[Tensor, Tensor]:
        """Unit features [C, K, D] of the classes and [C, M, D] of the outer contexts."""
        return self._text(task, local), task.encode_prompts(local.params["outer"], names=("",))[:, :, 0]

    def certainty(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """Probability of the K classes among K + M (NegLabel, Jiang et al., ICLR 2024).

        The code uses the share in the sum of the logits, without exponentials.
        """
        logits = fl.cosine_logits(task.scale, batch.image, torch.cat(self._both(task, local), 1))
        return logits.softmax(-1)[..., : task.n_classes].sum(-1)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, batch.image, self._text(task, local))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        text, outer = self._both(task, local)
        if self.form == "released":
            both = torch.cat([text, outer], 1)
            return fl.cross_entropy(fl.cosine_logits(task.scale, batch.image, both), batch), local.buffers
        image = task.scale * fl.normalize(batch.image)
        noise = self._worst(image, text.detach(), outer.detach(), batch)
        fit, apart = _terms(image, text + noise[0], outer + noise[1], batch)
        values, softness = fit + apart / 2, self.tau * self.gamma
        most = torch.where(batch.mask, values, 0).amax(1).detach()
        raised = ((values - most[:, None]) / softness).exp()
        tiny = torch.finfo(values.dtype).tiny
        return most + softness * fl.mean_over(raised, batch.mask).clamp(min=tiny).log(), local.buffers

    def _worst(self, image: Tensor, text: Tensor, outer: Tensor, batch: Batch) -> list[Tensor]:
        """Noise on features [C, K, D] and [C, M, D] that raises the loss of images [C, B, D], with the scale s."""
        noise = [torch.zeros_like(text), torch.zeros_like(outer)]
        for which in (0, 1):
            for _ in range(self.steps):
                with torch.enable_grad():
                    moved = noise[which].requires_grad_()
                    fit, apart = _terms(image, text + noise[0], outer + noise[1], batch)
                    gain = fl.mean_over(fit + apart if which else fit, batch.mask)
                    # Smoothed at zero, where noise is rounding noise without a direction.
                    lengths = (moved.square().sum(-1) + (self.rate / 100) ** 2).sqrt()
                    penalty = self.gamma * lengths.mean(1)
                    (uphill,) = torch.autograd.grad((gain - penalty).sum(), moved)
                length = torch.linalg.vector_norm(uphill, dim=-1, keepdim=True)
                noise[which] = moved.detach() + self.rate * uphill / length.clamp(min=_NO_DIRECTION)
        return noise

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        merged = super().merge(task, state, clients, local)
        if self.form == "released":
            return merged
        prompt, pool = merged.shared["prompt"], local.params["outer"].flatten(0, 1)  # [K, l, d], [C M, l, d]
        plan = transport_plan(torch.cdist(pool.flatten(1), prompt.flatten(1)).square())
        mass = plan.sum(1)
        ordered, order = mass.sort()
        inside = mass > ordered[_split(ordered)]
        moved = plan * inside[:, None]
        mean = torch.tensordot(moved.T / moved.sum(0)[:, None].clamp(min=torch.finfo(plan.dtype).tiny), pool, 1)
        mixed = torch.where(inside.any(), torch.lerp(mean, prompt, self.ema), prompt)
        least = order[torch.arange(self.outer, device=pool.device) % (~inside).sum()]  # repeated if there are too few
        return merged._replace(shared={"prompt": mixed, "outer": pool[least]})


def _terms(image: Tensor, text: Tensor, outer: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """[C, B] each: cross-entropy over classes and outer features, and non-uniformity of the outer logits."""
    logits = image @ torch.cat([text, outer], 1).mT  # [C, B, K + M]
    fit = F.cross_entropy(logits.flatten(0, 1), batch.label.flatten(), reduction="none").view_as(batch.label)
    outside = logits[..., text.shape[1] :]
    return fit, outside.logsumexp(-1) - outside.mean(-1)


def transport_plan(cost: Tensor, hold: float = 0.1, iterations: int = 1000) -> Tensor:
    """T [m, n] >= 0 of least Σ T cost / max cost + hold · (KL(T 1 | 1/m) + KL(Tᵀ 1 | 1/n)).

    Majorisation-minimisation (Chapel, Flamary, Wu, Févotte, Gasso: Unbalanced Optimal Transport through Non-negative
    Penalized Linear Regression, NeurIPS 2021), which needs no entropy.
    """
    m, n = cost.shape
    tiny = torch.finfo(cost.dtype).tiny
    kernel = (-cost / cost.max().clamp(min=tiny) / (2 * hold)).exp()
    plan = torch.full_like(cost, 1 / (m * n))
    for _ in range(iterations):
        gives = (m * plan.sum(1, keepdim=True)).clamp(min=tiny).rsqrt()
        takes = (n * plan.sum(0, keepdim=True)).clamp(min=tiny).rsqrt()
        plan = plan * kernel * gives * takes
    return plan


def _split(ordered: Tensor) -> Tensor:
    """Last index of the lower one of two clusters of ascending numbers with the least variance within clusters."""
    n = torch.arange(1, len(ordered), device=ordered.device)
    away = ordered.cumsum(0)[:-1] - n * ordered.mean()
    return (away.square() / (n * (len(ordered) - n))).argmax()
