"""PromptSRC, federated: prompts in both towers, kept close to the frozen towers, with a Gaussian average over rounds.

Khattak, Wasim, Naseer, Khan, Yang, Khan: Self-regulating Prompts: Foundational Model Adaptation without Forgetting,
ICCV 2023, https://arxiv.org/abs/2307.06948. Official code: muzairkhattak/PromptSRC, bb95c77 (centralised). There the
Gaussian average of the weights after each epoch replaces the model at the end of training. Here the server averages
over rounds, and the average is evaluated but never sent. FLIP's federated port (0-ml/flip, ec3a848) sends it; see
`gaussian`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import FiniteFloat
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._blocks import Template
from fpl_tune.methods._deep import DeepPrompts, both_features, both_prompts

_NEVER = -1e30
"""A finite logarithm of a weight of zero."""


@fl.dataclass
class PromptSRC(DeepPrompts):
    """The prompts of IVLP, kept close to the frozen towers.

    The loss is cross-entropy + text · mean|t - t̄| + image · mean|f - f̄| + agreement · KL(q ‖ p) / K:
    - t and f are unit text and image features of the prompted towers, and p their predictions.
    - t̄ and f̄ are those of the frozen towers, on the templates and on the same images, and q their predictions.

    n_ctx, n_tokens: l and n, tokens of a text and of a visual prompt, >= 1.
    depth: J, >= 1 and at most the number of blocks of either tower.
    words: as in IVLP.
    text, image, agreement: weights of the three terms, >= 0; all 0 is IVLP. The larger, the closer to zero-shot CLIP.
    templates: sentences with {} for the class name, whose mean feature is t̄; none: the task's own. The code has 60.
    gaussian: use of the average of the rounds' prompts, weighted by N(mean · T, (spread · T)²) at round t of T.
        `deploy`: it is evaluated. `none`: the last round is evaluated.
        `sent`: as in FLIP's port, every round sends the sum so far. The weights add up to one after T rounds, so that
        prompts are about 0 in the first half of a run and do not change at its end.
    mean, spread: parameters of the Gaussian as shares of the number of rounds: 15 and 1 of 20 epochs in the code.
    """

    n_ctx: fl.AtLeastOne = 4
    n_tokens: fl.AtLeastOne = 4
    depth: fl.AtLeastOne = 9
    words: str = "a photo of a"
    text: fl.Weight = 25.0
    image: fl.Weight = 10.0
    agreement: fl.Weight = 1.0
    templates: tuple[Template, ...] = ()
    gaussian: Literal["deploy", "none", "sent"] = "deploy"
    mean: FiniteFloat = 0.75
    spread: fl.Positive = 0.05

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared = both_prompts(task, self.n_ctx, self.n_tokens, self.depth, self.words, rng)
        server: Tree = {}
        if self.gaussian != "none":
            start = torch.zeros_like if self.gaussian == "sent" else torch.clone
            server = {f"mean.{name}": start(leaf) for name, leaf in shared.items()}
        if self.gaussian == "deploy":
            server["weight"] = torch.full((), _NEVER, device=task.device, dtype=task.dtype)
        return State(shared, personal={}, server=server)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        if self.gaussian != "deploy":
            return self.start(task, state, clients)
        mean = {name: fl.replicate(state.server[f"mean.{name}"], len(clients)) for name in state.shared}
        return Local(params=mean, buffers={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, *both_features(task, local.params, batch.image, self.words))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        image, text = both_features(task, local.params, batch.image, self.words)
        logits = fl.cosine_logits(task.scale, image, text)
        with torch.no_grad():
            still = fl.normalize(task.sentences(self.templates or (task.template,)).mean(0))
            none = local.params["visual"][:, 0, :0]
            seen = fl.normalize(task.encode_images(batch.image, none)[0])
            frozen = (task.scale * seen @ still.T).log_softmax(-1)
        away = F.kl_div(logits.log_softmax(-1), frozen, reduction="none", log_target=True).mean(-1)
        loss = fl.cross_entropy(logits, batch) + self.text * _distance(text, still).mean(1)
        away = self.image * _distance(fl.normalize(image), seen) + self.agreement * away
        return loss + fl.mean_over(away, batch.mask), local.buffers

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        shared = super().merge(task, state, clients, local).shared
        if self.gaussian == "none":
            return state._replace(shared=shared)
        heights = [-0.5 * ((t / task.rounds - self.mean) / self.spread) ** 2 for t in range(1, task.rounds + 1)]
        height = heights[task.round - 1]
        if self.gaussian == "sent":
            share = math.exp(height - max(heights)) / sum(math.exp(other - max(heights)) for other in heights)
            mean = {name: state.server[f"mean.{name}"] + share * leaf for name, leaf in shared.items()}
            return state._replace(shared=mean, server={f"mean.{name}": leaf.clone() for name, leaf in mean.items()})
        weight = torch.logaddexp(state.server["weight"], torch.full_like(state.server["weight"], height))
        share = (height - weight).exp()
        old = {name: state.server[f"mean.{name}"] for name in shared}
        mean = {f"mean.{name}": leaf + share * (shared[name] - leaf) for name, leaf in old.items()}
        return state._replace(shared=shared, server={**mean, "weight": weight})


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Mean absolute difference along the last axis. Differences by rounding have no gradient."""
    return F.hardshrink(one - other, 1e-6).abs().mean(-1)
