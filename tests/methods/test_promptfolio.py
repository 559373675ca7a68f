import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch
from fpl_tune.methods.promptfolio import PromptFolio
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


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
