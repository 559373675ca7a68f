"""Zero-shot CLIP: hand-written prompts, nothing learned.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021,
https://arxiv.org/abs/2103.00020. The template is the task's (`clip.template`): generic, or the data set's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Generator, Tensor

from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, cosine_logits


@dataclass(frozen=True)
class ZeroShot(Method):
    """The lower reference of every table: s · cos(image, hand-written prompt)."""

    learns: ClassVar[bool] = False

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State(shared={}, personal={}, server={})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        return Local(train={}, fixed={})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return cosine_logits(task.scale, batch.image, task.hand_text.expand(len(batch.image), -1, -1))

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        return state

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        return Traffic(up={}, down={})
