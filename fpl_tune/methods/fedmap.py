"""FedMAP: visual prompts keep the similarities of images and classes close to those of the class sentences.

Wei: Rethinking Federated Prompt Learning for Medical Images: From Textual Tuning to Visual Manifold Anchoring, ICML
2026, https://openreview.net/forum?id=3LymHCdeRd. Official code: YipanWei/FedMAP, 12e05f1. Its sentences by a language
model are not shipped: the anchor of a class is its hand-written prompt.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Traffic, Tree
from fpl_tune.methods._blocks import hand_logits
from fpl_tune.methods._deep import DeepPrompts, see, visual_prompts


@fl.dataclass
class FedMAP(DeepPrompts):
    """Visual prompts, trained by cross-entropy with fixed anchors + λ · mean (⟨f, v_c⟩ - ⟨t_y, t_c⟩)².

    - t_c is the anchor of class c, its hand-written prompt; t_y that of the image's class.
    - v_c is the prototype of class c. It follows the unit mean feature of its images in a batch: v ← m v + (1 - m) f̄,
      scaled to unit length. The first batch with the class replaces it.
    - The mean is over images and over classes that any client has seen.

    Prototypes are averaged as prompts are, by number of training images.

    n_tokens: tokens of a visual prompt, >= 1.
    depth: J prompts [J, n, w], as in `vpt`, >= 1 and at most the number of blocks.
    structure: λ, >= 0; 0 is `vpt`.
    momentum: m, in [0, 1).
    """

    requires = ("vit",)
    n_tokens: fl.AtLeastOne = 1
    depth: fl.AtLeastOne = 12
    structure: fl.Weight = 10.0
    momentum: fl.Decay = 0.9

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        prompts = visual_prompts(task, self.n_tokens, self.depth, rng)
        seen = torch.zeros(task.n_classes, dtype=torch.bool, device=task.device)
        return State({"visual": prompts, "prototypes": task.hand_text.clone(), "seen": seen}, {}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        leaves = super().start(task, state, clients).params
        return Local({"visual": leaves.pop("visual")}, leaves)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local({"visual": fl.replicate(state.shared["visual"], len(clients))}, {})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, see(task, batch.image, local.params["visual"]))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        image, anchors = fl.normalize(see(task, batch.image, local.params["visual"])), task.hand_text
        fit = fl.cross_entropy(task.scale * image @ anchors.T, batch)
        prototypes, seen = self._followed(local.buffers, image.detach(), batch)
        away = (image @ prototypes.mT - (anchors @ anchors.T)[batch.label]).square()  # [C, B, K]
        away = fl.mean_over(torch.where(seen[:, None], away, 0).sum(-1), batch.mask) / seen.sum(1).clamp(min=1)
        return fit + self.structure * away, {**local.buffers, "prototypes": prototypes, "seen": seen}

    def _followed(self, buffers: Tree, image: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Prototypes [C, K, D] and the classes seen [C, K] after a batch of unit features [C, B, D]."""
        old, seen = buffers["prototypes"], buffers["seen"]
        member = F.one_hot(batch.label, old.shape[1]).to(image.dtype) * batch.mask[..., None]  # [C, B, K]
        mean = fl.normalize(member.mT @ image)
        new = torch.where(seen[..., None], self.momentum * old + (1 - self.momentum) * mean, mean)
        here = member.any(1)
        return torch.where(here[..., None], fl.normalize(new), old), seen | here

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        trained = {"visual": local.params["visual"], "prototypes": local.buffers["prototypes"]}
        shared = {name: fl.average(leaf, task.size[clients]) for name, leaf in trained.items()}
        return state._replace(shared={**shared, "seen": local.buffers["seen"].any(0)})

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        sent = fl.count(**state.shared)
        return Traffic(up=sent, down=sent)
