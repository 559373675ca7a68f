"""Fed-DPT: a text prompt per domain and visual tokens that weigh how much an image belongs to each.

Wei, Wang, Shah, Chellappa: Dual Prompt Tuning for Domain-Aware Federated Learning, 2023,
https://arxiv.org/abs/2310.03103. There is no official code. Where the paper is ambiguous, there is a field, or the
choice is stated here.
Visual tokens enter after the positional embedding and before the first LayerNorm; both kinds of prompt start from
N(0, 0.02²); text features have unit length before and after they are mixed (Eq. 6); averages over clients are uniform;
the server's state is evaluated, with text prompts without the lag of Eq. 8.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, Tree


@fl.dataclass
class FedDPT(Method):
    """n domains: text prompts [n, m, d] and visual tokens [n, w]; a client belongs to one domain.

    n_ctx: m, tokens of a text prompt, >= 1.
    text: the text prompts that a client trains. `own`: that of its domain, while others follow by momentum; `all`: all
        n prompts; `shared`: one prompt for all domains, without mixing (domain-agnostic); `hand`: none, prompts are
        hand-written (visual only).
    visual: the visual tokens that a client trains. `average`: all n tokens; `split`: that of its domain, while others
        follow by momentum; `none`: there are no tokens. Then `text` must be `shared` or `hand`; with `shared` and `ce`
        this is PromptFL, averaged uniformly.
    momentum: α of Eq. 8, in [0, 1): share of the old external prompt that a step keeps; 0 overwrites external
        prompts at the start of a round.
    visual_momentum: the same for external tokens under `split`.
    temperature: τ_d of Eq. 5, > 0; towards 0 an image uses the prompt of one domain, towards infinity the mean.
    attention: q·k of Eq. 5 with several heads. `scaled`: mean over heads of q·k / √head width, as attention itself
        scales; `raw`: their sum, the product of the whole vectors, which makes weights nearly one-hot; `cosine`: mean
        over heads of the cosine of q and k, whose sharpness depends on the temperature only.
    objective: `ce`, cross-entropy over all classes, or `cosine`, Eq. 7 with its sign corrected: 1 - cos of image and
        true class. The paper prefers the second; without negatives it pulls the classes together, and on the
        embedded world its accuracy falls with its loss, far below zero-shot, where cross-entropy's rises.
    """

    needs = "pixels"
    requires = ("vit",)
    n_ctx: fl.AtLeastOne = 16
    text: Literal["own", "all", "shared", "hand"] = "own"
    visual: Literal["average", "split", "none"] = "average"
    momentum: fl.Decay = 0.99
    visual_momentum: fl.Decay = 0.99
    temperature: fl.Positive = 0.1
    attention: Literal["scaled", "raw", "cosine"] = "scaled"
    objective: Literal["ce", "cosine"] = "ce"

    def __post_init__(self) -> None:
        fits = self.text in ("shared", "hand") or self.visual != "none"
        rule = "must be shared or hand where visual is none, as visual tokens weigh the domains"
        fl.require(fits, "text", rule, self.text)

    # -- state -----------------------------------------------------------------------------------------------

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        n, shared, personal = task.n_domains, {}, {}
        if self.text != "hand":
            shared["text"] = fl.new_context(task, self.n_ctx, rng, 1 if self.text == "shared" else n)
        if self.visual != "none":
            width = task.vision_width or 0
            shared["visual"] = (0.02 * torch.randn(n, width, generator=rng)).to(task.device, task.dtype)
        for name in self._followed():
            personal[name] = _turned(fl.replicate(shared[name], task.n_clients), task.domain)[:, 1:].clone()
        return State(shared, personal, server={})

    def _followed(self) -> dict[str, float]:
        """Leaves of which a client trains only its domain's row, with the momentum by which the others follow."""
        followed = {"text": self.momentum} if self.text == "own" else {}
        return followed | ({"visual": self.visual_momentum} if self.visual == "split" else {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = self.deploy(task, state, clients)
        for name in self._followed():
            turned = _turned(local.params[name], task.domain[clients])
            local.params[name], received = turned[:, :1].clone(), turned[:, 1:].clone()
            own = {f"{name}.external": state.personal[name][clients], f"{name}.received": received}
            local.buffers.update(own, domain=task.domain[clients])
        return local

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local(params={name: fl.replicate(leaf, len(clients)) for name, leaf in state.shared.items()}, buffers={})

    # -- forward ---------------------------------------------------------------------------------------------

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        tokens = self._tokens(task, local, batch)
        image, looks = task.encode_images(batch.image, tokens, cosine=self.attention == "cosine")
        text = self._text(task, local) if self.text != "hand" else task.hand_text.expand(len(image), 1, -1, -1)
        if text.shape[1] == 1:
            return fl.cosine_logits(task.scale, image, text[:, 0])
        return mixed_logits(task.scale, image, text, self._weights(task, looks))

    def _tokens(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """[C, n, w] visual tokens; n = 0 if none are learned."""
        if self.visual == "none":
            return batch.image.new_zeros(len(batch.image), 0, task.vision_width or 0)
        own = local.params["visual"]
        if "visual.external" not in local.buffers or own.shape[1] == task.n_domains:
            return own
        return _turned(torch.cat([own, local.buffers["visual.external"]], 1), -local.buffers["domain"])

    def _weights(self, task: Task, looks: Tensor) -> Tensor:
        """[C, B, heads, n] -> [C, B, n], the weight of each domain for an image (Eq. 5)."""
        head_width = (task.vision_width or 0) / looks.shape[-2]
        score = looks.sum(-2) if self.attention == "raw" else looks.mean(-2)
        score = score / head_width**0.5 if self.attention == "scaled" else score
        return (score / self.temperature).softmax(-1)

    def _text(self, task: Task, local: Local) -> Tensor:
        """Unit text features [C, n, K, D]. Prompts of other domains are encoded without gradient."""
        own = task.encode_prompts(local.params["text"])
        if "text.external" not in local.buffers or own.shape[1] == task.n_domains:
            return own  # the client trains all prompts: fine-tuning, or n = 1
        with torch.no_grad():
            others = task.encode_prompts(local.buffers["text.external"], cache=False)
        return _turned(torch.cat([own, others], 1), -local.buffers["domain"])

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        fixed = dict(local.buffers)
        for name, momentum in self._followed().items():  # Eq. 8
            old, received = fixed[f"{name}.external"], fixed[f"{name}.received"]
            fixed[f"{name}.external"] = momentum * old + (1 - momentum) * received
        logits = self.logits(task, local._replace(buffers=fixed), batch)
        if self.objective == "ce":
            return fl.cross_entropy(logits, batch), fixed
        cosine = logits.gather(-1, batch.label.unsqueeze(-1)).squeeze(-1) / task.scale
        return fl.mean_over(1 - cosine, batch.mask), fixed

    # -- server ----------------------------------------------------------------------------------------------

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        shared, personal = dict(state.shared), dict(state.personal)
        domain = task.domain[clients]
        for name, rows in local.params.items():
            if name in self._followed():
                shared[name] = _by_domain(rows[:, 0], domain, state.shared[name])
                personal[name] = fl.scatter_rows(personal[name], clients, local.buffers[f"{name}.external"])
            else:
                shared[name] = rows.mean(0)
        return state._replace(shared=shared, personal=personal)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        own = {name: leaf[0] if name in self._followed() else leaf for name, leaf in state.shared.items()}
        return Traffic(up=fl.count(**own), down=fl.count(**state.shared))


def mixed_logits(scale: float, image: Tensor, text: Tensor, weight: Tensor) -> Tensor:
    """s · cos of images with Σᵢ wᵢ tᵢ (Eq. 6), without building that sum for every image and class.

    image [C, B, D] raw, text [C, n, K, D] unit, weight [C, B, n] -> [C, B, K].
    """
    dots = torch.einsum("cbd,cnkd,cbn->cbk", fl.normalize(image), text, weight)
    gram = torch.einsum("cnkd,cmkd->cknm", text, text)
    squared = torch.einsum("cbn,cknm,cbm->cbk", weight, gram, weight)
    return scale * dots / squared.clamp(min=1e-12).sqrt()


def _turned(rows: Tensor, first: Tensor) -> Tensor:
    """Rows [C, n, ...] in cyclic order from row `first` [C], such as the client's own domain; -first restores them."""
    order = (first[:, None] + torch.arange(rows.shape[1], device=rows.device)) % rows.shape[1]
    return rows[torch.arange(len(rows), device=rows.device)[:, None], order]


def _by_domain(rows: Tensor, domain: Tensor, old: Tensor) -> Tensor:
    """Mean of the cohort's rows [C, ...] by domain -> [n, ...]. Domains without a client keep their `old` rows."""
    member = F.one_hot(domain, len(old)).to(rows.dtype)  # [C, n]
    column = (-1, *([1] * (old.ndim - 1)))
    number = member.sum(0).view(column)
    mean = (member.T @ rows.flatten(1)).view_as(old) / number.clamp(min=1)
    return torch.where(number > 0, mean, old)
