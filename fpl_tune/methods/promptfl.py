"""PromptFL: federated averaging of one learnable context.

Guo, Guo, Wang, Tang, Xu: PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models,
IEEE Transactions on Mobile Computing 2023, https://arxiv.org/abs/2208.11625.
The authors' released loop (PEILab-Federated-Learning/PromptFL, da401e7) averages references to one live model, so that
its average is the last client's prompt; by default the average is real and weighted by the number of training images.
One optimiser serves all its clients and hands its momentum on, which clients that train side by side cannot do; what it
makes of the learning rate is `optim.schedule=shared_cosine`.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, State, Task
from fpl_tune.methods._averaging import OneContext


@fl.dataclass
class PromptFL(OneContext):
    """One context shared by all clients; what is evaluated is the aggregated context.

    n_ctx: number of context tokens, >= 1.
    weights: of the average over the cohort: by `size`, or `uniform` (pFedPrompt, Eq. 2; FedAPT, Eq. 12); `last` is the
        released loop, which keeps the last client's prompt.
    """

    n_ctx: fl.AtLeastOne = 16
    weights: Literal["size", "uniform", "last"] = "size"

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        if self.weights == "last":
            return state._replace(shared={"prompt": local.params["prompt"][clients.argmax()]})
        return super().merge(task, state, clients, local)
