"""FedMGP: every client keeps several groups of text and visual prompts; a few, drawn at random, are averaged.

Bo, Sun, Wang, Zhang, Li: FedMGP: Personalized Federated Learning with Multi-Group Text-Visual Prompts, NeurIPS 2025,
https://arxiv.org/abs/2511.00480. Official code: weihao-bo/FedMGP, 3a02697. Its diversity loss has the opposite sign of
the paper's, so that it makes groups similar (`signs="released"`), and is `l1` in the shipped configuration. Its server
weights clients uniformly, Eq. 9 by images. A client receives the newest global groups when it trains or is evaluated;
in the code, those of the last round in which it took part, which are the same with full participation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import word_context

_TOWERS = ("text", "visual")


@fl.dataclass
class FedMGP(FederatedAveraging):
    """Each of G groups of prompts has its own image and text features; predictions are the mean of their logits.

    The loss is mean_j CE(logits_j) + λ · the mean similarity of two groups' features, over pairs, classes or images,
    and both kinds.

    After training, a client draws s text groups and s visual groups without replacement:
    - The probabilities are softmax(score / τ), where the score is the largest cosine with a global group. In the first
      round all scores are equal.
    - Both draws use the same random numbers, as in the code, so that text and visual prompt of a slot mostly come from
      one group.
    - Slot i of the server is replaced by the mean of the clients' i-th draws.

    groups: G, >= 1.
    select: s, number of global groups, 1 to `groups`. With s = G = 1 and λ = 0, it is federated averaging of prompts in
        both towers.
    temperature: τ > 0. If it is small, the groups closest to the global ones are drawn in most rounds.
    lam: λ, >= 0.
    signs: of the diversity loss: as `meant`, or as `released`: 1 - cosine, or the distance instead of its negative.
    inference: `average` of the groups' logits; `max`: the logits of the group with the largest logit of an image;
        `features`: logits of the groups' mean features, which are not scaled to unit length again.
    n_ctx: tokens of a text or visual prompt, >= 1, at most the number of tokens of `words`.
    words: text that text prompts start from.
    tail: words between context and class name, which stay frozen.
    weights: of the server's mean, by `size` (Eq. 9) or `uniform` (released code).
    diversity: similarity of two features: their `cosine`, or minus their distance: `l1`, the mean over the width, or
        `l2`, the root of the sum of squares + 1e-8.
    """

    needs = "pixels"
    requires = ("vit",)
    newer = ("diversity",)

    groups: fl.AtLeastOne = 5
    select: fl.AtLeastOne = 2
    temperature: fl.Positive = 1.0
    lam: fl.Weight = 1.0
    signs: Literal["meant", "released"] = "meant"
    inference: Literal["average", "max", "features"] = "average"
    n_ctx: fl.AtLeastOne = 2
    words: str = "a photo"
    tail: str = "of a"
    weights: Weights = "size"
    diversity: Literal["cosine", "l1", "l2"] = "cosine"

    def __post_init__(self) -> None:
        fl.require(self.select <= self.groups, "select", f"must be at most method.groups = {self.groups}", self.select)
        fl.require(bool(self.words), "words", "must not be empty", self.words)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        start = word_context(task, self.words, self.n_ctx, rng)
        shape = self.groups, self.n_ctx, task.vision_width or 0
        groups = {
            "text": start + 0.01 * torch.randn(self.groups, *start.shape, generator=rng).to(start),
            "visual": 0.02 * torch.randn(*shape, generator=rng).to(start),
        }
        personal = {f"groups.{tower}": fl.replicate(leaf, task.n_clients) for tower, leaf in groups.items()}
        nowhere = torch.full((task.n_clients, self.select), -1, device=task.device)
        places = {f"place.{tower}": nowhere.clone() for tower in _TOWERS}
        shared = {tower: torch.zeros_like(leaf[: self.select]) for tower, leaf in groups.items()}
        return State(shared, {**personal, **places}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        train = {}
        for tower in _TOWERS:
            groups, place = state.personal[f"groups.{tower}"][clients], state.personal[f"place.{tower}"][clients]
            at = place.clamp(min=0).view(*place.shape, 1, 1).expand(-1, -1, *groups.shape[2:])
            slots = torch.where((place >= 0).view(*place.shape, 1, 1), state.shared[tower], groups.gather(1, at))
            train[tower] = groups.scatter(1, at, slots)
        return Local(train, buffers={})

    def features(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tensor]:
        """Unit features of the groups: images [C, G, B, D] and texts [C, G, K, D]."""
        prompts, tokens = (local.params[tower] for tower in _TOWERS)
        text = task.encode_prompts(prompts, tail=self.tail)
        images = [task.encode_images(batch.image, tokens[:, j])[0] for j in range(self.groups)]
        return fl.normalize(torch.stack(images, 1)), text

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image, text = self.features(task, local, batch)
        if self.inference == "features":
            return task.scale * image.mean(1) @ text.mean(1).mT
        logits = task.scale * image @ text.mT  # [C, G, B, K]
        if self.inference == "average":
            return logits.mean(1)
        best = logits.amax(-1, keepdim=True).argmax(1, keepdim=True)  # [C, 1, B, 1]
        return logits.take_along_dim(best, 1).squeeze(1)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        image, text = self.features(task, local, batch)
        rows = zip(image.unbind(1), text.unbind(1), strict=True)
        fit = torch.stack([fl.cross_entropy(fl.cosine_logits(task.scale, f, t), batch) for f, t in rows]).mean(0)
        if self.groups == 1 or self.lam == 0:
            return fit, local.buffers
        alike = (self._alike(text).mean(-1) + fl.mean_over(self._alike(image), batch.mask)) / 2
        released = float(self.diversity == "cosine") - alike
        return fit + self.lam * (alike if self.signs == "meant" else released), local.buffers

    def _alike(self, features: Tensor) -> Tensor:
        """[C, G, n, D] unit features -> [C, n]: mean similarity of two different groups."""
        groups = features.shape[1]
        if self.diversity == "cosine":
            total = features.sum(1).square().sum(-1) - groups  # Σ over ordered pairs, without a group with itself
            return total / (groups * (groups - 1))
        apart = torch.stack([features - features.roll(j, 1) for j in range(1, groups)])
        away = apart.abs().mean(-1) if self.diversity == "l1" else (apart.square().sum(-1) + 1e-8).sqrt()
        return -away.mean((0, 2))

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        random = torch.rand(task.n_clients, self.groups, generator=task.rng("draw")).to(clients.device)[clients]
        shared, personal = dict(state.shared), dict(state.personal)
        for tower in _TOWERS:
            groups = local.params[tower]
            place = self.draw(groups, state.shared[tower], random)
            at = place.view(*place.shape, 1, 1).expand(-1, -1, *groups.shape[2:])
            shared[tower] = fl.average(groups.gather(1, at), self.weight(task, clients))
            personal[f"groups.{tower}"] = fl.scatter_rows(state.personal[f"groups.{tower}"], clients, groups)
            personal[f"place.{tower}"] = fl.scatter_rows(state.personal[f"place.{tower}"], clients, place)
        return State(shared, personal, state.server)

    def draw(self, groups: Tensor, slots: Tensor, random: Tensor) -> Tensor:
        """[C, s] distinct indices of groups [C, G, l, d] in the order of drawing, by random numbers in (0, 1) [C, G].

        Adding Gumbel noise and sorting draws without replacement, one after another (Plackett, Luce). With slots
        [s, l, d] of zeros, as before the first round, all scores are 0.
        """
        score = (fl.normalize(groups.flatten(2)) @ fl.normalize(slots.flatten(1)).T).amax(-1)
        return (score / self.temperature - (-random.log()).log()).topk(self.select, -1).indices
