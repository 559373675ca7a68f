"""FedCLIP's adapter: two linear layers that weight each number of the image feature."""

from __future__ import annotations

from typing import Literal

from torch import Generator, Tensor

from fpl_tune.method import Task, Tree
from fpl_tune.methods._blocks import mapped, new_layers

Form = Literal["sigmoid", "softmax"]


def new_adapter(task: Task, rng: Generator) -> Tree:
    """Two layers D to D with PyTorch's initialisation."""
    return new_layers(task, rng, dict.fromkeys(("first", "second"), (task.embed_dim, task.embed_dim)))


def adapted(leaf: Tree, image: Tensor, form: Form) -> Tensor:
    """[C, B, D] features weighted by the adapter's attention: sigmoid(W₂ relu(W₁ f)) or softmax(W₂ tanh(W₁ f))."""
    hidden = mapped(leaf, "first", image)
    score = mapped(leaf, "second", hidden.relu() if form == "sigmoid" else hidden.tanh())
    return image * (score.sigmoid() if form == "sigmoid" else score.softmax(-1))
