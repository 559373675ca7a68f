import torch
import torch.nn.functional as F

from fpl_tune.methods.fedper import FedPer
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import play


def test_own_tokens_stand_next_to_the_class_name(task: ClientTask) -> None:
    """Gradients of base and own tokens are those of one context whose last tokens are the own ones."""
    method = FedPer(n_own=1, n_ctx=3)
    local = method.start(task, play(method, [task])[-1][0], torch.tensor([2]))
    batch = task.train.batch(torch.tensor([2]), torch.arange(7).expand(1, -1))
    leaves = [leaf.requires_grad_() for leaf in local.params.values()]
    (loss,) = method.loss(task, local, batch)[0]
    whole = torch.cat([local.params["base"][0], local.params["own"][0]]).detach().requires_grad_()
    scores = task.scale * F.normalize(batch.image[0], dim=-1) @ task.encode_prompts(whole).T
    wanted = F.cross_entropy(scores, batch.label[0])
    torch.testing.assert_close(loss, wanted)
    base, own = torch.autograd.grad(loss, leaves)
    (gradient,) = torch.autograd.grad(wanted, whole)
    torch.testing.assert_close(base[0], gradient[:2])
    torch.testing.assert_close(own[0], gradient[2:])
