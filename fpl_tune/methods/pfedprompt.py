"""pFedPrompt: a prompt by consensus, and at inference a memory of each client's training images.

Guo, Guo, Wang, Xu: pFedPrompt: Learning Personalized Prompt for Vision-Language Models in Federated Learning, WWW
2023, https://doi.org/10.1145/3543507.3583518. No code was released. The paper searches α by accuracy, apparently on the
test set. Here it is chosen on each client's validation images, or given, so that a study over α shows the result of a
choice by test accuracy (`pfedprompt_t5`).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Table, Task
from fpl_tune.methods._averaging import FederatedAveraging

GRID = tuple(0.1 + 0.245 * k for k in range(20))
"""Values of α, which include all best ones in Tables 3 and 5."""


@fl.dataclass
class PFedPrompt(FederatedAveraging):
    """Trains as PromptFL; predicts with s · cos(f, text) + α · Σ_m cos(f, key_m) · value_m (Eqs. 3 to 7).

    alpha: α, weight of the memory, >= 0; 0 is PromptFL; "val" chooses for each client the best of `GRID` on its own
        validation images, by accuracy, then by loss.
    memory: `class`: one key per class, the mean of its images' features (section 3.2); `image`: one key per training
        image, as in the printed results (those of Tables 2, 4 and 5 are the unreduced ones of Tables 3 and 6).
    features: `pooled`; or `patches`: the mean over all positions of the spatial feature, also for the consensus, as in
        Eq. 7.
    weighted: average by number of images as in PromptFL; the paper has the plain mean (Eq. 2).
    n_ctx: number of context tokens, >= 1.
    """

    requires = ("same_classes",)

    alpha: fl.Weight | Literal["val"] = "val"
    memory: Literal["class", "image"] = "class"
    features: Literal["pooled", "patches"] = "pooled"
    weighted: bool = False
    n_ctx: fl.AtLeastOne = 16

    @property
    def needs(self) -> Literal["pooled", "patches", "pixels"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.features

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={"prompt": fl.new_context(task, self.n_ctx, rng)}, personal={}, server={})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """The consensus and each client's memory, which is computed from its training images and needs no state."""
        memory = self._memory(task, task.table("train"), clients)
        local = self.start(task, state, clients)._replace(buffers=memory)
        if self.alpha == "val":
            alpha = self._choose(task, local, clients)
        else:
            alpha = torch.full_like(clients, self.alpha, dtype=task.dtype)
        return local._replace(buffers={**memory, "alpha": alpha})

    def _image(self, image: Tensor) -> Tensor:
        """[..., D] unit features of images [..., D] or [..., M, D]."""
        return fl.normalize(image.mean(-2) if self.features == "patches" else image)

    def _memory(self, task: Task, table: Table, clients: Tensor) -> dict[str, Tensor]:
        """Keys [C, S, D] of unit length, or zero without an image, and values [C, S, K]."""
        truth = F.one_hot(table.label[clients], task.n_classes).to(task.dtype) * table.mask[clients].unsqueeze(-1)
        key = self._image(table.image[clients])
        if self.memory == "image":
            return {"key": key, "value": truth}
        classes = fl.replicate(torch.eye(task.n_classes).to(key), len(clients))
        return {"key": fl.normalize(truth.mT @ key), "value": classes}

    def _choose(self, task: Task, local: Local, clients: Tensor) -> Tensor:
        """[C] the best α of `GRID` on each client's validation images; ties are broken by the smallest."""
        table = task.table("val")
        batch = Batch(table.image[clients], table.label[clients], table.mask[clients], index=table.label[clients])
        consensus, bonus = self._terms(task, local, batch)
        accuracy, loss = [], []
        for alpha in GRID:
            logits = consensus + alpha * bonus
            accuracy.append(fl.mean_over((logits.argmax(-1) == batch.label).to(task.dtype), batch.mask))
            nll = F.cross_entropy(logits.mT, batch.label, reduction="none")
            loss.append(fl.mean_over(nll, batch.mask))
        best = torch.stack(accuracy)
        behind = best < best.max(0).values
        return torch.tensor(GRID).to(best)[torch.stack(loss).masked_fill(behind, torch.inf).argmin(0)]

    def _terms(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [C, B, K] of the consensus and of the memory."""
        image = self._image(batch.image)
        affinity = image @ local.buffers["key"].mT  # [C, B, S]
        consensus = fl.cosine_logits(task.scale, image, task.encode_prompts(local.params["prompt"]))
        return consensus, affinity @ local.buffers["value"]

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        if "key" not in local.buffers:  # in training: the memory is for inference only
            return fl.cosine_logits(task.scale, self._image(batch.image), task.encode_prompts(local.params["prompt"]))
        consensus, bonus = self._terms(task, local, batch)
        return consensus + local.buffers["alpha"].view(-1, 1, 1) * bonus

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        weight = task.size[clients] if self.weighted else torch.ones_like(clients)
        return state._replace(shared={"prompt": fl.average(local.params["prompt"], weight)})
