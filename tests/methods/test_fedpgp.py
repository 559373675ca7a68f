from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Batch, Local, Tree, generator
from fpl_tune.methods.fedpgp import FedPGP
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play


def begin(method: FedPGP, task: ClientTask) -> Local:
    """Everyone's leaves, scaled up so that every term matters."""
    local = method.start(task, play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0], EVERYONE)
    return local._replace(params={n: (10 * leaf).requires_grad_() for n, leaf in local.params.items()})


@pytest.mark.parametrize("rank", [2, "full"])
@pytest.mark.parametrize(
    ("pairs", "signs"),
    [("both", "meant"), ("negative", "meant"), ("positive", "meant"), ("negative", "printed"), ("positive", "printed")],
)
def test_loss_and_gradient_are_those_of_clients_alone(task, rank, pairs, signs, assert_equal_to_clients_alone) -> None:
    method = FedPGP(n_ctx=3, rank=rank, mu=0.7, temperature=0.4, pairs=pairs, signs=signs)
    local = begin(method, task)
    local = local._replace(params={name: leaf.detach() for name, leaf in local.params.items()})

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        own = leaf["prompt"] + (leaf["delta"] if rank == "full" else leaf["u"] @ leaf["v"])
        z_i, z_g = task.encode_prompts(own), task.encode_prompts(leaf["prompt"])
        near, apart = (F.cosine_similarity(z_g, z) for z in (task.hand_text, z_i))
        share = torch.exp(near / 0.4) / (torch.exp(near / 0.4) + torch.exp(apart / 0.4))
        meant = {"both": -share.log(), "negative": apart, "positive": 1 - near}
        terms = (meant if signs == "meant" else {"negative": 1 - apart, "positive": near})[pairs]
        return F.cross_entropy(task.scale * F.normalize(images, dim=-1) @ z_i.T, labels) + 0.7 * terms.mean()

    assert_equal_to_clients_alone(method, task, local, plain)


def test_the_placeholder_anchor_is_the_text_of_as_many_x(task: ClientTask, batch: Batch) -> None:
    placeholder, hand = (FedPGP(n_ctx=3, rank=2, anchor=a) for a in ("placeholder", "hand"))
    local = begin(placeholder, task)
    anchor = F.normalize(task.towers.encode_text([f"X X X {name}." for name in task.known.names]), dim=-1)
    z_i, z_g = task.encode_prompts(placeholder.personal(local)), task.encode_prompts(local.params["prompt"])
    gap = placeholder.loss(task, local, batch)[0] - hand.loss(task, local, batch)[0]
    wanted = hand.contrast(z_g, z_i, anchor) - hand.contrast(z_g, z_i, task.hand_text)
    torch.testing.assert_close(gap, wanted.mean(-1), rtol=1e-8, atol=1e-10)
    assert float(gap.detach().abs().min()) > 1e-6


@pytest.mark.parametrize("rank", [1, "full"])
def test_copies_are_more_wrong_answers(task: ClientTask, batch: Batch, rank: Any) -> None:
    method = FedPGP(n_ctx=2, rank=rank, copies=2, mu=0.7, temperature=0.4)
    local = begin(method, task)
    logits, losses = method.logits(task, local, batch), method.loss(task, local, batch)[0]
    assert logits.shape == (4, 3, 2 * task.n_classes)
    for client in range(4):
        leaf = {n: v[client] for n, v in local.params.items()}
        own = [
            leaf["prompt"][j] + (leaf["delta"][j] if rank == "full" else leaf["u"][j] @ leaf["v"][j]) for j in (0, 1)
        ]
        z_i, z_g = (torch.cat([task.encode_prompts(row) for row in rows]) for rows in (own, leaf["prompt"]))
        scores = task.scale * F.normalize(batch.image[client], dim=-1) @ z_i.T
        torch.testing.assert_close(logits[client], scores)
        near, apart = F.cosine_similarity(z_g, task.hand_text.repeat(2, 1)), F.cosine_similarity(z_g, z_i)
        pair = torch.stack([near, apart], 1) / 0.4
        contrast = F.cross_entropy(pair, torch.zeros(len(pair), dtype=torch.int64))
        torch.testing.assert_close(losses[client], F.cross_entropy(scores, batch.label[client]) + 0.7 * contrast)


def test_an_image_that_a_copy_claims_is_wrong(task: ClientTask) -> None:
    """The second copy is the first, a little louder, so that it wins every image."""

    class Louder(FedPGP):
        def logits(self, task: Any, local: Local, batch: Batch) -> torch.Tensor:
            first, _ = super().logits(task, local, batch).split(task.n_classes, -1)
            return torch.cat([first, first + 1], -1)

    method = Louder(n_ctx=2, rank=1, copies=2)
    (scores,) = evaluate(method, [task], [method.init(task, generator("copies"))])
    assert bool((scores["test"].accuracy == 0).all())
    assert bool((scores["test"].loss > 1).all())  # at least log(1 + e)
