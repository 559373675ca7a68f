"""A toy task, and gradients of one step on it."""

from collections.abc import Callable

import pytest
import torch

from fpl_tune.method import Local, Method, Tree
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import toy_task


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


@pytest.fixture(scope="module")
def gradients(task: ClientTask) -> Callable[[Method, Local], Tree]:
    """By leaf, of the loss of every client's first three images."""
    batch = task.train.batch(torch.arange(4), torch.arange(3).expand(4, -1))

    def found(method: Method, local: Local) -> Tree:
        leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in local.params.items()}
        loss, _ = method.loss(task, local._replace(params=leaves), batch)
        return dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))

    return found
