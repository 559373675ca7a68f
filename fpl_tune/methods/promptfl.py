"""PromptFL: federated averaging of one learnable context.

Guo, Guo, Wang, Tang, Xu: PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models,
IEEE Transactions on Mobile Computing 2023, https://arxiv.org/abs/2208.11625.
The authors' released loop (PEILab-Federated-Learning/PromptFL, da401e7) averages references to one live model, so that
its average is the last client's prompt; by default the average is real and weighted by the number of training images.
One optimiser serves all its clients and hands its momentum on, which clients that train side by side cannot do; what it
makes of the learning rate is `optim.schedule=shared_cosine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from fpl_tune.method import (
    Batch,
    Local,
    Method,
    State,
    Task,
    Traffic,
    average,
    cosine_logits,
    count,
    new_context,
    require,
    spread,
)


@dataclass(frozen=True)
class PromptFL(Method):
    """One context shared by all clients; what is evaluated is the aggregated context.

    n_ctx: number of context tokens, >= 1.
    weights: of the average over the cohort: by `size`, or `uniform` (pFedPrompt, Eq. 2; FedAPT, Eq. 12); `last` is the
        released loop, which keeps the last client's prompt.
    """

    n_ctx: int = 16
    weights: Literal["size", "uniform", "last"] = "size"

    def __post_init__(self) -> None:
        require(self.n_ctx >= 1, "n_ctx", "must be >= 1", self.n_ctx)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={"prompt": new_context(task, self.n_ctx, rng)}, personal={}, server={})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        return Local(train={"prompt": spread(state.shared["prompt"], len(who))}, fixed={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.text(local.train["prompt"]))

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        weight = {"size": task.size[who], "uniform": torch.ones_like(who), "last": (who == who.max()).long()}
        return state._replace(shared={"prompt": average(local.train["prompt"], weight[self.weights])})

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        sent = count(prompt=state.shared["prompt"])
        return Traffic(up=sent, down=sent)
