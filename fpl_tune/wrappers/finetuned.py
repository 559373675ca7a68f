"""Local fine-tuning of a federated model: every client continues to train its own copy, and nothing is aggregated.

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
    """A second stage, which starts from the last state of the first one.

    Without a first stage, it is local training from the initial state of `inner`; with PromptFL, that is CoOp.

    inner: the method of the first stage.
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
        trained = {f"own.{name}": leaf for name, leaf in local.params.items()}
        # A client also keeps personal leaves that it did not train, such as experts.
        trained |= {name: leaf for name, leaf in local.buffers.items() if name in state.personal}
        own = {name: fl.scatter_rows(state.personal[name], clients, leaf) for name, leaf in trained.items()}
        received = state.server["received"].index_fill(0, clients, True)
        return State(state.shared, {**state.personal, **own}, {**state.server, "received": received})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._own(super().deploy(task, state, clients), state, clients)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """A client receives the model once, before its first fine-tuning, and sends nothing."""
        first = (~state.server["received"][clients]).long()
        once = super().traffic(task, state, clients).down
        return Traffic(up={}, down={n: v * first for n, v in once.items()})
