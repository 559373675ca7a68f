"""FedCLIP's adapter: two linear layers that weigh the image feature, number by number."""

from __future__ import annotations

from typing import Literal

from torch import Generator, Tensor

from fpl_tune.method import Task, Tree
from fpl_tune.methods._layers import linear, new_linear

Form = Literal["sigmoid", "softmax"]


def new_adapter(task: Task, rng: Generator) -> Tree:
    """Both layers D to D, as PyTorch starts them."""
    adapter: Tree = {}
    for layer in ("first", "second"):
        adapter[f"{layer}.weight"], adapter[f"{layer}.bias"] = new_linear(task, task.embed_dim, task.embed_dim, rng)
    return adapter


def adapted(leaf: Tree, image: Tensor, form: Form) -> Tensor:
    """[C, B, D] features weighted by the adapter's attention: sigmoid(W₂ relu(W₁ f)) or softmax(W₂ tanh(W₁ f))."""
    hidden = linear(image, leaf["first.weight"], leaf["first.bias"])
    hidden = hidden.relu() if form == "sigmoid" else hidden.tanh()
    score = linear(hidden, leaf["second.weight"], leaf["second.bias"])
    return image * (score.sigmoid() if form == "sigmoid" else score.softmax(-1))
