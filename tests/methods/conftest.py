"""What the tests of single methods share: the sizes of the papers, whole batches, the plain text path."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fpl_tune.method import Batch, unit
from fpl_tune.task import ClientTask


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
def plain_text() -> Callable[..., Tensor]:
    """Unit text features by open_clip's own modules on whole sentences."""

    def encode(task: ClientTask, context: Tensor, *, tail: str = "", **options: Any) -> Tensor:
        sentences = task.towers.sentences(task.known.names, context.shape[-2], tail=tail)
        return unit(task.towers.encode_prompts(context, sentences, plain=True, **options))

    return encode
