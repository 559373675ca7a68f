"""FedPHA: a personal context that is attracted to its projection and repelled by the global context.

Fang, Huang, Wan, Yang, Ye: FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation, ICML 2025,
https://proceedings.mlr.press/v267/. Official code: CYFang6/FedPHA, 1ab33df. The paper speaks of a projection on the
null space of the global prompt's main directions; the code keeps the weakest directions of its row space and removes
everything orthogonal to it (`projection="row"`, the code's default). Here the directions are those of the context that
a client received. The code computes them again at every step and differentiates through the decomposition, whose
derivative has poles if singular values are equal. It also truncates the number of strong directions in floating point:
with 5 tokens and a ratio of 0.8, none is strong there, and one here.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging


@fl.dataclass
class FedPHA(FederatedAveraging):
    """A client predicts with t_L, the text of its own context p_L.

    The loss is CE(t_L) + CE(t_G) + a · MSE(t_L, t_P) + b · mean_k max(α - ‖t_L - t_G‖, 0):
    - t_G is the text of the averaged context p_G.
    - t_P is the text of p_L after the projection.

    With a = b = 0 the two are independent: p_L is CoOp's, and p_G PromptFL's.

    alpha: α, distance up to which personal and global text features are separated, in [0, 2]; 0 turns it off.
    ratio: share of p_G's singular directions that count as weak, in (0, 1]; 1 removes none.
    projection: `null` removes p_G's strong directions from p_L; `row` keeps only the weak ones.
    pull: a, >= 0.
    push: b, >= 0.
    n_ctx: number of tokens of the global context, and of own ones where `lengths` is empty, >= 1.
    lengths: numbers of tokens of own contexts, each >= 1, which clients take in turn. The released code reads the
        features of all but the longest contexts at a position of padding; here padding has no effect.
    """

    alpha: Annotated[float, Field(ge=0, le=2)] = 1.0
    ratio: fl.Fraction = 0.8
    projection: Literal["null", "row"] = "null"
    pull: fl.Weight = 1.0
    push: fl.Weight = 1.0
    n_ctx: fl.AtLeastOne = 16
    lengths: tuple[fl.AtLeastOne, ...] = ()

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared, own = fl.new_context(task, self.n_ctx, rng), fl.new_context(task, max(self._lengths), rng)
        return State({"prompt": shared}, {"own": fl.replicate(own, task.n_clients)}, {})

    @property
    def _lengths(self) -> tuple[int, ...]:
        return self.lengths or (self.n_ctx,)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = self.deploy(task, state, clients)
        local.buffers["directions"] = fl.replicate(self.directions(state.shared["prompt"]), len(clients))
        return local

    def directions(self, prompt: Tensor) -> Tensor:
        """[n, d] orthonormal directions of a context [l, d]: those that `null` removes, or those that `row` keeps."""
        right = torch.linalg.svd(prompt, full_matrices=False).Vh
        strong = int(len(right) * (1 - self.ratio) + 1e-9)
        return right[:strong] if self.projection == "null" else right[strong:]

    def projected(self, own: Tensor, directions: Tensor) -> Tensor:
        """Contexts [C, l, d] without their component along `directions` [C, n, d] (`null`), or only this (`row`)."""
        along = own @ directions.mT @ directions
        return own - along if self.projection == "null" else along

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        lengths = torch.tensor(self._lengths).to(task.device)
        return super().start(task, state, clients)._replace(buffers={"length": lengths[clients % len(lengths)]})

    def text(self, task: Task, context: Tensor, length: Tensor) -> Tensor:
        """Unit text features [C, ..., K, D] of the first `length` [C] tokens of contexts [C, ..., l, d].

        All rows are encoded with every length, as the lengths are values on the device.
        """
        first, *others = sorted(set(self._lengths))
        features = task.encode_prompts(context[..., :first, :])
        for n in others:
            mine = (length == n).view(-1, *[1] * (features.ndim - 1))
            features = torch.where(mine, task.encode_prompts(context[..., :n, :]), features)
        return features

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, batch.image, self.text(task, local.params["own"], local.buffers["length"]))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        own, prompt = local.params["own"], local.params["prompt"]
        projected = self.projected(own, local.buffers["directions"])
        if set(self._lengths) == {self.n_ctx}:  # one pass of the tower
            t_l, t_p, t_g = task.encode_prompts(torch.stack([own, projected, prompt], 1)).unbind(1)
        else:
            t_l, t_p = self.text(task, torch.stack([own, projected], 1), local.buffers["length"]).unbind(1)
            t_g = task.encode_prompts(prompt)
        fit = [fl.cross_entropy(fl.cosine_logits(task.scale, batch.image, text), batch) for text in (t_l, t_g)]
        pull = (t_l - t_p).square().flatten(1).mean(1)
        push = (self.alpha - (t_l - t_g).norm(dim=-1)).relu().mean(-1)
        return fit[0] + fit[1] + self.pull * pull + self.push * push, local.buffers
