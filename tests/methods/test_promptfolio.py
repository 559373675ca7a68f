from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, generator
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.methods.promptfolio import PromptFolio
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


@pytest.mark.parametrize(("theta", "alone"), [(0.0, PromptFL(n_ctx=2)), (1.0, CoOp(n_ctx=2))], ids=["0", "1"])
def test_at_its_ends_it_is_promptfl_or_coop(task: ClientTask, batch: Batch, theta: float, alone: Any) -> None:
    """The prompt without a share in the mix gets no gradient, and only decays."""
    method = PromptFolio(theta=theta, n_ctx=2)
    began = method.init(task, generator("ends"))
    kept = "prompt" if theta == 0 else "own"
    start = began.shared["prompt"] if theta == 0 else began.personal["own"][0]
    other = alone.init(task, generator("other"))
    other = other._replace(
        shared={n: start for n in other.shared}, personal={n: start.expand_as(v) for n, v in other.personal.items()}
    )
    found, wanted = (play(m, [task], states=[s])[-1][0] for m, s in ((method, began), (alone, other)))
    ours, theirs = (s.shared if theta == 0 else s.personal for s in (found, wanted))
    torch.testing.assert_close(ours[kept], theirs["prompt"], rtol=0, atol=1e-10)
    local = method.start(task, began, EVERYONE)
    leaves = {n: leaf.requires_grad_() for n, leaf in local.params.items()}
    moved = torch.autograd.grad(method.loss(task, local._replace(params=leaves), batch)[0].sum(), list(leaves.values()))
    assert [float(g.abs().max()) > 0 for g in moved] == [theta == 0, theta == 1]


@pytest.mark.parametrize("normalise", [False, True])
def test_logits_follow_the_equation(task: ClientTask, batch: Batch, normalise: bool) -> None:
    method = PromptFolio(theta=0.3, n_ctx=2, normalise=normalise)
    local = method.start(task, play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0], EVERYONE)
    local.params["own"] = local.params["own"] * 20  # features well apart
    found = method.logits(task, local, batch)
    for client in range(4):
        shared, own = (task.encode_prompts(local.params[n][client]) for n in ("prompt", "own"))
        mix = 0.7 * shared + 0.3 * own
        length = mix.norm(dim=-1)
        assert float(length.max()) < 1
        scores = task.scale * F.normalize(batch.image[client], dim=-1) @ mix.T
        torch.testing.assert_close(found[client], scores / length if normalise else scores)
