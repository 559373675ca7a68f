"""Local fine-tuning of a federated model: every client goes on training its own copy, nothing is aggregated.

Cheng, Chadha, Duchi: Federated Asymptotics: a model to compare federated learning algorithms (FedAvg with fine-tuning),
AISTATS 2023, https://arxiv.org/abs/2108.07313.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Local, Method, State, Task, Traffic
from fpl_tune.wrappers._wrapper import Wrapper


@fl.dataclass
class FineTuned(Wrapper):
    """A second stage: it starts from the state that the first one left (`before`). Without one it is local training
    from the initial state of `inner`; of PromptFL that is CoOp.

    inner: the method of the stage before.
    """

    adds = ("own.", "received")
    copies = True

    inner: Method

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = self.inner_state(before) if before is not None else self.inner.init(task, rng)
        received = torch.zeros(task.n_clients, dtype=torch.bool, device=task.device)
        return State(
            state.shared, {**state.personal, **self.copied(task, state)}, {**state.server, "received": received}
        )

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._own(super().start(task, state, clients), state, clients)

    def _own(self, local: Local, state: State, clients: Tensor) -> Local:
        return local._replace(params={n: state.personal[f"own.{n}"][clients] for n in local.params})

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        kept = {f"own.{name}": leaf for name, leaf in local.params.items()}
        # What a client trained beside, such as experts, it keeps and is evaluated with.
        kept |= {name: leaf for name, leaf in local.buffers.items() if name in state.personal}
        own = {name: fl.scatter_rows(state.personal[name], clients, leaf) for name, leaf in kept.items()}
        received = state.server["received"].index_fill(0, clients, True)
        return State(state.shared, {**state.personal, **own}, {**state.server, "received": received})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._own(super().deploy(task, state, clients), state, clients)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """The model is received once, before the client's first fine-tuning; nothing is sent."""
        first = (~state.server["received"][clients]).long()
        once = super().traffic(task, state, clients).down
        return Traffic(up={}, down={n: v * first for n, v in once.items()})
