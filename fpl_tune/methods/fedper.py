"""Prompt + FedPer: the first context tokens are averaged, the last ones are personal.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818, on prompts as in pFedPrompt (Guo, Guo, Wang, Xu, WWW 2023), which keeps the tokens
next to the class name and does not say how many. PromptFolio's baseline keeps half of them.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._averaging import FederatedAveraging


@fl.dataclass
class FedPer(FederatedAveraging):
    """The context is a shared base followed by the client's own tokens.

    n_own: number of personal tokens at the end; 0 is PromptFL, n_ctx is CoOp.
    n_ctx: number of context tokens, >= 1.
    """

    n_own: NonNegativeInt = 8
    n_ctx: fl.AtLeastOne = 16

    def __post_init__(self) -> None:
        fl.require(self.n_own <= self.n_ctx, "n_own", f"must be at most method.n_ctx = {self.n_ctx}", self.n_own)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        base, own = fl.new_context(task, self.n_ctx, rng).split([self.n_ctx - self.n_own, self.n_own])
        return State(shared={"base": base.clone()}, personal={"own": fl.replicate(own, task.n_clients)}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        context = torch.cat([local.params["base"], local.params["own"]], 1)
        return fl.cosine_logits(task.scale, batch.image, task.encode_prompts(context))
