"""The base class of wrappers, which forwards everything to the wrapped method.

Clients exchange leaves by name: a leaf of `Local.params` with the name of a leaf of `State.shared` starts from the
received one.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree


class Wrapper(Method):
    """Abstract: forwards everything to the wrapped method. A subclass overrides what it changes."""

    inner: Method
    adds: tuple[str, ...] = ()
    """Prefixes of the leaves that the wrapper adds to a state; the first is the prefix of copies."""

    copies: bool = False
    """True if every client keeps a copy of all leaves that it trains."""

    def inner_state(self, state: State) -> State:
        """The state of `inner`, without the wrapper's leaves, since methods may iterate over all leaves."""
        return State(*({n: leaf for n, leaf in tree.items() if not n.startswith(self.adds)} for tree in state))

    def exchanged(self, task: Task, state: State, *, whole: bool = False) -> list[str]:
        """The names of the leaves that clients receive and train; with `whole`, of those that start as received.

        Args:
            task: the task.
            state: the state of `inner`.
            whole: leave out leaves that are only partly received.

        Raises:
            ConfigError: there are none.
        """
        local = self.inner.start(task, state, torch.zeros(1, dtype=torch.int64, device=task.device))
        names = [n for n in state.shared if n in local.params]
        if whole:  # a client of FedMGP replaces some of its groups by the server's slots
            names = [n for n in names if local.params[n].shape[1:] == state.shared[n].shape]
        return exchanged(local, names, type(self).__module__.rpartition(".")[2])

    needs: Any = property(attrgetter("inner.needs"))
    image_blocks: Any = property(attrgetter("inner.image_blocks"))
    view: Any = property(attrgetter("inner.view"))
    batched: Any = property(attrgetter("inner.batched"))
    leaf_groups: Any = property(attrgetter("inner.leaf_groups"))
    represents: Any = property(attrgetter("inner.represents"))

    def check(self, sizes: Sizes) -> None:
        inner, rule = self.inner, "must not be wrapped in the same way again, nor keep copies of its own twice"
        while self.adds and isinstance(inner, Wrapper):  # two of a kind would have leaves of the same names
            once = type(inner) is not type(self) and not (inner.copies and self.copies)
            fl.require(once, "inner", rule, type(inner).__name__)
            inner = inner.inner
        self.inner.check(sizes)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return self.inner.init(task, rng, before and self.inner_state(before))

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return self.inner.start(task, self.inner_state(state), clients)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self.inner.logits(task, local, batch)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        return self.inner.loss(task, local, batch)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        return self.inner.merge(task, self.inner_state(state), clients, local)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self.inner.deploy(task, self.inner_state(state), clients)

    def newcomers(self, task: Task, state: State, fresh: State) -> State:
        renewed = self.inner.newcomers(task, self.inner_state(state), self.inner_state(fresh))
        copied = self.copied(task, renewed) if self.copies else {}
        return state._replace(personal={**fresh.personal, **renewed.personal, **copied})

    def copied(self, task: Task, state: State) -> Tree:
        """Every client's copy of the leaves with which `inner` evaluates it, named with the prefix of copies."""
        everyone = torch.arange(task.n_clients, device=task.device)
        copies = self.inner.deploy(task, state, everyone).params
        return {f"{self.adds[0]}{name}": leaf.clone() for name, leaf in copies.items()}

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        return self.inner.diagnose(task, local, batch)

    def certainty(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self.inner.certainty(task, local, batch)

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return self.inner.representation(task, local, image)

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        return self.inner.metrics(task, self.inner_state(state))

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        return self.inner.traffic(task, self.inner_state(state), clients)


def exchanged(local: Local, received: Iterable[str], wrapper: str) -> list[str]:
    """The names of the trained leaves that are also in `received`.

    Raises:
        ConfigError: there are none, so that the wrapper would have no effect.
    """
    names = [name for name in local.params if name in received]
    if not names:
        raise ConfigError(
            f"{wrapper} acts on what clients exchange, but none of {sorted(local.params)} is exchanged. "
            "Wrap a method with a shared part, such as promptfl."
        )
    return names
