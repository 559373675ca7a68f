"""FedAPT without labels, in two stages: pseudo-labels, then agreement of neighbours.

Su, Yang, Li, Xue: Federated Adaptive Prompt Tuning for Multi-Domain Collaborative Learning, AAAI 2024,
https://arxiv.org/abs/2211.07864 (Eqs. 8-11); the second loss follows Yang et al., Attracting and Dispersing,
NeurIPS 2022. Official code: leondada/FedAPT (commit 800ce9b, unsupervised/main-ours.py), which for one client per
domain learns from the test images. Here it learns from the training images; their labels are not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
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
    mean_over,
    new_context,
    put,
    require,
    spread,
    unit,
)
from fpl_tune.methods._domains import Keys, domain_loss, domain_weights, draw_keys, unlocked


@dataclass(frozen=True)
class FedAPTUnsupervised(Method):
    """Meta prompt p [l, d] for all classes and reader Q [n, D]; a client of domain i trains p ⊙ (1 + kᵢ).

    The second phase goes on from the state that the first left; the two are stages of one run.

    n_ctx: l, >= 1.
    phase: 1 trains on what zero-shot CLIP is sure of; 2 on banks of every client's predictions.
    threshold: least zero-shot probability of a pseudo-label, in [0, 1); other images only train the reader.
    neighbours: nearest images in a client's bank that a prediction is drawn to, >= 0; 0 leaves that term out.
    disperse: weight, >= 0, of the term that drives apart the predictions of a batch.
    keys, temperature, unlock: as in the supervised form; `keys=none` makes the prompt PromptFL's.
    augment: the student sees a second, augmented view (the paper), one of `data.views` cached ones; False: the same
        image as the teacher.
    double_softmax: the official code's agreement term takes the log-softmax of probabilities; False: of logits.
    """

    n_ctx: int = 16
    phase: Literal[1, 2] = 1
    threshold: float = 0.75
    neighbours: int = 5
    disperse: float = 0.5
    keys: Keys = "uniform"
    temperature: float = 0.01
    unlock: Literal["image", "own", "none"] | int = "image"
    augment: bool = True
    double_softmax: bool = False

    def __post_init__(self) -> None:
        require(self.n_ctx >= 1, "n_ctx", "must be >= 1", self.n_ctx)
        require(0 <= self.threshold < 1, "threshold", "must lie in [0, 1)", self.threshold)
        require(self.neighbours >= 0, "neighbours", "must be >= 0", self.neighbours)
        require(self.disperse >= 0, "disperse", "must be >= 0", self.disperse)
        require(self.temperature > 0, "temperature", "must be > 0", self.temperature)

    @property
    def view(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a field
        return "strong" if self.augment else None

    def check(self, sizes: Sizes) -> None:
        if isinstance(self.unlock, int):
            rule = f"must name one of the {sizes.n_domains} domains, from 0"
            require(0 <= self.unlock < sizes.n_domains, "unlock", rule, self.unlock)

    # -- state -----------------------------------------------------------------------------------------------

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        if before is None:
            reader = (2 * torch.rand(task.n_domains, task.embed_dim, generator=rng) - 1) / task.embed_dim**0.5
            shared = {"prompt": new_context(task, self.n_ctx, rng), "reader": reader.to(task.device, task.dtype)}
            before = State(shared, personal={}, server={"keys": draw_keys(task, self.keys, self.n_ctx, rng)})
        if self.phase == 1:
            return before._replace(personal={})
        everyone = torch.arange(task.n_clients, device=task.device)
        table = task.table("train")
        clean = Batch(table.image, table.label, table.mask, index=everyone[:, None])
        scores = self.logits(task, self._client(task, before, everyone), clean).softmax(-1)
        return before._replace(personal={"scores": scores})

    def _client(self, task: Task, state: State, who: Tensor) -> Local:
        domain = task.domain[who]
        train = {name: spread(leaf, len(who)) for name, leaf in state.shared.items()}
        return Local(train, fixed={"key": state.server["keys"][domain], "domain": domain})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        local = self._client(task, state, who)
        if self.phase == 2:
            table = task.table("train")
            local.fixed["features"] = unit(table.image[who])  # [C, R, D]
            local.fixed["present"] = table.mask[who]
            local.fixed["scores"] = state.personal["scores"][who]  # [C, R, K]
        return local

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        train = {name: spread(leaf, len(who)) for name, leaf in state.shared.items()}
        return Local(train, fixed=unlocked(self.unlock, task, state.server["keys"], who))

    # -- forward ---------------------------------------------------------------------------------------------

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        prompt = local.train["prompt"]
        if "key" in local.fixed:
            return cosine_logits(task.scale, batch.image, task.text(prompt * (1 + local.fixed["key"])))
        weight = domain_weights(local.train["reader"], batch.image, self.temperature)
        text = task.text(prompt[:, None] * (1 + local.fixed["keys"]))  # [C, n, K, D]
        return task.scale * torch.einsum("cbd,cnkd,cbn->cbk", unit(batch.image), text, weight)

    def _student(self, batch: Batch) -> Batch:
        """The batch as the student sees it."""
        if not self.augment:
            return batch
        assert batch.view is not None
        return batch._replace(image=batch.view)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        student = self._student(batch)
        if self.phase == 1:
            reading = domain_loss(local.train["reader"], student, local.fixed["domain"])
            return self._pseudo_label_loss(task, local, batch, student) + reading, local.fixed
        reading = domain_loss(local.train["reader"], batch, local.fixed["domain"])
        agreement, fixed = self._bank_loss(task, local, batch, student)
        return agreement + reading, fixed

    def _pseudo_label_loss(self, task: Task, local: Local, batch: Batch, student: Batch) -> Tensor:
        """Eq. 8: [C], mean over the images that zero-shot CLIP is sure of; 0 where there is none."""
        teacher = cosine_logits(task.scale, batch.image, task.hand_text.expand(len(batch.image), -1, -1)).softmax(-1)
        sure, label = teacher.max(-1)
        chosen = self.logits(task, local, student).log_softmax(-1).gather(-1, label.unsqueeze(-1)).squeeze(-1)
        return mean_over(-chosen, batch.mask & (sure > self.threshold))

    def _bank_loss(self, task: Task, local: Local, batch: Batch, student: Batch) -> tuple[Tensor, Tree]:
        """Eqs. 9 and 10: [C], and the banks with this batch's predictions written in."""
        logits = self.logits(task, local, batch)
        shares = logits.softmax(-1)  # [C, B, K]
        second = logits if student is batch else self.logits(task, local, student)
        second = second.softmax(-1) if self.double_softmax else second
        row = torch.arange(len(shares), device=shares.device)[:, None]
        remembered = local.fixed["scores"][row, batch.index]
        agree = -(remembered * second.log_softmax(-1)).sum(-1)
        written = torch.where(batch.mask[..., None], shares.detach(), remembered)
        bank = local.fixed["scores"].index_put((row, batch.index), written)
        nearest, found = self._nearest(local, batch)
        near = torch.where(found[..., None], bank[row[..., None], nearest], 0)  # [C, B, k, K]
        attract = (torch.xlogy(near, near) - near * shares[:, :, None]).sum((-2, -1))
        others = batch.mask[:, None] & ~torch.eye(shares.shape[1], dtype=torch.bool, device=shares.device)
        alike = torch.where(others, shares @ shares.mT, 0).sum(-1)
        loss = mean_over(agree + attract + self.disperse * alike, batch.mask)
        return loss, local.fixed | {"scores": bank}

    def _nearest(self, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """[C, B, k] rows of the bank most like each image by cosine, never its own, never padding; and whether
        there is such a row, as a client may hold k images or fewer."""
        like = unit(batch.image) @ local.fixed["features"].mT  # [C, B, R]
        own = torch.zeros_like(like, dtype=torch.bool).scatter(-1, batch.index.unsqueeze(-1), True)
        allowed = local.fixed["present"][:, None] & ~own
        best, nearest = like.masked_fill(~allowed, float("-inf")).topk(min(self.neighbours, like.shape[-1]), dim=-1)
        return nearest, best > float("-inf")

    # -- server ----------------------------------------------------------------------------------------------

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        weight = torch.ones_like(who)
        personal = {n: put(leaf, who, local.fixed[n]) for n, leaf in state.personal.items()}
        shared = {name: average(rows, weight) for name, rows in local.train.items()}
        return state._replace(shared=shared, personal=personal)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(**state.shared)  # keys travel once, before training; banks never
        return Traffic(up=sent, down=sent)
