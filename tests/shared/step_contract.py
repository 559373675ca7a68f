"""What every method of the package keeps besides `fpl_tune.testing.CONTRACT`: on a GPU, its steps wait for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import torch
from simulated_device import Counts, counting, simulated

from fpl_tune.method import Local, Method, State
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import Toy, assert_same, play, toy_task
from fpl_tune.testing.rounds import COHORTS, SIZES

_ENGINE = 20
"""Launches of a step besides the method's loss, its gradient and the optimiser: images, their views, figures."""
_PER_LEAF = 10
"""Launches of an update of one leaf, with schedule and weight decay."""
_WAITS = 20
"""Copies and synchronisations that a round of two seeds may make, whatever its number of clients, steps and leaves."""


def a_step_waits_for_nothing(case: Toy) -> None:
    """On a GPU, steps make neither copies nor synchronisations, and a round makes few.

    Two seeds, blocks of two clients whose steps are recorded and replayed, and a restored state end where they end on
    the CPU. Checked on the simulated accelerator (`simulated_device`).
    """
    with simulated() as device:
        _check_steps(case, device)


def _check_steps(case: Toy, device: torch.device) -> None:
    method = case.method
    here = tuple(toy_task(method.needs, kind=case.kind, seed=s, sizes=z, device=device) for s, z in enumerate(SIZES))
    stored = [moved(case.history[-2], lambda leaf: leaf.to(device)) for _ in range(2)]
    last = {"cohorts": COHORTS[-1:], "first": len(COHORTS), "states": stored}
    local = method.start(here[0], stored[0], torch.arange(2, device=device))  # of one client, copies are views
    alone = _launches(method, here[0], local) if local.params else 0  # fills caches
    began: list[Counts] = []
    loss = type(method).loss

    def counted(*args: Any) -> Any:
        began.append(deepcopy(seen))
        return loss(*args)

    with counting() as seen, patch.object(type(method), "loss", counted):
        (*_, (after, _)) = play(method, here, **last)
    assert_same(moved(after, torch.Tensor.cpu), case.history[-1], tolerance=1e-8)
    assert seen.waits <= _WAITS, f"a round waits {seen.waits} times: {seen.syncs}, {seen.copies}"
    assert bool(began) == bool(local.params)
    if began:
        first, *_, final = began
        for what in ("syncs", "copies"):
            more: Counter[str] = getattr(final, what) - getattr(first, what)
            assert not more, f"a step has {what}: {dict(more)}"
        most = (alone + _ENGINE + _PER_LEAF * len(local.params)) * (1 if method.batched else 3)
        found = (final.launches.total() - first.launches.total()) / (len(began) - 1)
        assert found <= most, f"a step of six clients launches {found:.0f} kernels; that of two, {alone}"
    graphs = Graphs(always=True) if method.batched else None
    (blocks,) = play(method, here[:1], block=2, graphs=graphs, **{**last, "states": stored[:1]})[-1]
    assert_same(moved(blocks, torch.Tensor.cpu), case.history[-1], tolerance=1e-8)


def _launches(method: Method, task: ClientTask, local: Local) -> int:
    """Kernels of two clients' loss and gradient."""
    index = torch.arange(4, device=task.device).expand(2, -1)
    batch = task.train.batch(torch.arange(2, device=task.device), index, torch.zeros_like(index))
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in local.params.items()}
    with counting() as seen:
        loss, _ = method.loss(task, Local(leaves, local.buffers), batch)
        torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
    return seen.launches.total()


def moved(state: State, to: Callable[[torch.Tensor], torch.Tensor]) -> State:
    return State(*({name: to(leaf) for name, leaf in tree.items()} for tree in state))
