"""Steps recorded once and replayed: on a GPU, one launch instead of hundreds.

The step runs on tensors that stay where they are. So its shapes are fixed: all clients take part in every step, those
without a batch left keep what they have, batches are as wide as the plan, and the number of the step is read on the
device. The eager path of `fpl_tune.simulation.engine` is the reference that this one is tested against; and what is
recorded is compared with the same steps run eagerly before it is used.

CUDA can record, and the simulated device of `fpl_tune.testing`; elsewhere, as on the CPU, the same step runs eagerly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.device import is_out_of_memory, is_poisoned
from fpl_tune.method import Local, Method, Task, Tree
from fpl_tune.simulation import optim
from fpl_tune.simulation.batches import Plan
from fpl_tune.simulation.optim import OptimState
from fpl_tune.simulation.task import ClientTask, Picked

MODULES: dict[str, Any] = {"cuda": torch.cuda}
"""Recorders of graphs, by the type of the device."""
_streams: dict[torch.device, Any] = {}
"""On which steps are recorded: one for each device, as cuBLAS keeps 32 MB or more for each stream that it has seen."""
_KEPT = 4  # recorded steps: cohorts and blocks of other sizes have graphs of their own
WASTE = 0.25
"""Share of a round's client-steps up to which `auto` lets clients without a batch left take part."""
AGREES = 0.05
"""Largest difference of replayed and eager steps, as a share of what the eager ones change: the kernels are the same,
but a library may choose another one while it records, and bfloat16 rounds after 8 bits."""


class Disagrees(RuntimeError):
    """A recorded step does not do what the step does."""


def capture(step: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """A function that does what `step` does, on the tensors that it uses now.

    Args:
        step: reads and writes tensors of the device only, neither synchronizes nor copies; called twice.
        device: one of `MODULES`; on any other, `step` itself is returned.
    """
    if device.type not in MODULES:
        return step
    module = MODULES[device.type]
    if device not in _streams:
        _streams[device] = module.Stream()
    side = _streams[device]
    module.empty_cache()  # of no use to another stream
    side.wait_stream(module.current_stream())
    with module.stream(side):
        step()  # libraries choose and load their kernels, which a recording may not
    module.current_stream().wait_stream(side)
    recorded = module.CUDAGraph()
    with module.graph(recorded, stream=side):
        step()
    return recorded.replay


class Graphs:
    """The recorded steps of a trial's stage, by the shapes of what they train.

    A step that cannot be recorded, or that does something else when it is replayed, runs eagerly from then on.

    Args:
        always: also where it saves nothing, as on the CPU; what would run eagerly is an error then.
        check: a recorded step is compared with the eager one before it is used.
        warn: called with why steps run eagerly.
    """

    def __init__(
        self, *, always: bool = False, check: bool = True, warn: Callable[[str], object] = warnings.warn
    ) -> None:
        self.always, self._check, self._warn = always, check, warn
        self._steps: dict[Any, _Step] = {}
        self.refused = False

    def clear(self) -> None:
        """Forgets the recorded steps, which hold memory."""
        self._steps.clear()

    def suit(self, method: Method, plan: Plan) -> bool:
        """True where a replay saves time: on CUDA, unless few clients are done long before the others."""
        if self.always or self.refused or not method.batched:
            return self.always
        together = plan.steps.numel() * int(plan.steps.max())
        return plan.last.device.type == "cuda" and int(plan.steps.sum()) >= (1 - WASTE) * together

    def train(
        self, method: Method, task: ClientTask, local: Local, plan: Plan, spec: OptimSpec
    ) -> tuple[Local, Tensor] | None:
        """All local steps of a block of clients.

        Returns:
            What the clients hold, and the sum [C] of their losses in the last epoch; None where the step cannot be
            recorded.
        """
        shapes = tuple((n, leaf.shape, leaf.dtype) for tree in local for n, leaf in tree.items())
        tables = tuple(map(id, (plan.data.images, *plan.data.views, *plan.data.second)))
        parts = (id(method), id(task.known), id(spec), plan.factor is None)
        key = (parts, shapes, tables, len(plan.last), plan.picked.rows.shape[-1])
        step = self._steps.pop(key, None)
        if step is None or step.capacity < plan.last.shape[1] or step.round not in (None, task.round):
            try:
                step = _Step(method, task, local, plan, spec, self._check)
            except Exception as problem:
                if self.always or is_out_of_memory(problem) or is_poisoned(problem):
                    raise
                self.refused = True
                self.clear()
                self._warn(f"Steps run eagerly, as one cannot be recorded as a CUDA graph: {problem}")
                return None
        self._steps[key] = step
        while len(self._steps) > _KEPT:
            del self._steps[next(iter(self._steps))]
        return step.train(local, plan)


class _Inputs(NamedTuple):
    """The inputs of a step from the plan, [C, T, ...]."""

    picked: Picked
    factor: Tensor | None
    last: Tensor
    active: Tensor
    """[C, T] bool: the client has a batch left."""

    @classmethod
    def of(cls, plan: Plan) -> _Inputs:
        active = torch.arange(plan.last.shape[1]) < plan.steps.unsqueeze(1)
        return cls(plan.picked, plan.factor, plan.last, active.to(plan.last.device))

    def map(self, action: Callable[[Tensor], Tensor]) -> _Inputs:
        picked = Picked(*(None if x is None else action(x) for x in self.picked))  # type: ignore[arg-type]
        return _Inputs(picked, *(None if x is None else action(x) for x in self[1:]))  # type: ignore[arg-type]

    def tensors(self) -> Iterator[Tensor]:
        return (x for x in (*self.picked, *self[1:]) if isinstance(x, Tensor))


class _Step:
    """One step of all clients on tensors of its own."""

    def __init__(
        self, method: Method, task: ClientTask, local: Local, plan: Plan, spec: OptimSpec, check: bool
    ) -> None:
        self.method, self.task, self.spec, self.data = method, _Watched(task), spec, plan.data
        # One step more than the plan has: where recording runs it, as the simulated device does, it is the second.
        self.inputs = _Inputs.of(plan).map(lambda x: torch.cat([x, x[:, :1]], 1))
        self.capacity = plan.last.shape[1]
        self.local = Local(*({name: leaf.clone() for name, leaf in tree.items()} for tree in local))
        moments = optim.start(spec, local.params)
        self.first, self.second = moments.first, moments.second
        self.total = torch.zeros(len(plan.last), device=plan.last.device)
        self.t = torch.zeros(1, dtype=torch.int64, device=plan.last.device)
        check = check and plan.last.device.type in MODULES
        # Eager steps come first: what they keep for their gradients is given back before a recording takes as much.
        eager = self._first_steps(self, local, plan) if check else {}
        self.replay = capture(self, plan.last.device)
        if check:
            _compare(eager, self._first_steps(self.replay, local, plan))
        self.round = task.round if self.task.read else None  # the only one that it can be replayed in

    def train(self, local: Local, plan: Plan) -> tuple[Local, Tensor]:
        self._begin(local, plan)
        for _ in range(plan.last.shape[1]):
            self.replay()
        return Local(*({n: leaf.clone() for n, leaf in tree.items()} for tree in self.local)), self.total.clone()

    def _first_steps(self, step: Callable[[], object], local: Local, plan: Plan) -> dict[str, Tensor]:
        """The tensors that the first two steps change, by name."""
        self._begin(local, plan)
        self.inputs.last.fill_(True)  # counts the losses of these steps
        for _ in range(min(2, plan.last.shape[1])):
            step()
        self.t.zero_()
        return self._changes(local)

    def _changes(self, local: Local) -> dict[str, Tensor]:
        """The tensors that steps have changed since clients held `local`, by name."""
        before = {"params": local.params, "buffers": local.buffers}
        now = {"params": self.local.params, "buffers": self.local.buffers}
        now |= {"moment": self.first, "second moment": self.second, "loss": {"": self.total}}
        return {
            f"{kind} {name}".strip(): leaf.double() - (before[kind][name].double() if kind in before else 0)
            for kind, tree in now.items()
            for name, leaf in tree.items()
        }

    def _begin(self, local: Local, plan: Plan) -> None:
        """Puts the plan and what clients hold where the recorded step reads them."""
        n_steps = plan.last.shape[1]
        for static, now in zip(self.inputs.tensors(), _Inputs.of(plan).tensors(), strict=True):
            static[:, :n_steps].copy_(now)
        for static, now in zip(self.local, local, strict=True):
            for name, leaf in now.items():
                static[name].copy_(leaf)
        for moment in (*self.first.values(), *self.second.values(), self.total, self.t):
            moment.zero_()

    def __call__(self) -> None:
        now = self.inputs.map(lambda x: x.index_select(1, self.t).squeeze(1))
        batch, state = self.data.take(now.picked), OptimState(self.first, self.second, self.t[0].double())
        loss, after, state = optim.descend(
            self.spec, self.method, cast(Task, self.task), self.local, batch, state, now.factor
        )
        with torch.no_grad():
            total = self.total + torch.where(now.last, loss.to(self.total.dtype), 0)
            for static, moved in zip((*self.local, self.first, self.second), (*after, *state[:2]), strict=True):
                _keep(static, moved, now.active)
            self.total.copy_(total)
            self.t.add_(1)


class _Watched:
    """A task that remembers whether a loss has read the round's number: a recorded step would keep it."""

    def __init__(self, task: ClientTask) -> None:
        self._task, self.read = task, False

    def __getattr__(self, name: str) -> Any:
        self.read = self.read or name in ("round", "rng")
        return getattr(self._task, name)


def _compare(eager: dict[str, Tensor], replayed: dict[str, Tensor]) -> None:
    """Compares what replayed steps and eager ones have changed; one wait.

    Raises:
        Disagrees: losses or gradients differ, by what they change.
    """
    wrong = torch.stack(
        [(replayed[name] - change).norm() > AGREES * change.norm() + 1e-12 for name, change in eager.items()]
    )
    if bool(wrong.any()):
        names = ", ".join(name for name, bad in zip(eager, wrong.tolist(), strict=True) if bad)
        raise Disagrees(f"replayed, it changes {names} in another way")


def _keep(target: Tree, moved: Tree, active: Tensor) -> None:
    """Writes what active clients have now over what they had; the others keep theirs."""
    for name, leaf in target.items():
        if moved[name] is not leaf:
            here = active.view(-1, *([1] * (leaf.ndim - 1)))
            leaf.copy_(torch.where(here, moved[name], leaf))
