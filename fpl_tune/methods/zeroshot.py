"""Zero-shot CLIP: hand-written prompts without training.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021,
https://arxiv.org/abs/2103.00020. The template is the task's (`clip.template`): generic, or the data set's own.

Compared step by step with the zero-shot trainers of pFedMoAP and FedOTP by `fpl-tune parity`.
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic
from fpl_tune.methods._blocks import hand_logits


@fl.dataclass
class ZeroShot(Method):
    """The lower baseline of every table: s · cos(image, hand-written prompt)."""

    learns = False

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={}, personal={}, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local(params={}, buffers={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return hand_logits(task, batch.image)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        return state

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        return Traffic(up={}, down={})
