"""PromptFL: federated averaging of one learnable context.

Guo, Guo, Wang, Tang, Xu: PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models,
IEEE Transactions on Mobile Computing 2023, https://arxiv.org/abs/2208.11625.
The authors' released loop (PEILab-Federated-Learning/PromptFL, da401e7) averages references to the same model, so its
average is the last client's prompt. Here it is a true average by default, weighted by the number of training images.
There, one optimiser trains all clients and passes on its momentum, which is not possible if clients train in parallel;
its learning rate is that of `optim.schedule=shared_cosine`.

Compared step by step with PromptFL in the code of pFedMoAP, FedOTP and FedPGP by `fpl-tune parity`.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, State, Task
from fpl_tune.methods._averaging import OneContext


@fl.dataclass
class PromptFL(OneContext):
    """One context is shared by all clients. The averaged context is evaluated.

    n_ctx: number of context tokens, >= 1.
    weights: average over the cohort by `size` or `uniform` (pFedPrompt, Eq. 2; FedAPT, Eq. 12); `last` keeps the last
        client's prompt, as the released loop does.

    Example:
        >>> import torch
        >>> from fpl_tune.method import Local, State
        >>> from fpl_tune.testing import toy_task
        >>> task, clients = toy_task(sizes=(1, 3)), torch.tensor([0, 1])  # clients with one and with three images
        >>> trained = Local({"prompt": torch.tensor([[[0.0]], [[4.0]]])}, {})  # [C, l, d]
        >>> state = State({"prompt": torch.zeros(1, 1)}, {}, {})
        >>> for weights in ("size", "uniform", "last"):
        ...     PromptFL(weights=weights).merge(task, state, clients, trained).shared["prompt"].item()
        3.0
        2.0
        4.0
    """

    n_ctx: fl.AtLeastOne = 16
    weights: Literal["size", "uniform", "last"] = "size"

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        if self.weights == "last":
            return state._replace(shared={"prompt": local.params["prompt"][clients.argmax()]})
        return super().merge(task, state, clients, local)
