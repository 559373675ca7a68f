"""FedPGP: a shared prompt plus a personal low-rank term, with a contrastive loss between them and CLIP.

Cui, Li, Wang, Shi: Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024,
https://arxiv.org/abs/2405.09771. The released code (TianyuCuiOvO/FedPGP, d43045b) differs: the anchor is the text
of a placeholder prompt (here `anchor="placeholder"`), and its script trains two prompts (`copies=2`) with rank 8,
μ = 0.5 and τ = 0.5. τ is not given in the paper; the code's is the default. The ablated losses of App. A.2 are printed
with the wrong signs (`signs="printed"`: they pull global and personal prompts together). The code's optimiser passes
its momentum from client to client, which is not possible if clients train in parallel.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging


@fl.dataclass
class FedPGP(FederatedAveraging):
    """Client i predicts with p_G + U_i V_i; p_G is averaged, U_i [l, b] and V_i [b, d] are personal (Eqs. 9 to 13).

    mu: μ, weight of the contrastive loss, >= 0; 0 is PromptFL with a personal term (Fig. 2).
    rank: b, the bottleneck of the personal term, at most min(l, d), or "full" for a free Δ [l, d] (Tables 6, 11);
        0 is no personal term, and PromptFL with μ = 0.
    temperature: τ of the contrast between the pairs, > 0.
    pairs: `both`; `negative`: only global against personal text, L = cos(z_G, z_i) (Tables 6, 10); `positive`: only
        global with CLIP's text, L = 1 - cos(z_G, z_C) (Table 7).
    anchor: z_C from the `hand`-written prompt, or from a `placeholder` context of n_ctx times X.
    n_ctx: number of context tokens, >= 1.
    signs: of the ablated losses: as `meant` and written here, or as `printed`: 1 - cos(z_G, z_i) and cos(z_G, z_C).
    copies: number of prompts of a client, >= 1, each with a logit for every class: [C, B, copies · K]. Labels refer to
        columns of the first, so that the others are wrong answers in training and evaluation. NUM_PROMPT is 2 in the
        script.

    Example:
        >>> import torch
        >>> anchor, apart = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])  # [K, D] unit features of one class
        >>> method = FedPGP(temperature=0.5)
        >>> method.contrast(z_g=anchor, z_i=apart, z_c=anchor)  # log(1 + exp((0 - 1) / 0.5))
        tensor([0.1269])
        >>> method.contrast(z_g=anchor, z_i=anchor, z_c=anchor)  # log 2
        tensor([0.6931])
    """

    leaf_groups = (
        fl.Group("u", "U, whose product with V moves little; the paper has one rate (optim=fedpgp)", 1.0),
        fl.Group("v", "V"),
    )
    mu: fl.Weight = 1.0
    rank: int | Literal["full"] = 8
    temperature: fl.Positive = 0.5
    pairs: Literal["both", "negative", "positive"] = "both"
    anchor: Literal["hand", "placeholder"] = "hand"
    n_ctx: fl.AtLeastOne = 16
    signs: Literal["meant", "printed"] = "meant"
    copies: fl.AtLeastOne = 1

    def __post_init__(self) -> None:
        fits = self.signs == "meant" or self.pairs != "both"
        fl.require(fits, "signs", "must be 'meant' unless method.pairs is negative or positive", self.signs)
        fits = self.rank == "full" or 0 <= self.rank <= self.n_ctx
        fl.require(fits, "rank", f"must be 'full' or lie between 0 and method.n_ctx = {self.n_ctx}", self.rank)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        fits = self.rank == "full" or self.rank <= sizes.text_width
        fl.require(fits, "rank", f"must be at most the width of a context token, {sizes.text_width}", self.rank)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        lead = () if self.copies == 1 else (self.copies,)
        prompt = fl.new_context(task, self.n_ctx, rng, *lead)
        if self.rank == "full":
            own = {"delta": fl.new_context(task, self.n_ctx, rng, *lead)}
        else:
            u = 0.02 * torch.randn(*lead, self.n_ctx, self.rank, generator=rng)
            own = {"u": u.to(prompt), "v": fl.new_context(task, self.rank, rng, *lead)}
        return State({"prompt": prompt}, {name: fl.replicate(leaf, task.n_clients) for name, leaf in own.items()}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        if self.mu > 0 and self.anchor == "placeholder":
            text = task.encode_prompts(task.words("X")[:1].expand(self.n_ctx, -1))
            local.buffers["anchor"] = fl.replicate(text if self.copies == 1 else text.unsqueeze(0), len(clients))
        return local

    def personal(self, local: Local) -> Tensor:
        """[C, l, d] contexts with which the clients predict; [C, copies, l, d] if there are several."""
        train = local.params
        return train["prompt"] + (train["delta"] if self.rank == "full" else train["u"] @ train["v"])

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self._logits(task, batch, task.encode_prompts(self.personal(local)))

    def _logits(self, task: Task, batch: Batch, text: Tensor) -> Tensor:
        """Text features [C, K, D] or [C, copies, K, D] -> [C, B, K] or [C, B, copies · K]."""
        return fl.cosine_logits(task.scale, batch.image, text.flatten(1, -2))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.mu == 0:
            return fl.cross_entropy(self.logits(task, local, batch), batch), local.buffers
        both = torch.stack([self.personal(local), local.params["prompt"]], 1)
        z_i, z_g = task.encode_prompts(both).unbind(1)  # [C, (copies,) K, D]
        fit = fl.cross_entropy(self._logits(task, batch, z_i), batch)
        z_c = task.hand_text if self.anchor == "hand" else local.buffers["anchor"]
        return fit + self.mu * self.contrast(z_g, z_i, z_c).flatten(1).mean(1), local.buffers

    def contrast(self, z_g: Tensor, z_i: Tensor, z_c: Tensor) -> Tensor:
        """[C, ..., K] losses of Eq. 12 for every class.

        The arguments are unit text features of global and personal prompts [C, ..., K, D] and of the anchor [K, D], or
        of one anchor per client.
        """
        to_anchor, to_personal = (z_g * z_c).sum(-1), (z_g * z_i).sum(-1)
        if self.pairs != "both":
            one = to_personal if self.pairs == "negative" else to_anchor
            return one if (self.pairs == "negative") == (self.signs == "meant") else 1 - one
        # -log of the positive's share of two exponentials
        return F.softplus((to_personal - to_anchor) / self.temperature)
