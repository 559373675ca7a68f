"""Networks that generate prompts: the classes that they read, and layers with a client axis."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging, Weights
from fpl_tune.methods._blocks import mapped

HIDDEN = 4
"""Width of the feed-forward layer's gated half, as a multiple of a token's width."""


@fl.dataclass
class PromptNetwork(FederatedAveraging):
    """Abstract: a network reads the classes, or only the client's classes if there is a buffer `owned` [C, K].

    That is the case in training with `scope=own`, and if clients are evaluated among their own classes.
    """

    scope: Literal["own", "all"] = "own"
    weights: Weights = "uniform"

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._reading(task, state, clients, self.scope == "own")

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._reading(task, state, clients, task.own_classes)

    def _reading(self, task: Task, state: State, clients: Tensor, own: bool) -> Local:
        local = super().start(task, state, clients)
        if own:
            owned = task.counts[clients] > 0
            local.buffers["owned"] = owned | ~owned.any(1, keepdim=True)  # without images: all
        return local


def new_norms(task: Task, **sizes: int) -> Tree:
    """`norm.<name>.weight` of ones and `norm.<name>.bias` of zeros."""
    like = torch.ones(0, device=task.device, dtype=task.dtype)
    norms: Tree = {}
    for name, size in sizes.items():
        norms[f"norm.{name}.weight"], norms[f"norm.{name}.bias"] = like.new_ones(size), like.new_zeros(size)
    return norms


def xavier(task: Task, n_in: int, n_out: int, rng: Generator, fans: int) -> Tensor:
    """Weight [out, in] with the initialisation of PyTorch's attention, U(±√(6 / fans))."""
    return ((2 * torch.rand(n_out, n_in, generator=rng) - 1) * (6 / fans) ** 0.5).to(task.device, task.dtype)


def normed(leaf: Tree, name: str, x: Tensor) -> Tensor:
    """Applies the LayerNorm `norm.<name>` to x [C, ..., w]."""
    shape = (len(x), *([1] * (x.ndim - 2)), -1)
    weight, bias = leaf[f"norm.{name}.weight"].view(shape), leaf[f"norm.{name}.bias"].view(shape)
    return F.layer_norm(x, x.shape[-1:]) * weight + bias


def feed_forward(leaf: Tree, x: Tensor) -> Tensor:
    """x [C, n, w] + FF(x), where FF is gated by GELU."""
    value, gate = mapped(leaf, "ff.in", normed(leaf, "ff", x)).chunk(2, -1)
    return x + mapped(leaf, "ff.out", value * F.gelu(gate))
