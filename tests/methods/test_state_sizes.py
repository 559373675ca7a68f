"""What the server of 500 clients holds of CIFAR-100's classes, at the sizes of ViT-B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fpl_tune import methods

NAMES = sorted(set(methods.catalogue()) - {"full_model", "proximal", "private", "finetuned"})


@pytest.mark.parametrize("name", NAMES)
def test_states_of_500_clients_fit_into_two_gigabytes(name: str, paper_task: Callable[..., Any]) -> None:
    """States grow by as many bytes with each client: those of ten and of twenty say how much 500 take."""
    method = methods.build({"name": name})

    def held(n_clients: int) -> int:
        task = paper_task(n_clients=n_clients, n_classes=100, n_domains=1, domain=torch.arange(n_clients) * 0)
        task.words = lambda text: torch.zeros(len(text.split()), 512)
        task.hand_text = torch.zeros(100, 512)
        state = method.init(task, torch.Generator().manual_seed(0))
        return sum(leaf.nbytes for tree in state for leaf in tree.values())

    few, more = held(10), held(20)
    assert few + 49 * (more - few) < 2e9
