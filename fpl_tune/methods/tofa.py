"""TOFA: Gaussian classes over frozen features of the client and of all clients, with text; one round, no training.

Zhang et al.: TOFA: Training-Free One-Shot Federated Adaptation for Vision-Language Models, AAAI 2026,
https://arxiv.org/abs/2511.16423. There is no released code, and the paper does not give its power prior α and
shrinkage, so the defaults are ours. The text half is the hand-written prompt; sentences of a language model, which the
paper weights by the clients' confidence, are not shipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, Tree
from fpl_tune.methods._blocks import hand_logits

_ROWS = 8  # clients whose second moments are computed in one batch


@fl.dataclass
class TOFA(Method):
    """A Gaussian classifier of each client over frozen image features, mixed with zero-shot CLIP by their confidence.

    Class c of client k has the mean w_c and the covariance Σ, which all its classes share. The client's images count
    once, those of all clients α times:
    - ν_c = n_kc + α n_c
    - w_c = (Σ_own z + α Σ_all z) / ν_c
    - Σ = (Σ_own z zᵀ + α Σ_all z zᵀ - Σ_c ν_c w_c w_cᵀ) / Σ_c ν_c, shrunk to a multiple of the identity

    An image's logits are η f_V + (1 - η) f_T with η = m_V / (m_V + m_T) and m = max softmax f:
    - f_V = w_cᵀ Σ⁻¹ z - ½ w_cᵀ Σ⁻¹ w_c are the visual logits. A class without images has the lowest of the image.
    - f_T are those of zero-shot CLIP.

    Clients send sums, never images. One round with all clients suffices. A client that takes part again sends nothing.

    alpha: α, weight of all clients' images, >= 0; 0 is a local Gaussian classifier, inf the global one.
    shrink: share of the covariance that is replaced by its mean variance, in (0, 1]; 1 gives nearest class means.
    prior: true adds log ν_c to f_V, which favours the client's own classes.
    inference: `both` halves, or one of them; `text` is zero-shot CLIP.
    """

    learns = False
    requires = ("same_classes",)

    alpha: NonNegativeFloat = 1.0
    shrink: fl.Fraction = 0.1
    prior: bool = False
    inference: Literal["both", "visual", "text"] = "both"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        n, width = task.n_classes, task.embed_dim
        shared = {"count": (n,), "sum": (n, width), "moment": (width * (width + 1) // 2,)}
        zeros = {name: torch.zeros(shape, dtype=task.dtype, device=task.device) for name, shape in shared.items()}
        return State(zeros, {}, {"received": torch.zeros(task.n_clients, dtype=torch.bool, device=task.device)})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        parts = list(_statistics(task, clients))
        return Local(params={}, buffers={name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        first = (~state.server["received"][clients]).to(task.dtype)
        shared = {n: sums + torch.tensordot(first, local.buffers[n], dims=1) for n, sums in state.shared.items()}
        return State(shared, state.personal, {"received": state.server["received"].index_fill(0, clients, True)})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """The classifier of each client: weight [C, K, D] and bias [C, K], -inf for classes without images."""
        weights, biases = [], []
        for own in _statistics(task, clients):
            for row in range(len(own["count"])):
                weight, bias = self.classifier({name: leaf[row] for name, leaf in own.items()}, state.shared)
                weights.append(weight.to(task.dtype))
                biases.append(bias.to(task.dtype))
        return Local(params={}, buffers={"weight": torch.stack(weights), "bias": torch.stack(biases)})

    def classifier(self, own: Tree, everybody: Tree) -> tuple[Tensor, Tensor]:
        """Weight [K, D] and bias [K] of one client, from its sums and those of all clients, in double precision."""
        own_weight, all_weight = (0.0, 1.0) if math.isinf(self.alpha) else (1.0, self.alpha)
        names = ("count", "sum", "moment")
        count, total, moment = (own_weight * own[n].double() + all_weight * everybody[n].double() for n in names)
        mean = total / count.clamp(min=torch.finfo(count.dtype).tiny).unsqueeze(-1)
        width = mean.shape[-1]
        upper = torch.triu_indices(width, width).to(mean.device)
        square = mean.new_zeros(width, width)
        square[upper[0], upper[1]] = moment
        square = square + square.T - square.diag().diag()
        spread = (square - (mean * count.unsqueeze(-1)).T @ mean) / count.sum().clamp(min=1)
        level = spread.diagonal().mean().clamp(min=1e-6)  # not 0, even with one image or none
        eye = torch.eye(width, dtype=mean.dtype, device=mean.device)
        weight = torch.linalg.solve((1 - self.shrink) * spread + self.shrink * level * eye, mean.T).T
        bias = -(weight * mean).sum(-1) / 2 + (count.log() if self.prior else 0)
        return weight, torch.where(count > 0, bias, -torch.inf)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = hand_logits(task, batch.image)
        if self.inference == "text" or "weight" not in local.buffers:
            return text
        seen = (local.buffers["bias"] > -torch.inf).unsqueeze(1)
        scores = fl.normalize(batch.image) @ local.buffers["weight"].mT + local.buffers["bias"].unsqueeze(1)
        lowest = torch.where(seen, scores, torch.inf).amin(-1, keepdim=True)
        visual = torch.where(seen, scores, torch.where(lowest.isfinite(), lowest, 0))
        if self.inference == "visual":
            return visual
        sure, other = (values.softmax(-1).amax(-1, keepdim=True) for values in (visual, text))
        return torch.lerp(text, visual, sure / (sure + other))

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """A client sends its sums once, and receives those of all clients in the same round."""
        first = (~state.server["received"][clients]).long()
        sent: dict[str, int | Tensor] = {name: first * leaf.numel() for name, leaf in state.shared.items()}
        return Traffic(up=sent, down=sent)


def _statistics(task: Task, clients: Tensor) -> Iterator[Tree]:
    """Yields sums over unit features for a few clients: by class [C, K] and [C, K, D], and the upper half of Σ z zᵀ."""
    table, classes = task.table("train"), torch.arange(task.n_classes, device=task.device)
    upper = torch.triu_indices(task.embed_dim, task.embed_dim).to(task.device)
    for rows in clients.split(_ROWS):
        mask = table.mask[rows].unsqueeze(-1)
        image = fl.normalize(table.image[rows]) * mask
        member = ((table.label[rows].unsqueeze(-1) == classes) & mask).to(image)
        moment = (image.mT @ image)[:, upper[0], upper[1]]
        yield {"count": member.sum(1), "sum": member.mT @ image, "moment": moment}
