"""FedAPT without labels: what each stage's loss is, and that labels are never read."""

from itertools import pairwise

import pytest
import torch

from fpl_tune.method import generator, normalize
from fpl_tune.methods.fedapt_unsupervised import FedAPTUnsupervised
from fpl_tune.testing import EVERYONE, play, toy_task


def _method(**options):
    return FedAPTUnsupervised(**{"n_ctx": 2, **options})


def _started(method, task, whole_batch, *, view=False):
    """The cohort of everyone with gradients on, and its batch, in a state that has left its start."""
    before = play(_method(augment=False), [task], cohorts=[(0, 2)], epochs=1)[-1][0]
    state = method.init(task, generator("init"), before)
    local, batch = method.start(task, state, EVERYONE), whole_batch(task)
    for leaf in local.params.values():
        leaf.requires_grad_()
    if view:
        moved = torch.randn(batch.image.shape, generator=torch.Generator().manual_seed(5)).double()
        batch = batch._replace(view=batch.image + 0.3 * moved)
    return state, local, batch


def _median_sureness(task):
    """The zero-shot probability that half of the training images exceed."""
    table = task.table("train")
    teacher = (task.scale * normalize(table.image) @ task.hand_text.T).softmax(-1).amax(-1)
    return teacher[table.mask].quantile(0.5).item()


def _logits(task, prompt, key, image, plain_text):
    return task.scale * normalize(image) @ plain_text(task, prompt * (1 + key)).T


def test_first_stage_learns_the_augmented_view_of_what_zero_shot_is_sure_of(
    task, whole_batch, plain_text, assert_equal_to_clients_alone
):
    method = _method(threshold=(threshold := _median_sureness(task)))
    state, local, batch = _started(method, task, whole_batch, view=True)
    some = []

    def plain(client, leaf, clean, labels):
        prompt, domain, view = leaf["prompt"], int(task.domain[client]), batch.view[client][batch.mask[client]]
        teacher = (task.scale * normalize(clean) @ task.hand_text.T).softmax(1)
        sure = teacher.max(1).values > threshold
        some.append(sure)
        student = _logits(task, prompt, state.server["keys"][domain], view, plain_text).log_softmax(1)
        picked = [-student[i, teacher[i].argmax()] for i in range(len(view)) if sure[i]]
        wanted = torch.stack(picked).mean() if picked else 0 * prompt.sum()
        return wanted - (view @ leaf["reader"].T).log_softmax(1)[:, domain].mean()

    assert_equal_to_clients_alone(method, task, local, plain, batch=batch)
    assert 0 < torch.cat(some).sum() < len(torch.cat(some))  # the threshold parts the images


@pytest.mark.parametrize(("double", "dispersal"), [(False, "sum"), (True, "sum"), (True, "mean")])
def test_second_stage_is_agreement_attraction_and_dispersion(
    task, whole_batch, plain_text, assert_equal_to_clients_alone, double, dispersal
):
    method = _method(phase=2, neighbours=3, disperse=0.5, double_softmax=double, dispersal=dispersal)
    state, local, batch = _started(method, task, whole_batch, view=True)
    state = state._replace(personal={"scores": state.personal["scores"].flip(-1)})  # remembered from another model
    local = local._replace(buffers={**local.buffers, "scores": state.personal["scores"]})
    _, fixed = method.loss(task, local, batch)

    def plain(client, leaf, clean, labels):
        prompt, domain, view = leaf["prompt"], int(task.domain[client]), batch.view[client][batch.mask[client]]
        key, number = state.server["keys"][domain], len(clean)
        shares = _logits(task, prompt, key, clean, plain_text).softmax(1)
        second = _logits(task, prompt, key, view, plain_text)
        second = (second.softmax(1) if double else second).log_softmax(1)
        old, new = state.personal["scores"][client], shares.detach()
        intra = -(old[:number] * second).sum(1).mean()
        near, apart = 0, 0
        for i in range(number):
            like = [-2.0 if j == i else float(normalize(clean[i]) @ normalize(clean[j])) for j in range(number)]
            chosen = sorted(range(number), key=lambda j, like=like: -like[j])[: min(3, number - 1)]
            near = near - sum((new[j] * shares[i]).sum() for j in chosen)
            apart = apart + sum((shares[i] * shares[j]).sum() for j in range(number) if j != i)
        if dispersal == "mean":  # over the mates of the same class that the bank makes expect, one at least
            expected = (number - 1) * float((new.mean(0) ** 2).sum())
            apart = apart / max(expected, 1.0)
        torch.testing.assert_close(fixed["scores"][client, :number], new)
        assert torch.equal(fixed["scores"][client, number:], old[number:])  # padding writes nowhere
        read = (clean @ leaf["reader"].T).log_softmax(1)[:, domain]
        return intra + near / number + 0.5 * apart / number - read.mean()

    assert_equal_to_clients_alone(method, task, local, plain, batch=batch)


def test_banks_hold_predictions_of_the_first_stages_model_and_stay_with_their_client(task, plain_text):
    first = play(_method(augment=False), [task], cohorts=[(0, 2)], epochs=1)[-1][0]
    second = _method(phase=2, augment=False)
    state = second.init(task, generator("init"), first)
    assert torch.equal(state.shared["prompt"], first.shared["prompt"])
    assert torch.equal(state.server["keys"], first.server["keys"])
    table = task.table("train")
    for client in range(4):
        key = first.server["keys"][task.domain[client]]
        wanted = _logits(task, first.shared["prompt"], key, table.image[client], plain_text).softmax(1)
        torch.testing.assert_close(state.personal["scores"][client], wanted)
    after = play(second, [task], states=[state], cohorts=[(1,)])[-1][0]
    assert torch.equal(after.personal["scores"][[0, 2, 3]], state.personal["scores"][[0, 2, 3]])
    assert not torch.equal(after.personal["scores"][1], state.personal["scores"][1])


def test_client_with_a_single_image_has_no_neighbour():
    task = toy_task(sizes=(1, 5, 7, 3))
    method = _method(phase=2, augment=False)
    for before, after in pairwise(s[0] for s in play(method, [task], cohorts=[(0, 1)])):
        assert bool(after.shared["prompt"].isfinite().all())
        assert not torch.equal(after.shared["prompt"], before.shared["prompt"])
