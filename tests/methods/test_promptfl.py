import torch
import torch.nn.functional as F

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import average
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play


def test_a_round_is_a_step_of_every_client_and_the_mean_weighted_by_images(task: ClientTask) -> None:
    """One full-batch step of plain gradient descent, written out with torch's own cross-entropy."""
    spec = OptimSpec(lr=0.1, batch=16, momentum=0.0, weight_decay=0.0)
    (before,), (after,) = play(PromptFL(n_ctx=2), [task], cohorts=[[0, 2]], spec=spec, epochs=1)
    table, total = task.table("train"), torch.zeros_like(before.shared["prompt"])
    for client, size in ((0, 9), (2, 7)):
        prompt = before.shared["prompt"].clone().requires_grad_()
        image = F.normalize(table.image[client, :size], dim=-1)
        loss = F.cross_entropy(task.scale * image @ task.encode_prompts(prompt).T, table.label[client, :size])
        (gradient,) = torch.autograd.grad(loss, prompt)
        total += size / 16 * (prompt.detach() - 0.1 * gradient)
    torch.testing.assert_close(after.shared["prompt"], total, rtol=0, atol=1e-10)


def test_the_released_loop_keeps_the_last_clients_prompt(task: ClientTask) -> None:
    last, alone = (
        play(m, [task], cohorts=[clients])[-1][0].shared["prompt"]
        for m, clients in ((PromptFL(n_ctx=2, weights="last"), [1, 0, 2]), (PromptFL(n_ctx=2), [2]))
    )
    torch.testing.assert_close(last, alone, rtol=0, atol=1e-12)


def test_shares_of_the_average_are_computed_in_double_precision():
    """2²⁴ + 1 images are not a float32: the share of all but one of them would be off by its last bit."""
    n = 2**24 + 1
    mean = average(torch.tensor([[1.0], [0.0]]), torch.tensor([n, 1]))
    assert mean.dtype == torch.float32
    assert mean.item() == torch.tensor(n / (n + 1), dtype=torch.float64).float().item() == 1 - 2**-24
