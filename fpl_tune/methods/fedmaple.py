"""FedMaPLe: federated averaging of deep prompts in both towers, the visual ones mapped from the textual ones.

Khattak, Rasheed, Maaz, Khan, Khan: MaPLe: Multi-modal Prompt Learning, CVPR 2023, https://arxiv.org/abs/2210.03117
(code: muzairkhattak/multimodal-prompt-learning, commit 69bce21); federated in FedPGP (Cui et al., ICML 2024,
https://arxiv.org/abs/2405.09771), which gives no settings; those of MaPLe are used. FedPGP's released loop averages
only a tensor called `ctx` and would pass the rest from client to client, which is not possible if clients train in
parallel. Here all learned leaves are averaged, by number of training images.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._blocks import new_linear
from fpl_tune.methods._deep import DeepPrompts, frozen_words, see, starting_words


@fl.dataclass
class FedMaPLe(DeepPrompts):
    """J text prompts [J, l, d], one for each of the first J blocks, and J linear maps d -> w to visual prompts.

    n_ctx: l, tokens of a prompt, >= 1.
    depth: J, >= 1 and at most the number of blocks of either tower; 1 prompts the input only (shallow).
    words: text whose first `n_ctx` words the first prompt starts from; empty: N(0, 0.02²), as the deeper ones do.
    behind: the other words are `frozen` between prompt and class name, as in MaPLe, so that two tokens of "a photo of
        a" start from "a photo of a dog.", or `dropped` ("a photo dog.").
    """

    n_ctx: fl.AtLeastOne = 2
    depth: fl.AtLeastOne = 9
    words: str = "a photo of a"
    behind: Literal["frozen", "dropped"] = "frozen"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared: Tree = {"prompt": starting_words(task, self.words, self.n_ctx, rng)}
        if self.depth > 1:
            shared["deep"] = fl.new_context(task, self.n_ctx, rng, self.depth - 1)
        # MaPLe draws one map for the input and one more, cloned for all deeper blocks.
        first, deeper = (new_linear(task, task.text_width, task.vision_width or 0, rng) for _ in range(2))
        weights, biases = zip(first, *[deeper] * (self.depth - 1), strict=True)
        shared |= {"map.weight": torch.stack(weights), "map.bias": torch.stack(biases)}  # [J, w, d], [J, w]
        return State(shared, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        leaf, deep = local.params, local.params.get("deep")  # [C, J - 1, l, d]
        prompts = leaf["prompt"][:, None] if deep is None else torch.cat([leaf["prompt"][:, None], deep], 1)
        tokens = prompts @ leaf["map.weight"].mT + leaf["map.bias"][:, :, None]  # [C, J, l, w]
        tail = frozen_words(self.words, self.n_ctx) if self.behind == "frozen" else ""
        text = task.encode_prompts(leaf["prompt"], deep=deep, tail=tail)
        return fl.cosine_logits(task.scale, see(task, batch.image, tokens), text)
