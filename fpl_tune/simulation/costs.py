"""What a client's part in a run costs: operations, bytes and memory, known before the run starts.

They follow from the configuration and the partition of seed 1 alone, whatever the device, the images, the weights and
the seeds that run. Steps are run on images that are all zeros, on towers without values where these are large.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fpl_tune.clip import Towers
from fpl_tune.clip._openclip import without_compiler
from fpl_tune.clip.attention import as_products
from fpl_tune.config import RunSpec
from fpl_tune.core.device import fixed_settings
from fpl_tune.core.metrics import BYTES_PER_SCALAR
from fpl_tune.core.paths import cache_root
from fpl_tune.core.tensors import large_leaves_in
from fpl_tune.data import Dataset
from fpl_tune.method import Adapter, Local, Method, State, fresh_leaves
from fpl_tune.simulation import bounds
from fpl_tune.simulation.batches import spans
from fpl_tune.simulation.bounds import Memory
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.dummy import cost_key, dummy_task, outlined, towers_to_plan, without_values
from fpl_tune.simulation.task import ClientTask
from fpl_tune.simulation.traffic import SilentTask, bytes_sent
from fpl_tune.simulation.worlds import initial_state, work_of

_COUNTED = 3
"""Sizes of a batch that are counted. More follow from them: operations grow with a batch's images by a polynomial of
degree two at most, as in a contrastive loss."""
_UNLIMITED = 1 << 62

_known: dict[str, Known] = {}
_measured: dict[str, list[Measured]] = {}
_outlines: dict[str, Towers] = {}


def known_costs(run: RunSpec, towers: Towers | None = None, dataset: Dataset | None = None) -> dict[str, float]:
    """The metrics of a run that its configuration determines: `cost/...`, and `comm/...` of all rounds with seed 1.

    Computed once a process for runs with the same sizes.

    Args:
        run: the run.
        towers, dataset: those of the run where they are loaded already; only their sizes are read.
    """
    return dict(known(run, towers, dataset).costs)


class Known(NamedTuple):
    """What is known of a run before it starts."""

    costs: dict[str, float]
    """See `known_costs`."""
    memory: Memory
    """Of one seed, in the first stage."""
    personal: bool
    """True if clients keep a personal part of what is learned."""


def known(run: RunSpec, towers: Towers | None = None, dataset: Dataset | None = None) -> Known:
    """Costs and memory of a run by its sizes; the arguments of `known_costs`.

    They are computed on `outlined` towers, which a process makes once; on towers with values if a method reads these.
    """
    key, clip = f"{cost_key(run)} {run.rounds} {run.data.root}", json.dumps(vars(run.clip), sort_keys=True)
    if key in _known:
        return _known[key]
    with fixed_settings(1), torch.random.fork_rng(devices=[]), large_leaves_in(cache_root()):
        if clip not in _outlines:
            _outlines[clip] = outlined(towers or towers_to_plan(run.clip))
        try:
            _known[key] = _costs(run, dummy_task(run, _outlines[clip], dataset))
        except Exception:
            whole = outlined(towers or towers_to_plan(run.clip), math.inf)
            _known[key] = _costs(run, dummy_task(run, whole, dataset))
    return _known[key]


def _costs(run: RunSpec, task: ClientTask) -> Known:
    clients, sent = sum(size > 0 for size in task.train.sizes), bytes_sent(run, 1, task)
    first, steps, work = 1, list[Counter[int]](), _work(run, task)
    for rounds, stage in zip(_rounds(run), run.stages, strict=False):
        numbers = range(first, first + rounds)
        first = numbers.stop
        parts = [(share * stage.epochs, sizes) for share, sizes in work.items()]
        each = (batches(sizes, epochs, run.optim.batch, number) for epochs, sizes in parts for number in numbers)
        steps.append(sum(each, Counter()))
    measured, operations = _measure(run, task, steps), 0
    for rounds, (flops, *_), counted in zip(_rounds(run), measured, steps, strict=True):
        operations += rounds * clients * flops.once + sum(n * flops.of_step(size) for size, n in counted.items())
    with without_values(task.towers):
        state = initial_state(checked(run.stages[0].method), task, 1)
        memory = bounds.estimate(run, _apart(task), state, measured[0].step)
    found = {
        "cost/client_flops": operations / max(1, clients * run.rounds),
        "cost/client_bytes": (sent.up + sent.down) / sent.clients,
        "cost/client_memory": max(each.memory for each in measured),
        "cost/learned": measured[-1].flops.learned,
        "cost/sent": sent.up / BYTES_PER_SCALAR / sent.clients,
        "comm/up_bytes": sent.up,
        "comm/down_bytes": sent.down,
        "comm/total_bytes": sent.up + sent.down,
    }
    return Known(found, memory, bool(state.personal))


def _work(run: RunSpec, task: ClientTask) -> dict[float, list[int]]:
    """Numbers of images of clients, by the share of the local epochs that they do."""
    shares, sizes = work_of(run, task) or {}, dict[float, list[int]]()
    for client, size in enumerate(task.train.sizes):
        sizes.setdefault(shares.get(client, 1.0), []).append(size)
    return sizes


def _rounds(run: RunSpec) -> list[int]:
    """Rounds of each stage that runs."""
    return [stage.rounds for stage in run.stages] if run.learns else [1]


class Measured(NamedTuple):
    """The costs of a stage that do not depend on who has how many images."""

    flops: ClientFlops
    memory: int
    """Of a client, in bytes."""
    step: int
    """Kept by a step for its gradient, in bytes."""


def _measure(run: RunSpec, task: ClientTask, steps: Sequence[Counter[int]]) -> list[Measured]:
    """Measures the stages of a run, once a process for runs that differ only in how classes and images are dealt.

    Args:
        run: the run.
        task: its task on outlined towers.
        steps: by stage, the images of the batches that are trained on.
    """
    sizes = [sorted(counted) if len(counted) <= _COUNTED else [*range(1, _COUNTED + 1)] for counted in steps]
    shapes = (task.known.names, task.template, task.n_clients, task.n_domains, run.optim.batch, sizes, run.data.views)
    key = json.dumps([cost_key(run, "clip", "method", "stages"), *shapes])
    if key not in _measured:
        state, found = None, list[Measured]()
        for stage, images in zip(run.stages, sizes, strict=False):
            with without_values(task.towers):
                state = initial_state(checked(stage.method), task, 1, state)
                held = bounds.estimate(replace(run, method=stage.method, stages=(stage,)), _apart(task), state)
                flops = client_flops(stage.method, task, state, images)
            found.append(Measured(flops, held.towers + held.step + held.client, held.step))
        _measured[key] = found
    return _measured[key]


def batches(sizes: Sequence[int], epochs: float, batch: int, number: int) -> Counter[int]:
    """The steps of clients with so many images each in a round, counted from 1: their number by images of a batch."""
    steps = Counter[int]()
    for size, clients in Counter(sizes).items():
        for span in spans(size, epochs, number).values():
            whole, left = divmod(len(span), batch)
            steps[batch] += clients * whole
            steps[left] += clients * (left > 0)
    return +steps


@dataclass(frozen=True)
class ClientFlops:
    """Operations of a client: a multiplication and an addition are two."""

    once: int = 0
    """In a round before its first step: of the prompts that it encodes without gradients."""
    steps: Mapping[int, int] = field(default_factory=dict)
    """Forward and backward, of a step by the images of its batch."""
    learned: int = 0
    """Scalars that it learns."""

    def of_step(self, images: int) -> int:
        """Operations of a step. Of a size that was not counted, by the polynomial through those of one image, two, ...
        (in Newton's form, exact in integers)."""
        if not self.steps or images in self.steps:
            return self.steps.get(images, 0)
        total, differences = 0, [self.steps[size] for size in range(1, _COUNTED + 1)]
        for degree in range(_COUNTED):
            total += math.comb(images - 1, degree) * differences[0]
            differences = [after - before for before, after in pairwise(differences)]
        return total


def client_flops(method: Method, task: ClientTask, state: State, sizes: Collection[int]) -> ClientFlops:
    """Counts the operations of the client with most images as it would run itself: prompts by the packed path, what
    does not change in a round once, and no activation twice.

    Hand-written prompts are not counted, as they are encoded once a run.

    Args:
        method: the method.
        task: its task on the CPU.
        state: the state that a round starts with.
        sizes: images of the batches that are counted; 1 to 3 if the operations of others are asked for.
    """
    task, method = _apart(task, _UNLIMITED), checked(method)
    clients, counted = task.size.argmax()[None], dict[int, int]()
    with _all_counted():
        with torch.no_grad(), task.counting():
            local = method.start(task, state, clients)
        once = task.kept
        if not local.params:
            return ClientFlops(once)
        with task.counting():
            _loss(method, task, local, clients, 1)  # embeds the words of the sentences, once a run
        for size in sizes:
            with task.counting():
                loss, leaves = _loss(method, task, local, clients, size)
                torch.autograd.grad(loss, leaves, allow_unused=True)
                counted[size] = task.total() - task.kept
        once += task.kept
    return ClientFlops(once, counted, sum(leaf[0].numel() for leaf in local.params.values()))


def _loss(method: Method, task: ClientTask, local: Local, clients: Tensor, images: int) -> tuple[Tensor, list[Tensor]]:
    """The loss of a client's batch, and the leaves that it learns."""
    index = torch.arange(images).clamp(max=task.train.spare)[None]
    leaves = fresh_leaves(local.params)
    batch = task.train.batch(clients, index, torch.zeros_like(index))
    return method.loss(task, Local(leaves, local.buffers), batch)[0].sum(), list(leaves.values())


@contextmanager
def _all_counted() -> Iterator[None]:
    """Within the block, operations are of kinds that `FlopCounterMode` knows."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), as_products(), without_compiler():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Encoding(NamedTuple):
    """Operations of text features, which follow from the shape of the context."""

    features: torch.Size
    forward: int
    backward: int


_encodings: WeakKeyDictionary[Towers, dict[Any, _Encoding]] = WeakKeyDictionary()


class _Encoded(torch.autograd.Function):
    """Features that are all equal in place of an encoding that was counted before. They add its operations where it
    would have run, those of its gradient if that is asked for."""

    @staticmethod
    def forward(ctx: Any, context: Tensor, task: _Apart, encoding: _Encoding) -> Tensor:
        ctx.context, ctx.task, ctx.encoding = context, task, encoding
        task.added += encoding.forward
        return task.equal(*encoding.features[:-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.task.added += ctx.encoding.backward
        return torch.zeros_like(ctx.context), None, None


@dataclass
class _Apart(SilentTask):
    """A task that counts apart what is encoded without gradients and kept for the round. It is silent about that where
    nothing is counted, and always about hand-written prompts, which are encoded once a run.

    Where it counts, what learns contexts alone is encoded once a process for each shape of a context, whatever the
    method and the batch.
    """

    kept: int = 0
    """Operations of that since counting began."""
    added: int = 0
    """Operations since counting began of what was counted before."""
    counter: FlopCounterMode | None = None

    @contextmanager
    def counting(self) -> Iterator[None]:
        self.kept = self.added = 0
        with FlopCounterMode(display=False) as self.counter:
            yield
        self.counter = None

    def total(self) -> int:
        """Operations since counting began."""
        return self.added + (0 if self.counter is None else self.counter.get_total_flops())

    def encode_prompts(self, context: Tensor, *, cache: bool = True, **how: Any) -> Tensor:
        if self.counter is None and not torch.is_grad_enabled():
            return super().encode_prompts(context, **how)
        learns = context.requires_grad and torch.is_grad_enabled() and not {"adapter", "deep"} & how.keys()
        if learns and self.counter is not None:
            return self._once(context, how)
        return self._counted(partial(ClientTask.encode_prompts, self, context, cache=False, **how), cache)

    def sentences(self, templates: Sequence[str], *, adapter: Adapter | None = None) -> Tensor:
        if adapter is None or (self.counter is None and not torch.is_grad_enabled()):
            return super().sentences(templates, adapter=adapter)
        return self._counted(partial(ClientTask.sentences, self, templates, adapter=adapter), True)

    def _counted(self, encode: Callable[[], Tensor], kept: bool) -> Tensor:
        before = self.total()
        features = encode()
        if kept and not features.requires_grad:
            self.kept += self.total() - before
        return features

    def _once(self, context: Tensor, how: Mapping[str, Any]) -> Tensor:
        """Features of contexts that learn."""
        known, found = self.known, _encodings.setdefault(self.towers, {})
        key = tuple(known.names), known.position, known.plain, context.shape, context.dtype, repr(sorted(how.items()))
        if key not in found:
            start, leaf = self.total(), context.detach().requires_grad_()
            ClientTask.encode_prompts(self, leaf, **how)  # embeds the words
            embedded = self.total()
            features = ClientTask.encode_prompts(self, leaf, **how)
            forward = self.total() - embedded
            torch.autograd.grad(features.sum(), leaf)
            found[key] = _Encoding(features.shape, forward, self.total() - embedded - forward)
            self.added -= self.total() - start
        return _Encoded.apply(context, self, found[key])


def _apart(task: ClientTask, at_once: int | None = None) -> _Apart:
    """The task without a cache of prompts, which reads values; `at_once` as in `Classes`."""
    given = {each.name: getattr(task, each.name) for each in fields(ClientTask)}
    return _Apart(**{**given, "known": replace(task.known, memory=None, at_once=at_once)})
