import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Local, Tree, generator
from fpl_tune.methods.fedpha import FedPHA
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


def begin(task: ClientTask, method: FedPHA) -> Local:
    """Contexts far enough apart that every term matters."""
    state = method.init(task, generator("begin"))
    own = 0.3 * torch.randn(4, method.n_ctx, 32, generator=generator("own"), dtype=task.dtype)
    return method.start(task, state._replace(personal={"own": own}), EVERYONE)


@pytest.mark.parametrize("projection", ["null", "row"])
def test_loss_and_gradient_are_those_of_clients_alone(task, projection, assert_equal_to_clients_alone) -> None:
    method = FedPHA(n_ctx=4, ratio=0.5, alpha=0.5, pull=30.0, push=2.0, projection=projection)
    local = begin(task, method)
    prompt = local.params["prompt"][0]  # its Gram matrix' eigenvectors are the right singular vectors, weakest first
    vectors = torch.linalg.eigh(prompt.T @ prompt).eigenvectors
    strong, weak = vectors[:, -2:], vectors[:, -4:-2]

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        own = leaf["own"]
        kept = own - own @ strong @ strong.T if projection == "null" else own @ weak @ weak.T
        t_l, t_g, t_p = (task.encode_prompts(row) for row in (own, leaf["prompt"], kept))
        image = F.normalize(images, dim=-1)
        fit = sum(F.cross_entropy(task.scale * image @ t.T, labels) for t in (t_l, t_g))
        pull, apart = F.mse_loss(t_l, t_p), F.pairwise_distance(t_l, t_g, eps=0)
        assert pull > 0
        assert 0 < (apart < 0.5).double().mean() <= 1
        return fit + 30 * pull + 2 * (0.5 - apart).clamp(min=0).mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_clients_of_different_lengths_are_what_they_are_alone(task: ClientTask) -> None:
    """Tokens behind a client's length only decay, which tokens do that nothing reads."""
    mixed = FedPHA(n_ctx=2, lengths=(1, 3, 2))
    began = mixed.init(task, generator("lengths"))
    (together,) = play(mixed, [task], states=[began])[-1]
    for client, length in ((0, 1), (1, 3), (2, 2)):
        alone = FedPHA(n_ctx=2, lengths=(length,))
        start = began._replace(personal={"own": began.personal["own"][:, :length]})
        first = mixed.start(task, began, torch.tensor([client]))
        batch = task.train.batch(torch.tensor([client]), torch.arange(3)[None])
        short = alone.start(task, start, torch.tensor([client]))
        torch.testing.assert_close(mixed.loss(task, first, batch)[0], alone.loss(task, short, batch)[0])
        assert mixed.deploy(task, together, torch.tensor([client])).buffers["length"].tolist() == [length]
        (one,), (other,) = (
            play(m, [task], states=[s], cohorts=[[client]])[-1] for m, s in ((mixed, began), (alone, start))
        )
        torch.testing.assert_close(one.personal["own"][client, :length], other.personal["own"][client])
        torch.testing.assert_close(one.shared["prompt"], other.shared["prompt"])
    assert bool((together.personal["own"][0] != began.personal["own"][0]).any())
