"""The whole image tower under FedAvg."""

from copy import deepcopy

import pytest
import torch

from fpl_tune.config.specs import OptimSpec
from fpl_tune.methods.full_model import FullModel
from fpl_tune.testing import play, toy_task


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_a_client_trains_as_a_copy_of_the_tower_would(kind):
    """Two local epochs of SGD by torch.optim on a deep copy, batches in the engine's order (one batch an epoch)."""
    task = toy_task("pixels", kind=kind, sizes=(5, 3))
    method, spec = FullModel(), OptimSpec(lr=0.01, batch=8, momentum=0.9, weight_decay=1e-3)
    (before,), (after,) = play(method, [task], cohorts=[(0,)], spec=spec, epochs=2)
    tower = deepcopy(task.visual()).requires_grad_()
    head = torch.nn.Linear(task.embed_dim, task.n_classes).double()
    head.load_state_dict({"weight": before.shared["head.weight"], "bias": before.shared["head.bias"]})
    optimiser = torch.optim.SGD([*tower.parameters(), *head.parameters()], lr=0.01, momentum=0.9, weight_decay=1e-3)
    table = task.table("train")
    image, label = table.image[0][table.mask[0]], table.label[0][table.mask[0]]
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(head(tower(image)), label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name, parameter in tower.named_parameters():
        torch.testing.assert_close(after.shared[f"tower.{name}"], parameter.detach(), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(after.shared["head.weight"], head.weight.detach(), rtol=1e-6, atol=1e-9)
