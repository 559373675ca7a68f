"""FedOTP: a global and a local prompt share an image's patches by partial optimal transport.

Li, Huang, Wang, Shi: Global and Local Prompts Cooperation via Optimal Transport for Federated Learning, CVPR 2024,
https://arxiv.org/abs/2403.00041. Official code: HongxiaLee/FedOTP, 9948611. It stops the iteration when the error,
averaged over everything in the batch, is small, at 100 steps at the latest; here the number of steps is fixed, so
that clients cannot meet in it, and the iteration runs in double precision, since exp(-1 / ε) is nothing in half. Its
optimiser hands its momentum from client to client, which clients that train side by side cannot do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

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
    average,
    count,
    new_context,
    put,
    require,
    spread,
    unit,
)


@dataclass(frozen=True)
class FedOTP(Method):
    """Logit of a class: s · Σ_mn T_mn · cos(patch_m, text_n), n the global or the local prompt; T has no gradient.

    gamma: γ, share of the patches' mass that is transported, in (0, 1]; 1 is balanced transport.
    epsilon: weight of the entropy, >= 0.005 for doubles to hold exp(-2 / ε): 0.01 in the few-shot scripts, 0.1 in
        CIFAR's. The larger, the evener T.
    iterations: of the scaling, >= 1; where epsilon is small, patches may exceed their mass until it has converged.
    n_ctx: number of context tokens of either prompt, >= 1.
    """

    needs: ClassVar[Literal["pooled", "patches", "pixels"]] = "patches"

    gamma: float = 0.8
    epsilon: float = 0.01
    iterations: int = 100
    n_ctx: int = 16

    def __post_init__(self) -> None:
        require(0 < self.gamma <= 1, "gamma", "must lie in (0, 1]", self.gamma)
        require(self.epsilon >= 0.005, "epsilon", "must be >= 0.005", self.epsilon)
        require(self.iterations >= 1, "iterations", "must be >= 1", self.iterations)
        require(self.n_ctx >= 1, "n_ctx", "must be >= 1", self.n_ctx)

    def check(self, sizes: Sizes) -> None:
        rule = "must be a method without patches, as the image tower has no spatial features"
        require(sizes.n_patches is not None, "name", rule, "fedotp", "Use clip=compact, rn50, vit_b32 or vit_b16.")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared, own = new_context(task, self.n_ctx, rng, 2)
        return State({"prompt": shared.clone()}, {"own": spread(own, task.n_clients)}, {})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        prompt = spread(state.shared["prompt"], len(who))
        return Local(train={"prompt": prompt, "own": state.personal["own"][who]}, fixed={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.text(torch.stack([local.train["prompt"], local.train["own"]], 1))  # [C, 2, K, D]
        rows = text.transpose(1, 2).flatten(1, 2).unsqueeze(1)  # [C, 1, K 2, D]
        alike = (rows @ unit(batch.image).mT).unflatten(2, (-1, 2))  # [C, B, K, 2, M]
        with torch.no_grad():
            plan = transport(alike, self.gamma, self.epsilon, self.iterations)
        return task.scale * (plan * alike).sum((-1, -2))

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        prompt = average(local.train["prompt"], task.size[who])
        return State({"prompt": prompt}, {"own": put(state.personal["own"], who, local.train["own"])}, state.server)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(prompt=state.shared["prompt"])
        return Traffic(up=sent, down=sent)


def transport(alike: Tensor, gamma: float, epsilon: float, iterations: int) -> Tensor:
    """Plans T [..., 2, M] between M patches and two prompts with cosine similarities `alike` [..., 2, M].

    Maximises Σ T · alike + ε · entropy where every prompt receives γ/2 and no patch gives more than 1/M (FedOTP,
    Eqs. 8 to 11; Dykstra's iteration u = min(1 / (M K v), 1), v = γ/2 / Kᵀ u). What prompts receive is exact after any
    number of iterations, what patches give in the limit.
    """
    most = alike.amax(-1, keepdim=True)
    # Divided by its largest entry, given back to v, a prompt's kernel lies between exp(-2 / ε) and 1: doubles hold it.
    first, second = ((alike - most).double() / epsilon).exp().unbind(-2)
    v, w = ((most - 1).double() / epsilon).exp().unbind(-2)
    u = torch.ones_like(first)
    for _ in range(iterations):
        u = torch.addcmul(first * v, second, w).mul_(alike.shape[-1]).reciprocal_().clamp_(max=1)
        v = gamma / 2 / torch.linalg.vecdot(first, u).unsqueeze(-1)
        w = gamma / 2 / torch.linalg.vecdot(second, u).unsqueeze(-1)
    return torch.stack([first * v * u, second * w * u], -2).to(alike.dtype)
