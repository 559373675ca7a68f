import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, generator
from fpl_tune.methods._transport import transport
from fpl_tune.methods.plot import PLOT
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="patches")


def test_the_plan_is_sinkhorns() -> None:
    """PLOT's iteration as it is written, on one image and class."""
    alike = 0.2 + 0.3 * torch.randn(3, 9, generator=generator("alike"), dtype=torch.float64)
    kernel, r, c = torch.exp(-(1 - alike) / 0.1).T, torch.ones(9).double(), torch.ones(3).double()
    for _ in range(6):
        r = 1 / 9 / (kernel @ c)
        c = 1 / 3 / (kernel.T @ r)
    torch.testing.assert_close(transport(alike, 1.0, 0.1, 6, capped=False), (r[:, None] * kernel * c).T)


def test_one_prompt_is_the_mean_of_the_patches(task: ClientTask, batch: Batch) -> None:
    method = PLOT(prompts=1, n_ctx=2, iterations=1)
    local = method.start(task, play(method, [task])[-1][0], EVERYONE)
    alike = F.normalize(batch.image, dim=-1) @ task.encode_prompts(local.params["prompt"][:, 0]).mT.unsqueeze(1)
    torch.testing.assert_close(method.logits(task, local, batch), task.scale * alike.mean(2))
