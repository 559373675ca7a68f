"""FedCLIP without labels, from FedAPT's Table 3: the adapter is trained in place of the prompt, by the same two stages.

Lu, Hu, Wang, Xie: FedCLIP, IEEE Data Engineering Bulletin 2023, https://arxiv.org/abs/2302.13485; without labels in
FedAPT (Su et al., AAAI 2024, https://arxiv.org/abs/2211.07864; code: leondada/FedAPT, 800ce9b, main-fedclip.py), which
for one client per domain learns from the test images. That is not offered: methods receive no test images.
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, State, Task
from fpl_tune.methods._attention import Form, adapted, new_adapter
from fpl_tune.methods._blocks import hand_logits
from fpl_tune.methods._unlabelled import Unlabelled


@fl.dataclass
class FedCLIPUnsupervised(Unlabelled):
    """Image feature a(f) ⊙ f against hand-written prompts.

    form: of a, as in the supervised method: FedAPT's `sigmoid` or the official `softmax`.
    phase, threshold, neighbours, disperse, dispersal, augment, double_softmax: as in `fedapt_unsupervised`.
    """

    form: Form = "sigmoid"

    def untrained(self, task: Task, rng: Generator) -> State:
        return State(new_adapter(task, rng), personal={}, server={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, adapted(local.params, batch.image, self.form))
