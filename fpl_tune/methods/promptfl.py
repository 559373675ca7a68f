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

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, State, Task, cosine_logits, new_context
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._checks import require_positive


@dataclass(frozen=True)
class PromptFL(FederatedAveraging):
    """One context shared by all clients; what is evaluated is the aggregated context.

    n_ctx: number of context tokens, >= 1.
    weights: of the average over the cohort: by `size`, or `uniform` (pFedPrompt, Eq. 2; FedAPT, Eq. 12); `last` is the
        released loop, which keeps the last client's prompt.
    """

    n_ctx: int = 16
    weights: Literal["size", "uniform", "last"] = "size"

    def __post_init__(self) -> None:
        require_positive(self, "n_ctx")

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={"prompt": new_context(task, self.n_ctx, rng)}, personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.text(local.train["prompt"]))

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        if self.weights == "last":
            return state._replace(shared={"prompt": local.train["prompt"][who.argmax()]})
        return super().merge(task, state, who, local)
