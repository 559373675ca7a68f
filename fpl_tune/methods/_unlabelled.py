"""Learning without labels in two phases, as in FedAPT and its baselines (Su et al., AAAI 2024, Eqs. 8 to 10).

The first phase uses pseudo-labels of zero-shot CLIP, the second one agreement with banks of every client's own
predictions (Yang et al., Attracting and Dispersing, NeurIPS 2022).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import hand_logits


@fl.dataclass
class Unlabelled(FederatedAveraging):
    """Abstract: a subclass defines the learned leaves and the logits. `fedapt_unsupervised` explains the fields.

    The second phase continues from the last state of the first one. Averages over the cohort are uniform. Keys are sent
    once, before training; banks are never sent.
    """

    weights = "uniform"

    phase: Literal[1, 2] = 1
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.75
    neighbours: NonNegativeInt = 5
    disperse: fl.Weight = 0.5
    dispersal: Literal["mean", "sum"] = "mean"
    augment: bool = True
    double_softmax: bool = True

    @property
    def view(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a field
        return "strong" if self.augment else None

    @abstractmethod
    def untrained(self, task: Task, rng: Generator) -> State:
        """The state before the first phase, without personal leaves."""

    def client(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves that `clients` start from in either phase, without their banks."""
        return super().start(task, state._replace(personal={}), clients)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = before or self.untrained(task, rng)
        if self.phase == 1:
            return state._replace(personal={})
        table, everyone = task.table("train"), torch.arange(task.n_clients, device=task.device)
        images = Batch(*table, index=everyone[:, None])
        scores = self.logits(task, self.client(task, state, everyone), images).softmax(-1)
        return state._replace(personal={"scores": scores})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        """The leaves that `clients` start from. In the second phase, the buffers also have their bank.

        The bank has unit features [C, R, D] and scores [C, R, K] of the client's images.
        """
        local = self.client(task, state, clients)
        if self.phase == 2:
            table = task.table("train")
            local.buffers.update(features=fl.normalize(table.image[clients]), present=table.mask[clients])
            local.buffers["scores"] = state.personal["scores"][clients]
        return local

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self.client(task, state, clients)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.phase == 1:
            return self._pseudo_label_loss(task, batch, self.logits(task, local, self.seen(batch))), local.buffers
        logits = self.logits(task, local, batch)
        second = self.logits(task, local, self.seen(batch)) if self.augment else logits
        second = second.softmax(-1) if self.double_softmax else second
        return self.bank_loss(local, batch, logits, second)

    def seen(self, batch: Batch) -> Batch:
        """The batch as the student sees it."""
        if not self.augment:
            return batch
        assert batch.view is not None
        return batch._replace(image=batch.view)

    def _pseudo_label_loss(self, task: Task, batch: Batch, logits: Tensor) -> Tensor:
        """[C] Eq. 8: mean over the images of which zero-shot CLIP is sure; 0 if there are none."""
        sure, label = hand_logits(task, batch.image).softmax(-1).max(-1)
        chosen = logits.log_softmax(-1).gather(-1, label.unsqueeze(-1)).squeeze(-1)
        return fl.mean_over(-chosen, batch.mask & (sure > self.threshold))

    def bank_loss(self, local: Local, batch: Batch, logits: Tensor, second: Tensor) -> tuple[Tensor, Tree]:
        """[C] losses of Eqs. 9 and 10, and the banks updated by this batch's predictions.

        `logits` [C, B, K] are those of the images themselves, `second` [C, B, K] those of the student's views. The
        official code writes the attraction as a divergence. Its term without gradient, which grows as predictions
        become sure, is left out.

        Images of one class should agree, but the dispersal also separates them. Summed over a batch, as in the official
        code, it grows with the number of images of the same class: 1.5 for 512 images of 345 classes, 15 for 32 images
        of two classes. As a mean, it is divided by this number as expected from the bank, if it exceeds one.
        """
        shares = logits.softmax(-1)  # [C, B, K]
        row = torch.arange(len(shares), device=shares.device)[:, None]
        remembered = local.buffers["scores"][row, batch.index]
        agree = -(remembered * second.log_softmax(-1)).sum(-1)
        written = torch.where(batch.mask[..., None], shares.detach(), remembered)
        bank = local.buffers["scores"].index_put((row, batch.index), written)
        nearest, exists = _nearest(local, batch, self.neighbours)
        neighbour_scores = torch.where(exists[..., None], bank[row[..., None], nearest], 0)  # [C, B, k, K]
        attract = -torch.einsum("cbnk,cbk->cb", neighbour_scores, shares)
        others = batch.mask[:, None] & ~torch.eye(shares.shape[1], dtype=torch.bool, device=shares.device)
        alike = torch.where(others, shares @ shares.mT, 0).sum(-1)
        if self.dispersal == "mean":
            present = local.buffers["present"]
            classes = torch.where(present[..., None], bank, 0).sum(1) / present.sum(1, keepdim=True).clamp(min=1)
            mates = (batch.mask.sum(1) - 1) * classes.square().sum(-1)
            alike = alike / mates.clamp(min=1)[:, None]
        return fl.mean_over(agree + attract + self.disperse * alike, batch.mask), local.buffers | {"scores": bank}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        banks = {name: fl.scatter_rows(leaf, clients, local.buffers[name]) for name, leaf in state.personal.items()}
        return super().merge(task, state._replace(personal={}), clients, local)._replace(personal=banks)


def _nearest(local: Local, batch: Batch, neighbours: int) -> tuple[Tensor, Tensor]:
    """[C, B, k] rows of the bank that are most similar to each image by cosine, and a mask of those that exist.

    The image itself and padding are excluded. A client may have k images or fewer.
    """
    like = fl.normalize(batch.image) @ local.buffers["features"].mT  # [C, B, R]
    own = torch.zeros_like(like, dtype=torch.bool).scatter(-1, batch.index.unsqueeze(-1), True)
    allowed = local.buffers["present"][:, None] & ~own
    best, nearest = like.masked_fill(~allowed, float("-inf")).topk(min(neighbours, like.shape[-1]), dim=-1)
    return nearest, best > float("-inf")
