"""FedPGP: a shared prompt plus a personal low-rank term, held near CLIP and apart from one another by contrast.

Cui, Li, Wang, Shi: Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024,
https://arxiv.org/abs/2405.09771. The released code (TianyuCuiOvO/FedPGP, d43045b) differs: the anchor is the text
of a placeholder prompt (here `anchor="placeholder"`), and its script trains with rank 8, μ = 0.5 and τ = 0.5. τ is
not given in the paper; the code's is the default. The ablated losses of App. A.2 are printed with the signs turned
round (they would pull global and personal prompts together); here they have the signs of what the text says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fpl_tune.method import (
    Batch,
    Local,
    Method,
    Sizes,
    State,
    Task,
    Traffic,
    Tree,
    average,
    cosine_logits,
    count,
    cross_entropy,
    new_context,
    put,
    require,
    spread,
)


@dataclass(frozen=True)
class FedPGP(Method):
    """Client i predicts with p_G + U_i V_i; p_G is averaged, U_i [l, b] and V_i [b, d] stay (Eqs. 9 to 13).

    mu: μ, weight of the contrastive loss, >= 0; 0 is PromptFL with a personal term (Fig. 2).
    rank: b, the bottleneck of the personal term, at most min(l, d), or "full" for a free Δ [l, d] (Tables 6, 11);
        0 is no personal term, and PromptFL with μ = 0.
    temperature: τ of the contrast between the pairs, > 0.
    pairs: `both`; `negative`: only global against personal text, L = cos(z_G, z_i); `positive`: only global with
        CLIP's text, L = 1 - cos(z_G, z_C) (Table 6).
    anchor: z_C from the `hand`-written prompt, or from a `placeholder` context of n_ctx times X.
    n_ctx: number of context tokens, >= 1.
    """

    mu: float = 1.0
    rank: int | Literal["full"] = 8
    temperature: float = 0.5
    pairs: Literal["both", "negative", "positive"] = "both"
    anchor: Literal["hand", "placeholder"] = "hand"
    n_ctx: int = 16

    def __post_init__(self) -> None:
        require(math.isfinite(self.mu) and self.mu >= 0, "mu", "must be a finite number >= 0", self.mu)
        require(self.temperature > 0, "temperature", "must be > 0", self.temperature)
        require(self.n_ctx >= 1, "n_ctx", "must be >= 1", self.n_ctx)
        fits = self.rank == "full" or 0 <= self.rank <= self.n_ctx
        require(fits, "rank", f"must be 'full' or lie between 0 and method.n_ctx = {self.n_ctx}", self.rank)

    def check(self, sizes: Sizes) -> None:
        fits = self.rank == "full" or self.rank <= sizes.text_width
        require(fits, "rank", f"must be at most the width of a context token, {sizes.text_width}", self.rank)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        prompt = new_context(task, self.n_ctx, rng)
        if self.rank == "full":
            own = {"delta": new_context(task, self.n_ctx, rng)}
        else:
            u = 0.02 * torch.randn(self.n_ctx, self.rank, generator=rng)
            own = {"u": u.to(prompt), "v": new_context(task, self.rank, rng)}
        return State({"prompt": prompt}, {name: spread(leaf, task.n_clients) for name, leaf in own.items()}, {})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        own = {name: leaf[who] for name, leaf in state.personal.items()}
        return Local(train={"prompt": spread(state.shared["prompt"], len(who)), **own}, fixed={})

    def personal(self, local: Local) -> Tensor:
        """[C, l, d] what the clients predict with."""
        train = local.train
        return train["prompt"] + (train["delta"] if self.rank == "full" else train["u"] @ train["v"])

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.text(self.personal(local)))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.mu == 0:
            return cross_entropy(self.logits(task, local, batch), batch), local.fixed
        both = task.text(torch.stack([self.personal(local), local.train["prompt"]], 1))  # [C, 2, K, D]
        z_i, z_g = both.unbind(1)
        fit = cross_entropy(cosine_logits(task.scale, batch.image, z_i), batch)
        return fit + self.mu * self.contrast(z_g, z_i, self._anchor(task)).mean(-1), local.fixed

    def contrast(self, z_g: Tensor, z_i: Tensor, z_c: Tensor) -> Tensor:
        """Unit text features of global, personal [C, K, D] and anchoring [K, D] prompts -> [C, K] (Eq. 12)."""
        near, apart = (z_g * z_c).sum(-1), (z_g * z_i).sum(-1)
        if self.pairs == "negative":
            return apart
        if self.pairs == "positive":
            return 1 - near
        return F.softplus((apart - near) / self.temperature)  # -log of the positive's share of two exponentials

    def _anchor(self, task: Task) -> Tensor:
        if self.anchor == "hand":
            return task.hand_text
        with torch.no_grad():
            return task.text(task.words("X")[:1].expand(self.n_ctx, -1))

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        personal = {name: put(leaf, who, local.train[name]) for name, leaf in state.personal.items()}
        return State({"prompt": average(local.train["prompt"], task.size[who])}, personal, state.server)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(prompt=state.shared["prompt"])
        return Traffic(up=sent, down=sent)
