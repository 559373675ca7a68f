"""Ditto around any method with shared leaves: an additional personal copy, which is kept close to the received leaves.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
https://arxiv.org/abs/2012.04221 (Algorithm 1, both parts trained in the same steps).
"""

from __future__ import annotations

from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, State, Task, Tree
from fpl_tune.wrappers._wrapper import Wrapper

_COPY = ".ditto"
"""Suffix of the names of a copy's leaves, which are therefore in the optimiser's group of the leaf that they copy."""


@fl.dataclass
class Ditto(Wrapper):
    """Client k trains w as `inner` does, and a copy v_k by the loss of `inner` + λ/2 · ‖v_k - w_received‖².

    Only w is sent, and v_k is evaluated. The term includes the leaves that came from the server. A client that never
    trained is evaluated with its initial leaves. A step costs two of `inner`.

    inner: the method that trains w.
    lam: λ, >= 0; with 0, the copy is trained locally, without effect on `inner`. The paper tunes λ for every data set.
    """

    adds = ("ditto.",)
    copies = True

    inner: Method
    lam: fl.Weight = 0.1

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        self.exchanged(task, state)
        return state._replace(personal={**state.personal, **self.copied(task, state)})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        copies = {n + _COPY: state.personal[f"ditto.{n}"][clients] for n in local.params}
        received = {f"near.{n}": leaf.clone() for n, leaf in local.params.items() if n in state.shared}
        return Local({**local.params, **copies}, {**local.buffers, **received})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return super().logits(task, _shared(local), batch)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, moved = super().loss(task, _shared(local), batch)
        own, _ = super().loss(task, local._replace(params=_copies(local)), batch)
        for name, leaf in _copies(local).items():
            if f"near.{name}" in local.buffers:
                own = own + self.lam / 2 * (leaf - local.buffers[f"near.{name}"]).flatten(1).square().sum(1)
        return loss + own, {**local.buffers, **moved}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        after, personal = super().merge(task, state, clients, _shared(local)), state.personal
        copies = {f"ditto.{n}": fl.scatter_rows(personal[f"ditto.{n}"], clients, v) for n, v in _copies(local).items()}
        return after._replace(personal={**after.personal, **copies})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().deploy(task, state, clients)
        return local._replace(params={n: state.personal[f"ditto.{n}"][clients] for n in local.params})


def _shared(local: Local) -> Local:
    return local._replace(params={n: leaf for n, leaf in local.params.items() if not n.endswith(_COPY)})


def _copies(local: Local) -> Tree:
    return {n.removesuffix(_COPY): leaf for n, leaf in local.params.items() if n.endswith(_COPY)}
