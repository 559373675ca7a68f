"""The simulated accelerator refuses what CUDA refuses and counts what CUDA waits for."""

from collections.abc import Callable

import pytest
import torch
from simulated_device import Counts, DeviceMix, counting, simulated
from torch import Tensor


def _counted(action: Callable[[Tensor], object]) -> Counts:
    with simulated() as device, counting() as seen:
        here = torch.arange(6.0).view(2, 3).to(device)
        seen.copies.clear()
        action(here)
    return seen


@pytest.mark.parametrize(
    ("action", "syncs", "copies"),
    [
        (lambda x: (x @ x.T).softmax(-1), 0, 0),
        (lambda x: x.sum().item(), 1, 0),
        (lambda x: bool((x > 0).all()), 1, 0),
        (lambda x: x.nonzero(), 1, 0),
        (lambda x: x[x > 0], 1, 0),
        (lambda x: x[torch.tensor([0])], 0, 1),
        (lambda x: x[torch.tensor([True, False])], 1, 1),
        (lambda x: x[torch.arange(2, device=x.device)], 0, 0),
        (lambda x: x.cpu(), 0, 1),
        (lambda x: x.tolist(), 0, 1),
        (lambda x: x + torch.tensor(1.0), 0, 0),
        (lambda x: x.copy_(torch.zeros(2, 3)), 0, 1),
        (lambda x: torch.zeros(2, 3).copy_(x), 0, 1),
        (lambda x: torch.tensor([1.0], device=x.device), 0, 1),
        (lambda x: x.to(torch.float64), 0, 0),
    ],
)
def test_what_waits_is_counted(action: Callable[[Tensor], object], syncs: int, copies: int) -> None:
    seen = _counted(action)
    assert (seen.syncs.total(), seen.copies.total(), seen.waits) == (syncs, copies, syncs + copies), seen
    assert all("test_sim.py:" in key for key in (*seen.syncs, *seen.copies))


@pytest.mark.parametrize(
    "action",
    [
        lambda x: x + torch.ones(3),
        lambda x: x @ torch.ones(3, 2),
        lambda x: torch.ones(2, 3)[torch.zeros(1, dtype=torch.int64, device=x.device)],
        lambda x: torch.cat([x, torch.ones(2, 3)]),
    ],
)
def test_mixed_devices_are_refused(action: Callable[[Tensor], object]) -> None:
    with pytest.raises(DeviceMix, match=r"test_sim\.py:"):
        _counted(action)


def test_gradients_and_figures_are_the_cpus(sim: torch.device) -> None:
    def trained(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2).to(device)
        image = torch.arange(12.0).view(4, 3).to(device)
        torch.nn.functional.cross_entropy(layer(image), torch.tensor([0, 1, 1, 0], device=device)).backward()
        assert layer.weight.grad is not None
        assert layer.weight.grad.device.type == device.type
        return layer.weight.grad.cpu()

    assert torch.equal(trained(sim), trained(torch.device("cpu")))
