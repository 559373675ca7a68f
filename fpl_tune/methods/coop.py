"""CoOp, trained by every client alone: the local baseline of federated prompt learning.

Zhou, Yang, Loy, Liu: Learning to Prompt for Vision-Language Models, IJCV 2022, https://arxiv.org/abs/2109.01134.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, State, Task, cosine_logits, new_context, spread
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._checks import require_positive


@dataclass(frozen=True)
class CoOp(FederatedAveraging):
    """Every client keeps its own context, all from the same start; nothing is exchanged.

    n_ctx: number of context tokens, >= 1.
    """

    n_ctx: int = 16

    def __post_init__(self) -> None:
        require_positive(self, "n_ctx")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        context = new_context(task, self.n_ctx, rng)
        return State(shared={}, personal={"prompt": spread(context, task.n_clients)}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.text(local.train["prompt"]))
