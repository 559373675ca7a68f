"""A method whose hooks are checked for what they return, so that a mistake is named by its class and hook."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Generator, Tensor

from fpl_tune.core.errors import FplTuneError
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree


class MethodError(FplTuneError):
    """A hook of a method returned what its interface does not allow."""


class Checked(Method):
    """Forwards to a method, and refuses a result of another type or shape than `fpl_tune.method` declares.

    Types and shapes are read, values are not: a GPU is not waited for.
    """

    def __init__(self, method: Method) -> None:
        self.method: Any = method  # whatever its annotations say

    needs: Any = property(attrgetter("method.needs"))
    learns: Any = property(attrgetter("method.learns"))
    view: Any = property(attrgetter("method.view"))
    batched: Any = property(attrgetter("method.batched"))

    def check(self, sizes: Sizes) -> None:
        self.method.check(sizes)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return self._state("init", self.method.init(task, rng, before))

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._local("start", self.method.start(task, state, clients), len(clients))

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        return self._local("deploy", self.method.deploy(task, state, clients), len(clients))

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        found = self.method.logits(task, local, batch)
        wanted = (*batch.label.shape, task.n_classes)
        self._require("logits", found, Tensor, found.shape == wanted if isinstance(found, Tensor) else True, wanted)
        return found

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        found = self.method.loss(task, local, batch)
        self._require("loss", found, tuple, len(found) == 2 if isinstance(found, tuple) else True, "a loss and buffers")
        loss, buffers = found
        fits = loss.shape == batch.label.shape[:1] if isinstance(loss, Tensor) else True
        self._require("loss", loss, Tensor, fits, (len(batch.label),))
        self._tree("loss", "buffers", buffers)
        return found

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        before = _shapes(state)
        found = self._state("merge", self.method.merge(task, state, clients, local))
        after = _shapes(found)
        for part, name in sorted(before.keys() | after.keys()):
            old, new = before.get((part, name)), after.get((part, name))
            if old != new:
                raise MethodError(
                    f"{self._name}.merge must keep the leaves of the state and their shapes, but {part}[{name!r}] was "
                    f"{_shown(old)} and is {_shown(new)}."
                )
        return found

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        found = self.method.traffic(task, state, clients)
        self._require("traffic", found, Traffic)
        for way, counts in found._asdict().items():
            for name, count in counts.items():
                if isinstance(count, int) and count < 0:
                    raise MethodError(f"{self._name}.traffic must not be negative, but {way}[{name!r}] is {count}.")
        return found

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        found = self.method.diagnose(task, local, batch)
        self._require("diagnose", found, dict)
        return found

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        found = self.method.metrics(task, state)
        self._require("metrics", found, dict)
        for name, value in found.items():
            if not isinstance(value, int | float):
                raise MethodError(f"{self._name}.metrics must return numbers, but {name!r} is {value!r}.")
        return found

    @property
    def _name(self) -> str:
        return type(self.method).__name__

    def _require(self, hook: str, found: Any, kind: type, fits: bool = True, shape: Any = "") -> None:
        if not isinstance(found, kind):
            what = "None: a `return` is missing" if found is None else f"a {type(found).__name__}"
            raise MethodError(f"{self._name}.{hook} must return a {kind.__name__}, but returned {what}.")
        if not fits:
            got = tuple(found.shape) if isinstance(found, Tensor) else f"{len(found)} values"
            raise MethodError(f"{self._name}.{hook} must return {shape}, but returned {got}.")

    def _state(self, hook: str, found: Any) -> State:
        self._require(hook, found, State)
        for part, tree in found._asdict().items():
            self._tree(hook, part, tree)
        return found

    def _local(self, hook: str, found: Any, clients: int) -> Local:
        self._require(hook, found, Local)
        for part, tree in found._asdict().items():
            self._tree(hook, part, tree)
            for name, leaf in tree.items():
                if leaf.shape[:1] != (clients,):
                    raise MethodError(
                        f"{self._name}.{hook} must return leaves with a row for each of the {clients} clients, but "
                        f"{part}[{name!r}] is {_shown(leaf.shape)}."
                    )
        return found

    def _tree(self, hook: str, part: str, tree: Any) -> None:
        """Raises `MethodError` unless `tree` is a dict of tensors."""
        if not isinstance(tree, dict):
            raise MethodError(f"{self._name}.{hook}: {part} must be a dict of tensors, but is {tree!r:.60}.")
        for name, leaf in tree.items():
            if not isinstance(leaf, Tensor):
                raise MethodError(f"{self._name}.{hook}: {part}[{name!r}] must be a tensor, but is {leaf!r:.60}.")


def _shapes(state: State) -> dict[tuple[str, str], torch.Size]:
    """Shapes of the leaves by part and name."""
    return {(part, name): leaf.shape for part, tree in state._asdict().items() for name, leaf in tree.items()}


def _shown(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))
