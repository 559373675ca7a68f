"""What the tests of single methods share: a toy task, sizes of the papers, plain versions of batches and texts."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fpl_tune.method import Batch, Local, Method, normalize
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, toy_task


@pytest.fixture(scope="module")
def task(request: pytest.FixtureRequest) -> ClientTask:
    """Pooled features of random images, or what the module's TASK says."""
    return toy_task(**getattr(request.module, "TASK", {}))


@pytest.fixture
def batch(task: ClientTask) -> Batch:
    """Every client's first three images."""
    return task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))


@pytest.fixture
def paper_task() -> Callable[..., Any]:
    """Sizes of DomainNet under ViT-B, one client a domain: enough of a task to start a state and count it."""

    def build(**changes: Any) -> Any:
        sizes = {
            "n_clients": 6,
            "n_classes": 345,
            "n_domains": 6,
            "embed_dim": 512,
            "text_width": 512,
            "vision_width": 768,
            "n_patches": 49,
            "n_text_blocks": 12,
            "n_vision_blocks": 12,
            "same_classes": True,
            "dtype": torch.float32,
            "device": torch.device("cpu"),
            "domain": torch.arange(6),
        }
        return SimpleNamespace(**{**sizes, **changes})

    return build


@pytest.fixture
def whole_batch() -> Callable[[ClientTask], Batch]:
    """Every client's training images in one batch, the shorter clients padded."""

    def build(task: ClientTask) -> Batch:
        everyone = torch.arange(task.n_clients)
        places = torch.arange(task.train.spare).expand(task.n_clients, -1)
        return task.train.batch(everyone, torch.where(task.train.mask[:, :-1], places, task.train.spare))

    return build


@pytest.fixture
def whole(task: ClientTask, whole_batch: Callable[[ClientTask], Batch]) -> Batch:
    """The same of the module's task."""
    return whole_batch(task)


@pytest.fixture
def assert_equal_to_clients_alone(whole_batch: Callable[[ClientTask], Batch]) -> Callable[..., None]:
    """Compares a method's loss of all training images (or of `batch`) and its gradient with those of clients alone.

    `plain(client, leaves, images, labels)` is the loss of a client, written out.
    """

    def compare(
        method: Method, task: ClientTask, local: Local, plain: Callable[..., Tensor], rtol: float = 1e-6, **of: Batch
    ) -> None:
        leaves, batch = local.params, of.get("batch", whole_batch(task))
        for leaf in leaves.values():
            leaf.requires_grad_()
        loss, _ = method.loss(task, local, batch)
        found = torch.autograd.grad(loss.sum(), list(leaves.values()))
        for client in range(task.n_clients):
            own = {name: leaf[client].detach().clone().requires_grad_() for name, leaf in leaves.items()}
            real = batch.mask[client]
            wanted = plain(client, own, batch.image[client, real], batch.label[client, real])
            torch.testing.assert_close(loss[client], wanted)
            for one, other in zip(found, torch.autograd.grad(wanted, list(own.values())), strict=True):
                torch.testing.assert_close(one[client], other, rtol=rtol, atol=1e-9)

    return compare


@pytest.fixture
def plain_text() -> Callable[..., Tensor]:
    """Unit text features by open_clip's own modules on whole sentences."""

    def encode(task: ClientTask, context: Tensor, *, tail: str = "", **options: Any) -> Tensor:
        sentences = task.towers.sentences(task.known.names, context.shape[-2], tail=tail)
        return normalize(task.towers.encode_prompts(context, sentences, plain=True, **options))

    return encode
