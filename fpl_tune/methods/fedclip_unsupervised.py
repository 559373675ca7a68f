"""FedCLIP without labels: a row of FedAPT's Table 3. The adapter learns in the prompt's place, by the same two stages.

Lu, Hu, Wang, Xie: FedCLIP, IEEE Data Engineering Bulletin 2023, https://arxiv.org/abs/2302.13485; without labels in
FedAPT (Su et al., AAAI 2024, https://arxiv.org/abs/2211.07864; code: leondada/FedAPT, 800ce9b, main-fedclip.py), which
for one client per domain learns from the test images. That is not offered: methods are handed no test images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, State, Task, cosine_logits, spread
from fpl_tune.methods._attention import Form, adapted, new_adapter
from fpl_tune.methods._unlabelled import Unlabelled


@dataclass(frozen=True)
class FedCLIPUnsupervised(Unlabelled):
    """Image feature a(f) ⊙ f against hand-written prompts.

    form: of a, as in the supervised method: FedAPT's `sigmoid` or the official `softmax`.
    phase, threshold, neighbours, disperse, dispersal, augment, double_softmax: as in `fedapt_unsupervised`.
    """

    form: Form = "sigmoid"
    phase: Literal[1, 2] = 1
    threshold: float = 0.75
    neighbours: int = 5
    disperse: float = 0.5
    dispersal: Literal["mean", "sum"] = "mean"
    augment: bool = True
    double_softmax: bool = True

    def untrained(self, task: Task, rng: Generator) -> State:
        return State(new_adapter(task, rng), personal={}, server={})

    def client(self, task: Task, state: State, who: Tensor) -> Local:
        return Local(train={name: spread(leaf, len(who)) for name, leaf in state.shared.items()}, fixed={})

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        return self.client(task, state, who)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.hand_text.expand(len(batch.image), -1, -1)
        return cosine_logits(task.scale, adapted(local.train, batch.image, self.form), text)
