"""FedAPT without labels: what each stage's loss is, and that labels are never read."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from fpl_tune.method import Batch, Local, generator, normalize
from fpl_tune.methods.fedapt_unsupervised import FedAPTUnsupervised
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import Classes
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


@pytest.mark.parametrize("classes", [2, 5])
def test_dispersal_does_not_grow_with_the_mates_of_a_class(classes):
    """Sure and right predictions of n images in equal classes: each has n / classes - 1 mates.
    Summed, the term grows with n; as a mean it stays near one."""

    def dispersal(each, summed):
        n = each * classes
        sure = torch.eye(classes).double().repeat(each, 1)[None]
        rows = torch.arange(n)[None]
        batch = Batch(sure, label=rows % classes, mask=torch.ones(1, n, dtype=torch.bool), index=rows)
        fixed = {"scores": sure, "features": sure, "present": torch.ones(1, n, dtype=torch.bool)}
        method = _method(phase=2, neighbours=0, disperse=1.0, dispersal="sum" if summed else "mean")
        return float(method.bank_loss(Local({}, fixed), batch, 60 * sure, 60 * sure)[0])

    assert dispersal(4, True) == pytest.approx(3)
    assert dispersal(16, True) == pytest.approx(15)
    assert dispersal(4, False) == pytest.approx(3 / ((4 * classes - 1) / classes))
    assert dispersal(16, False) == pytest.approx(15 / ((16 * classes - 1) / classes))
    assert dispersal(16, False) == pytest.approx(1, abs=0.06)


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


@pytest.mark.parametrize("phase", [1, 2])
def test_labels_are_never_read(task, phase, whole_batch):
    method = _method(phase=phase, augment=False, threshold=_median_sureness(task))
    _, local, batch = _started(method, task, whole_batch)
    other = batch._replace(label=(batch.label + 1) % task.n_classes)
    assert torch.equal(method.loss(task, local, batch)[0], method.loss(task, local, other)[0])


def test_no_neighbours_and_no_dispersion_leave_agreement_alone(task, whole_batch):
    method = _method(phase=2, augment=False, neighbours=0, disperse=0.0, double_softmax=False)
    _, local, batch = _started(method, task, whole_batch)
    logits = method.logits(task, local, batch)
    agreement = -(local.buffers["scores"][:, :-1] * logits.log_softmax(-1)).sum(-1)
    read = (batch.image @ local.params["reader"].mT).log_softmax(-1)
    reading = -read.gather(-1, task.domain[:, None, None].expand(-1, 9, 1)).squeeze(-1)
    wanted = torch.stack([(agreement + reading)[c][batch.mask[c]].mean() for c in range(4)])
    torch.testing.assert_close(method.loss(task, local, batch)[0], wanted)


@pytest.mark.parametrize("double", [False, True])
def test_views_that_are_surely_wrong_move_nothing_by_default(double):
    """The bank is sure of class 0, the view of class 1 by a margin of m. Cross-entropy pulls by p - y in both columns;
    behind a second softmax every pull passes the first one's p (1 - p), of the order of exp(-m)."""
    assert FedAPTUnsupervised().double_softmax
    margin, images, zero = 20.0, torch.eye(2).double()[None], torch.zeros(1, 1, dtype=torch.int64)
    batch = Batch(images[:, :1], label=zero, mask=zero == 0, index=zero)
    bank = torch.tensor([1.0, 0.0, 0.0]).double().expand(1, 2, 3)
    fixed = {"scores": bank, "features": images, "present": torch.ones(1, 2).bool()}
    view = torch.tensor([0.0, margin, 0.0]).double().expand(1, 1, 3).clone().requires_grad_()
    second = view.softmax(-1) if double else view
    method = _method(phase=2, neighbours=0, disperse=0.0, dispersal="sum")
    loss, _ = method.bank_loss(Local({}, fixed), batch, torch.zeros(1, 1, 3).double(), second)
    (pull,) = torch.autograd.grad(loss.sum(), view)
    if double:
        assert float(pull.abs().max()) < 10 * math.exp(-margin)
    else:
        torch.testing.assert_close(pull[0, 0], torch.tensor([-1.0, 1.0, 0.0]).double(), rtol=0, atol=1e-8)


def test_client_with_a_single_image_has_no_neighbour():
    task = toy_task(sizes=(1, 5, 7, 3))
    method = _method(phase=2, augment=False)
    for before, after in pairwise(s[0] for s in play(method, [task], cohorts=[(0, 1)])):
        assert bool(after.shared["prompt"].isfinite().all())
        assert not torch.equal(after.shared["prompt"], before.shared["prompt"])


def test_augmented_view_is_the_students(task, whole_batch):
    """The same image as its view is no augmentation; the view is asked for where it is used."""
    _, local, batch = _started(_method(), task, whole_batch)
    same = batch._replace(view=batch.image)
    plain = _method(augment=False).loss(task, local, batch)[0]
    torch.testing.assert_close(_method().loss(task, local, same)[0], plain)
    assert (_method().view, _method(augment=False).view) == ("strong", None)


def test_no_keys_is_promptfls_prompt(task, whole_batch):
    method = _method(keys="none")
    state, batch = method.init(task, generator("init")), whole_batch(task)
    plain = PromptFL(n_ctx=2)
    same = plain.init(task, generator("init"))._replace(shared={"prompt": state.shared["prompt"]})
    wanted = plain.logits(task, plain.deploy(task, same, EVERYONE), batch)
    assert method.start(task, state, EVERYONE).params.keys() == {"prompt"}
    for local in (method.start(task, state, EVERYONE), method.deploy(task, state, EVERYONE)):
        torch.testing.assert_close(method.logits(task, local, batch), wanted)


def test_one_prompt_serves_other_classes(task, whole_batch):
    state, _, batch = _started(_method(), task, whole_batch)
    novel = task.under(Classes(task.towers, ("cow", "bee")))
    assert _method().logits(novel, _method().deploy(novel, state, EVERYONE), batch).shape[-1] == 2
