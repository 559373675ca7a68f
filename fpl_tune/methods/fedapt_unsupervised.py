"""FedAPT without labels, in two stages: pseudo-labels, then agreement of neighbours.

Su, Yang, Li, Xue: Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning, AAAI 2024,
https://arxiv.org/abs/2211.07864 (Eqs. 8-11); the second loss follows Yang et al., Attracting and Dispersing,
NeurIPS 2022. Official code: leondada/FedAPT (commit 800ce9b, unsupervised/main-ours.py), which for one client per
domain learns from the test images. That is not offered: methods receive no test images. Labels are not read.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods import _domains as domains
from fpl_tune.methods._unlabelled import Unlabelled


@fl.dataclass
class FedAPTUnsupervised(Unlabelled):
    """Meta prompt p [l, d] for all classes and reader Q [n, D]; a client of domain i trains p ⊙ (1 + kᵢ).

    The second phase continues from the last state of the first one. The two are stages of one run.

    n_ctx: l, >= 1.
    phase: 1 trains on images of which zero-shot CLIP is sure, 2 on banks of every client's predictions.
    threshold: least zero-shot probability of a pseudo-label, in [0, 1); other images only train the reader.
    neighbours: number of nearest images in a client's bank that attract a prediction, >= 0; 0 leaves this term out.
    disperse: weight of the term that separates the predictions of a batch, >= 0.
    dispersal: `mean` over the expected number of images of the same class in a batch, or `sum`, as released.
    keys, temperature, unlock: as in the supervised form; `keys=none` is PromptFL.
    augment: the student sees a second, augmented view (the paper), one of `data.views` cached ones; False: the same
        image as the teacher.
    double_softmax: the agreement term uses the log-softmax of the student's probabilities, as the official code does;
        if False, that of its logits, which is plain cross-entropy. Views that augmentation spoils then have their full
        weight, and predictions can become uniform: with five seeds of 12 clients with 50 images of the embedded world
        (zero-shot CLIP recognises 60 % of them, and 32 % of their views; 4 rounds of 2 epochs in either phase), the
        worst ends at 32 %, with an entropy of 2.9 of at most log 20 = 3.0. With the default, all end between 59 and
        60 %. With 240 images per client, so do both.
    """

    n_ctx: fl.AtLeastOne = 16
    keys: domains.Keys = "uniform"
    temperature: fl.Positive = 0.01
    unlock: Literal["image", "own", "none"] | int = "image"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        domains.check_keys(sizes, self.keys, self.n_ctx, self.unlock)

    def untrained(self, task: Task, rng: Generator) -> State:
        return domains.keyed_state(task, self.keys, self.n_ctx, rng)

    def client(self, task: Task, state: State, clients: Tensor) -> Local:
        return super().client(task, state, clients)._replace(buffers=domains.training_buffers(task, state, clients))

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return (
            super().client(task, state, clients)._replace(buffers=domains.unlocked(self.unlock, task, state, clients))
        )

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        prompt = local.params["prompt"]
        if "key" in local.buffers:
            return fl.cosine_logits(task.scale, batch.image, task.encode_prompts(prompt * (1 + local.buffers["key"])))
        weight = domains.domain_weights(local.params["reader"], batch.image, self.temperature)
        text = task.encode_prompts(prompt[:, None] * (1 + local.buffers["keys"]))  # [C, n, K, D]
        return task.scale * torch.einsum("cbd,cnkd,cbn->cbk", fl.normalize(batch.image), text, weight)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        """The shared loss plus that of the reader (Eq. 11), on the student's views in the first phase."""
        loss, fixed = super().loss(task, local, batch)
        if "reader" not in local.params:
            return loss, fixed
        read = self.seen(batch) if self.phase == 1 else batch
        return loss + domains.domain_loss(local.params["reader"], read, local.buffers["domain"]), fixed
