"""CoOp, trained by every client separately: the local baseline of federated prompt learning.

Zhou, Yang, Loy, Liu: Learning to Prompt for Vision-Language Models, IJCV 2022, https://arxiv.org/abs/2109.01134.
"""

from __future__ import annotations

from torch import Generator

import fpl_tune.method as fl
from fpl_tune.method import State, Task
from fpl_tune.methods._averaging import OneContext


@fl.dataclass
class CoOp(OneContext):
    """Every client trains its own context from the same start. Nothing is exchanged.

    n_ctx: number of context tokens, >= 1.
    """

    n_ctx: fl.AtLeastOne = 16

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        context = fl.new_context(task, self.n_ctx, rng)
        return State(shared={}, personal={"prompt": fl.replicate(context, task.n_clients)}, server={})
