"""The optimisers against torch's own, client by client."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.simulation import optim

STEPS = 6


def _gradient(leaf: torch.Tensor, t: int) -> torch.Tensor:
    """Any smooth function of the leaf and the step will do."""
    return torch.sin(leaf * (t + 1)) + 0.1 * leaf


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_equals_torch_for_each_client_alone(name: Literal["sgd", "adam", "adamw"]) -> None:
    """FedCLIP's released optimiser is Adam with betas 0.9 and 0.98, eps 1e-6 and a coupled decay of 0.2."""
    torch.manual_seed(0)
    more = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.2}
    spec = OptimSpec(name=name, lr=0.05, groups={"gate": 0.3}, momentum=0.9, **more)
    train = {
        "prompt": torch.randn(3, 4, 5, dtype=torch.float64),
        "gate.weight": torch.randn(3, 2, dtype=torch.float64),
    }
    moved, state = train, optim.start(spec, train)
    for t in range(STEPS):
        grads = {n: _gradient(leaf, t) for n, leaf in moved.items()}
        moved, state = optim.step(spec, moved, grads, state, torch.ones(3))
    for client in range(3):
        alone = {n: leaf[client].clone().requires_grad_() for n, leaf in train.items()}
        groups = [{"params": [alone["prompt"]], "lr": 0.05}, {"params": [alone["gate.weight"]], "lr": 0.3}]
        reference = {
            "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.2),
            "adam": lambda groups: torch.optim.Adam(groups, **more),
            "adamw": lambda groups: torch.optim.AdamW(groups, **more),
        }[name](groups)
        for t in range(STEPS):
            for leaf in alone.values():
                leaf.grad = _gradient(leaf.detach(), t)
            reference.step()
        for n, leaf in alone.items():
            torch.testing.assert_close(moved[n][client], leaf.detach(), atol=1e-12, rtol=1e-12)


def test_shared_cosine_has_the_multipliers_of_the_released_code() -> None:
    """One scheduler that clients step in turn: 5 local epochs of the first, the second, the third client."""
    found = [optim.rate_factor("shared_cosine", e, 5, place) for place in range(3) for e in range(5)]
    first = [0.0, 1, 0.9045, 0.6545, 0.3455]  # warm-up, then half a cosine
    second = [0.0955, 0, 0.0955, 0.3455, 0.6545]
    third = [0.9045, 1, 0.9045, 0.6545, 0.3455]
    assert found == pytest.approx(first + second + third, abs=1e-4)


def test_shared_cosine_leaves_the_rates_of_groups_constant() -> None:
    """The gate of pFedMoAP's released code has an optimiser of its own, without a scheduler."""
    train = {"prompt": torch.ones(2, 3), "gate.weight": torch.ones(2, 3)}
    spec = OptimSpec(lr=0.1, groups={"gate": 0.1}, momentum=0, weight_decay=0, schedule="shared_cosine")
    factor = torch.tensor([0.0, 0.5])
    moved, _ = optim.step(spec, train, train, optim.start(spec, train), factor)
    assert moved["prompt"][:, 0].tolist() == pytest.approx([1.0, 0.95])
    assert moved["gate.weight"][:, 0].tolist() == pytest.approx([0.9, 0.9])
    moved, _ = optim.step(replace(spec, schedule="cosine"), train, train, optim.start(spec, train), factor)
    assert moved["gate.weight"][:, 0].tolist() == pytest.approx([1.0, 0.95])


def test_a_rate_that_falls_over_rounds_is_torchs_cosine() -> None:
    leaf = torch.nn.Parameter(torch.zeros(1))
    reference = torch.optim.SGD([leaf], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=7)
    for round_ in range(1, 8):
        for epoch in range(3):
            found = optim.rate_factor("rounds_cosine", epoch, 3, round_=round_, rounds=7)
            assert found == pytest.approx(scheduler.get_last_lr()[0])
        reference.step()
        scheduler.step()
