"""The whole image tower and a linear classifier by federated averaging: the "full" rows of FedAPT's Table 1.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, https://arxiv.org/abs/1602.05629; compared with prompts in FedAPT (Su et al., AAAI
2024, https://arxiv.org/abs/2211.07864) and Fed-DPT (https://arxiv.org/abs/2310.03103), which published no code for it.
Here the tower starts from CLIP's weights (theirs from ImageNet's, except for FedAPT's ViT, which has the size of
CLIP's) and keeps its BatchNorm statistics. Wrapped in `proximal`, this is FedProx.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.func import functional_call

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import mapped, new_layers


@fl.dataclass
class FullModel(FederatedAveraging):
    """Logits W f(x) + b over the training classes, where f is the tower with each client's own weights in training.

    This is the only method with weights per client: a cohort needs memory for four times its number of towers (weights,
    gradients, momentum, and the next weights), and clients run one after another.

    weights: average over the cohort by `size` (FedAvg) or `uniform` (FedAPT's Eq. 12).
    """

    needs = "pixels"
    requires = ("same_classes",)
    represents = "images"
    batched = False
    leaf_groups = (fl.Group("tower", "the image tower"), fl.Group("head", "W and b"))
    weights: Weights = "size"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared: Tree = {f"tower.{n}": p.detach().to(task.dtype) for n, p in task.visual().named_parameters()}
        shared |= new_layers(task, rng, {"head": (task.embed_dim, task.n_classes)})
        return State(shared, personal={}, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local(params={n: leaf.expand(len(clients), *leaf.shape) for n, leaf in state.shared.items()}, buffers={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return mapped(local.params, "head", self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        tower, rows = task.visual(), []
        for client, pixels in enumerate(image):  # torch.func.vmap has no derivative for the fused attention
            frozen = tower.named_parameters()
            own = {name: local.params[f"tower.{name}"][client].to(weight.dtype) for name, weight in frozen}
            rows.append(functional_call(tower, own, (pixels.to(next(tower.parameters()).dtype),)).to(pixels.dtype))
        return torch.stack(rows)
