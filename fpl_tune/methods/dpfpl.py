"""DP-FPL: a global and a personal prompt; a step updates a low-rank part of the latter.

Tran, Sun, Patterson, Milanova: Privacy-Preserving Personalized Federated Prompt Learning for Multimodal Large Language
Models, ICLR 2025, https://arxiv.org/abs/2501.13904. Official code: linhhtran/DP-FPL, cce74b4. It adds the last term of
the projection that the paper takes away, divides the personal gradient by ten (`form="released"` has both), and
averages the global prompt's gradient over all clients, uniformly, after every batch; here clients train copies that are
averaged once a round.

Its accounting is not valid: the gradient of a batch's mean is clipped to C, of which one image can change up to 2 C,
not C / B, and noise is added in every step of a round, but only rounds are counted. `noise` is that noise, to show its
effect; no ε is proven. For a proven ε, wrap the method: the study `dpfpl_dp` clips and noises the change of a round,
including that of the personal prompt.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._averaging import TwoContexts, Weights
from fpl_tune.methods._noise import new_keys, normal

_DELTA, _ROUNDS = 1e-5, 100
"""Of the released noise."""


@fl.dataclass
class DPFPL(TwoContexts):
    """Client i predicts with p_G + p_i, where p_G is averaged and p_i is personal.

    A step writes p_i = U V + R and moves it by the gradients of U and V:
    - U [l, r] is orthonormal and spans p_i times r random directions.
    - V [r, d] is orthonormal and spans the rows of Uᵀ p_i.
    - With g the gradient of the prompt, p_i moves by g VᵀV + UUᵀ g - UUᵀ g VᵀV, the projection of g.

    rank: r, 1 to the smaller size of a prompt, or "full": p_i moves by g.
    n_ctx: l, number of context tokens, >= 1.
    form: `meant`, or `released`: the last term is added instead, and the sum divided by 10.
    noise: the released code's "noise", its ε, > 0. The smaller, the noisier; inf draws none. Gradients of the prompts
        are clipped to `clip` and receive noise of deviation √(100 ln 10⁵) / ε · clip / B in every number, that of p_G
        divided by √N.
    clip: C, the largest norm of a noised gradient, > 0; not used without noise.
    weights: of the server's mean, by `size` or, as in the released code, `uniform`.
    """

    newer = ("weights",)

    rank: int | Literal["full"] = 8
    n_ctx: fl.AtLeastOne = 16
    form: Literal["meant", "released"] = "meant"
    noise: fl.Positive = math.inf
    clip: Annotated[fl.Positive, Field(allow_inf_nan=False)] = 10.0
    weights: Weights = "size"

    def __post_init__(self) -> None:
        fits = self.rank == "full" or 1 <= self.rank <= self.n_ctx
        fl.require(fits, "rank", f"must be 'full' or lie between 1 and method.n_ctx = {self.n_ctx}", self.rank)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        fits = self.rank == "full" or self.rank <= sizes.text_width
        fl.require(fits, "rank", f"must be at most the width of a context token, {sizes.text_width}", self.rank)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return super().start(task, state, clients)._replace(buffers=new_keys(task, clients))

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(
            task.scale, batch.image, task.encode_prompts(local.params["prompt"] + local.params["own"])
        )

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        with torch.enable_grad():
            leaves = fl.fresh_leaves({"prompt": local.params["prompt"] + local.params["own"]})
            zero = {"own": torch.zeros_like(leaves["prompt"])}
            value = fl.cross_entropy(self.logits(task, Local({**leaves, **zero}, {}), batch), batch)
            (gradient,) = torch.autograd.grad(value.sum(), [leaves["prompt"]])
        keys, std = local.buffers, self._std(batch)
        moves = {"own": self.personal_gradient(gradient, local.params["own"].detach(), keys, std)}
        moves["prompt"] = self._noised(gradient, keys, 1, std / math.sqrt(task.n_clients))
        return fl.with_gradient(value, local.params, moves), {**keys, "drawn": keys["drawn"] + 1}

    def _std(self, batch: Batch) -> Tensor:
        """[C] standard deviation of the released noise; 0 without noise."""
        scale = 0.0 if math.isinf(self.noise) else math.sqrt(_ROUNDS * -math.log(_DELTA)) / self.noise * self.clip
        return scale / batch.mask.sum(1).clamp(min=1)

    def _noised(self, gradient: Tensor, keys: Tree, stream: int, std: Tensor) -> Tensor:
        """Clips gradients [C, ...], and adds noise of standard deviation `std` [C] to every number."""
        if math.isinf(self.noise):
            return gradient
        (bounded,) = fl.clipped(self.clip, [gradient])
        return bounded + (std.view(-1, 1, 1) * normal(keys, stream, *gradient.shape[1:])).to(gradient)

    def personal_gradient(self, gradient: Tensor, own: Tensor, keys: Tree, std: Tensor) -> Tensor:
        """[C, l, d] the gradient that moves p_i, from the gradient of the prompt [C, l, d] and p_i itself."""
        if self.rank == "full":
            return self._noised(gradient, keys, 2, std)
        probe = normal(keys, 0, own.shape[-1], self.rank).to(own)
        u = torch.linalg.qr(own @ probe).Q  # [C, l, r]
        v = torch.linalg.qr(own.mT @ u).Q.mT  # [C, r, d]
        g_u = self._noised(gradient @ v.mT, keys, 2, std)
        g_v = self._noised(u.mT @ gradient, keys, 3, std)
        both = u @ (u.mT @ g_u) @ v
        if self.form == "meant":
            return g_u @ v + u @ g_v - both
        return (g_u @ v + u @ g_v + both) / 10
