import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, Local, generator
from fpl_tune.methods.prograd import ProGrad
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE


def gradients(task: ClientTask, batch: Batch, method: ProGrad, client: int, prompt: torch.Tensor) -> list[torch.Tensor]:
    """g_a, g_b and both losses of one client's first three images, with torch's own cross-entropy and divergence."""
    leaf = prompt.clone().requires_grad_()
    image = F.normalize(batch.image[client], dim=-1)
    t, scores = method.temperature, task.scale * image @ task.encode_prompts(leaf).T
    fit = F.cross_entropy(scores, batch.label[client])
    hand = (task.scale * image @ task.hand_text.T / t).log_softmax(-1)
    kl = t**2 * F.kl_div((scores / t).log_softmax(-1), hand, reduction="batchmean", log_target=True)
    g_a = torch.autograd.grad(fit, leaf, retain_graph=True)[0]
    return [g_a, torch.autograd.grad(kl, leaf)[0], fit.detach(), kl.detach()]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_conflicting_component_is_removed(task: ClientTask, batch: Batch, temperature: float) -> None:
    """Over many contexts some clients conflict with the teacher and some do not."""
    met = set()
    for draw in range(6):
        method = ProGrad(n_ctx=2, words="", temperature=temperature)
        local = method.start(task, method.init(task, generator("conflict", draw)), EVERYONE)
        local.params["prompt"] = (10 * local.params["prompt"]).requires_grad_()
        losses, _ = method.loss(task, local, batch)
        (found,) = torch.autograd.grad(losses.sum(), [local.params["prompt"]])
        for client in range(4):
            g_a, g_b, fit, _ = gradients(task, batch, method, client, local.params["prompt"][client].detach())
            torch.testing.assert_close(losses[client].detach(), fit)
            unit_b = g_b / g_b.norm()
            conflict = bool((g_a * g_b).sum() < 0)
            wanted = g_a - (g_a * unit_b).sum() * unit_b if conflict else g_a
            torch.testing.assert_close(found[client], wanted, rtol=1e-7, atol=1e-9)
            assert float((found[client] * unit_b).sum()) >= -1e-9
            met.add(conflict)
    assert met == {True, False}


def test_a_share_of_the_component_is_removed() -> None:
    g_a, g_b = torch.tensor([[[3.0, -4.0]], [[3.0, 4.0]]]), torch.tensor([[[0.0, 2.0]], [[0.0, 2.0]]])
    assert ProGrad(lam=0.25).aligned(g_a, g_b).tolist() == [[[3.0, -3.0]], [[3.0, 4.0]]]
    assert ProGrad(lam=0.5).aligned(g_a, 0 * g_b).tolist() == g_a.tolist()


def test_rounding_noise_of_the_teachers_gradient_removes_nothing(task: ClientTask, batch: Batch) -> None:
    """A context that starts at the hand-written prompts has no conflict, whatever its last digits say."""
    method = ProGrad(n_ctx=4)
    local = method.start(task, method.init(task, generator("noise")), EVERYONE)
    local.params["prompt"].requires_grad_()
    (found,) = torch.autograd.grad(method.loss(task, local, batch)[0].sum(), [local.params["prompt"]])
    for client in range(4):
        g_a, g_b, _, _ = gradients(task, batch, method, client, local.params["prompt"][client].detach())
        assert g_b.norm() < 1e-12 * g_a.norm()
        torch.testing.assert_close(found[client], g_a, rtol=1e-7, atol=0)


def test_the_port_descends_the_teachers_loss(task: ClientTask, batch: Batch) -> None:
    method = ProGrad(n_ctx=2, words="", form="distil", lam=0.5)
    local: Local = method.start(task, method.init(task, generator("port")), EVERYONE)
    local.params["prompt"].requires_grad_()
    (found,) = torch.autograd.grad(method.loss(task, local, batch)[0].sum(), [local.params["prompt"]])
    for client in range(4):
        g_a, g_b, _, _ = gradients(task, batch, method, client, local.params["prompt"][client].detach())
        torch.testing.assert_close(found[client], g_a + 0.5 * g_b, rtol=1e-7, atol=1e-9)
