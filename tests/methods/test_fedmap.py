"""FedMAP: prototypes that follow batches, and the likenesses that the loss holds."""

import torch
import torch.nn.functional as F

from fpl_tune.method import generator, normalize
from fpl_tune.methods.fedmap import FedMAP
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(5, 2, 3, 1))

SMALL = FedMAP(n_tokens=2, depth=2, structure=3.0, momentum=0.8)


def test_loss_gradient_and_prototypes_are_those_of_clients_alone(task, whole_batch, assert_equal_to_clients_alone):
    """The released module's forward pass, class by class, from a state in which some classes have been seen."""
    (state,) = play(SMALL, [task], cohorts=[(1, 3)], epochs=1)[-1]
    assert 0 < state.shared["seen"].sum() < 6
    local, anchors = SMALL.start(task, state, EVERYONE), task.hand_text
    _, moved = SMALL.loss(task, local, whole_batch(task))

    def plain(client, leaf, images, labels):
        prompts = leaf["visual"][None]
        image = normalize(task.encode_images(images[None], prompts[:, 0], deep=prompts[:, 1:])[0])[0]
        rows, seen = state.shared["prototypes"].clone(), state.shared["seen"].clone()
        for c in labels.unique().tolist():
            mean = F.normalize(image.detach()[labels == c].mean(0), dim=0)
            rows[c] = F.normalize(0.8 * rows[c] + 0.2 * mean, dim=0) if seen[c] else mean
            seen[c] = True
        torch.testing.assert_close(moved["prototypes"][client], rows)
        assert torch.equal(moved["seen"][client], seen)
        away = F.mse_loss(image @ rows.T, anchors[labels] @ anchors.T, reduction="none")[:, seen].mean()
        return F.cross_entropy(task.scale * image @ anchors.T, labels) + 3 * away

    assert_equal_to_clients_alone(SMALL, task, local, plain)


def test_prototypes_are_averaged_and_a_class_is_seen_once_anybody_saw_it(task):
    clients = torch.tensor([0, 3])  # 5 images and 1
    state = SMALL.init(task, generator("merge"))
    local = SMALL.start(task, state, clients)
    local.buffers["prototypes"][0], local.buffers["prototypes"][1] = 1.0, 7.0
    local.buffers["seen"][1, 4] = True
    merged = SMALL.merge(task, state, clients, local).shared
    torch.testing.assert_close(merged["prototypes"], torch.full((6, 24), 2.0).double())
    assert merged["seen"].tolist() == [False] * 4 + [True, False]


def test_a_client_without_images_in_its_batch_has_no_loss(task, whole_batch):
    batch = whole_batch(task)
    idle = batch._replace(mask=torch.zeros_like(batch.mask))
    loss, moved = SMALL.loss(task, SMALL.start(task, SMALL.init(task, generator("idle")), EVERYONE), idle)
    torch.testing.assert_close(loss, torch.zeros_like(loss))
    assert not moved["seen"].any()
