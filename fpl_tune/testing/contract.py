"""The contract of methods: properties that all of them must have, each checked by a function with assertions."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch

from fpl_tune.core.clients import MaliciousSpec
from fpl_tune.method import Method, State, generator, trees_like
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.checked import checked
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.testing.rounds import COHORTS, EPOCHS, SPEC, Toy, assert_same, play, toy
from fpl_tune.testing.toys import TowerKind, toy_task


def _each(state: State, action: Callable[[torch.Tensor], torch.Tensor]) -> State:
    return State(*({name: action(leaf) for name, leaf in tree.items()} for tree in state))


def _later(case: Toy) -> dict[str, Any]:
    """Arguments of `play` for the rounds after the first, with clients of the first round and a new one."""
    return {"states": [_each(case.history[1], torch.clone)], "cohorts": COHORTS[1:], "first": 2}


def one_batch_equals_clients_alone(case: Toy) -> None:
    """A cohort trained as one batch has the same result as its clients trained one after another.

    The latter also let merges write into the states that they receive, which must not change anything else.
    """
    together, data = case.history[-1], case.tasks[0].train
    tables = data.rows.clone(), data.label.clone(), data.mask.clone()
    (alone,) = play(case.method, case.tasks[:1], block=1, reuse=True, **_later(case))[-1]
    assert_same(together, alone, tolerance=1e-9)
    assert all(map(torch.equal, tables, (data.rows, data.label, data.mask)))


def cohort_order_does_not_matter(case: Toy) -> None:
    """The order of clients in a cohort has no effect on training and merging."""
    backwards = {**_later(case), "cohorts": [clients[::-1] for clients in COHORTS[1:]]}
    (backward,) = play(case.method, case.tasks[:1], **backwards)[-1]
    assert_same(backward, case.history[-1], tolerance=1e-9)


def absent_clients_are_untouched(case: Toy) -> None:
    """The personal state of clients outside the cohort does not change, bit for bit."""
    for clients, before, after in zip(COHORTS, case.history[:-1], case.history[1:], strict=True):
        absent = [client for client in range(case.tasks[0].n_clients) if client not in clients]
        for name, leaf in before.personal.items():
            assert torch.equal(after.personal[name][absent], leaf[absent]), name


def personal_state_stays_with_its_client(case: Toy) -> None:
    """The personal state of other clients has no effect on a client's start and deployment, or a merge without them."""
    method, state, last = case.method, case.history[-1], len(COHORTS)
    task, clients = case.tasks[0].during(last, last, key=1), torch.tensor([1])
    swapped = state._replace(personal={n: leaf[1:2].expand_as(leaf).clone() for n, leaf in state.personal.items()})
    local = method.start(task, state, clients)
    assert_same(method.start(task, swapped, clients), local)
    assert_same(method.deploy(task, swapped, clients), method.deploy(task, state, clients))
    merged, again = method.merge(task, state, clients, local), method.merge(task, swapped, clients, local)
    assert_same(again._replace(personal={}), merged._replace(personal={}))


def seeds_together_equal_seeds_alone(case: Toy) -> None:
    """Seeds on the client axis are independent in training and evaluation, as are clients in evaluation."""
    two = {"cohorts": COHORTS[:2], "rounds": len(COHORTS)}
    together = play(case.method, case.tasks, **two)[-1]
    scores = evaluate(case.method, case.tasks, together)
    blocks = evaluate(case.method, case.tasks, together, at_once=3)
    alone = [case.history[2], play(case.method, case.tasks[1:], seeds=[1], **two)[-1][0]]
    for seed, task in enumerate(case.tasks):
        assert_same(together[seed], alone[seed], tolerance=1e-9)
        (single,) = evaluate(case.method, [task], [together[seed]])
        for name, score in single.items():
            for other in (scores[seed][name], blocks[seed][name]):
                torch.testing.assert_close(other.loss, score.loss, rtol=1e-6, atol=1e-6)
                assert torch.equal(other.accuracy, score.accuracy)
                assert math.isclose(other.ece, score.ece, rel_tol=1e-5, abs_tol=1e-6)


def shapes_never_change(case: Toy) -> None:
    """Names, shapes and types of a state stay as in `init`; personal leaves have N rows, local ones C."""
    task, first = case.tasks[0], case.history[0]
    for state in case.history:
        assert all(len(leaf) == task.n_clients for leaf in state.personal.values())
        for tree, wanted in zip(state, first, strict=True):
            assert {n: (v.shape, v.dtype) for n, v in tree.items()} == {
                n: (v.shape, v.dtype) for n, v in wanted.items()
            }
            assert not any(leaf.requires_grad for leaf in tree.values())
            assert all(bool(leaf.isfinite().all()) for leaf in tree.values() if leaf.is_floating_point())
        local = case.method.start(task, state, torch.tensor([2, 0]))
        assert all(len(leaf) == 2 for tree in local for leaf in tree.values())
        assert all(leaf.dtype == task.dtype for leaf in local.params.values())


def arguments_are_not_written_to(case: Toy) -> None:
    """A round and an evaluation do not change the state that they receive."""
    for state in (case.history[0], case.history[-1]):
        copied = _each(state, torch.clone)
        play(case.method, case.tasks[:1], states=[state], cohorts=COHORTS[-1:])
        evaluate(case.method, case.tasks[:1], [state])
        assert_same(state, copied)


def absent_clients_and_attacks_of_strength_0_change_nothing(case: Toy) -> None:
    """A round is that of the clients whose updates arrive; malicious clients that do not attack train as others."""
    clients, absent, last = torch.tensor(COHORTS[-1]), torch.tensor([3]), len(COHORTS)
    cohort = Cohort(0, last, clients, liars=torch.tensor([True, False, False]), absent=absent)
    (after,), report = run_round(
        case.method, case.tasks[:1], [case.history[-2]], [cohort], epochs=EPOCHS, spec=SPEC, stage=range(1, 1 + last),
        malicious=MaliciousSpec(share=0.3, strength=0.0),
    )  # fmt: skip
    assert_same(after, case.history[-1])
    down = case.method.traffic(case.tasks[0], case.history[-2], absent).down
    assert report.vain == [sum(int(count) for count in down.values())]


def pickling_keeps_the_method(case: Toy) -> None:
    """A method can be pickled, as Ray sends methods between processes."""
    assert pickle.loads(pickle.dumps(case.method)) == case.method


def everyone_can_be_deployed(case: Toy) -> None:
    """Clients can be deployed at any time, including those that never trained, and new clients without own images.

    Return values are checked as in a simulation.
    """
    method = checked(case.method)
    for state in case.history:
        (scores,) = evaluate(method, case.tasks[:1], [state])
        for score in scores.values():
            assert score.loss.shape == score.accuracy.shape == (case.tasks[0].n_clients,)
            assert bool(score.loss.isfinite().all())
            assert bool(((score.accuracy >= 0) & (score.accuracy <= 1)).all())
    task = case.tasks[0].without(torch.tensor([False, True, False, False]))
    (scores,) = evaluate(method, [task], case.history[-1:], fresh=case.history[:1])
    assert scores["unseen"].loss.isfinite().tolist() == [False, True, False, False]
    assert scores["test"].loss.isfinite().tolist() == [True, False, True, True]


def state_survives_storage(case: Toy) -> None:
    """Training continues bit for bit from a state that was stored as safetensors."""
    method, tasks, state = case.method, case.tasks[:1], case.history[-2]
    flat = {f"{kind}/{n}": v.contiguous() for kind in State._fields for n, v in getattr(state, kind).items()}
    stored = safetensors.torch.load(safetensors.torch.save(flat))
    trees: dict[str, dict[str, torch.Tensor]] = {kind: {} for kind in State._fields}
    for key, leaf in stored.items():
        kind, _, name = key.partition("/")
        trees[kind][name] = leaf
    again = trees_like(method.init(tasks[0], generator("other")), trees)
    assert_same(again, state)
    (after,) = play(method, tasks, states=[again], cohorts=COHORTS[-1:], first=len(COHORTS))[-1]
    assert_same(after, case.history[-1])


def check_accepts_the_task(case: Toy) -> None:
    """A method accepts the sizes with which it is trained here."""
    case.method.check(case.tasks[0])


def traffic_counts_scalars(case: Toy) -> None:
    """Traffic is counted in integers, which do not depend on the other clients of the cohort."""
    method, task = case.method, case.tasks[0]
    for state in case.history:
        clients = torch.tensor([2, 0, 3])
        both = [
            method.traffic(task, state, clients),
            *(method.traffic(task, state, clients[i : i + 1]) for i in range(3)),
        ]
        for sent in zip(*both, strict=True):
            for name, number in sent[0].items():
                rows = number if isinstance(number, torch.Tensor) else torch.tensor([number] * 3)
                assert rows.dtype == torch.int64
                assert rows.shape == (3,)
                assert bool((rows >= 0).all())
                assert rows.tolist() == [int(single[name]) for single in sent[1:]], name


def padding_is_silent(case: Toy) -> None:
    """Images and labels of padding have no effect on losses."""
    method, task, state = case.method, case.tasks[0], case.history[-1]
    local = method.start(task, state, torch.arange(task.n_clients))
    rows = torch.arange(task.train.spare).expand(task.n_clients, -1)
    index = torch.where(task.train.mask[:, :-1], rows, rows.max() + 1)
    batch = task.train.batch(torch.arange(task.n_clients), index, torch.zeros_like(index))
    seen = batch.mask.view(*batch.mask.shape, *[1] * (batch.image.ndim - 2))
    other = batch._replace(
        image=torch.where(seen, batch.image, torch.full_like(batch.image, 0.7)),
        label=torch.where(batch.mask, batch.label, 1),
    )
    with torch.no_grad():
        losses = [method.loss(task, local, b)[0] for b in (batch, other)] if local.params else []
    if losses:
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=1e-9)


def a_client_without_images_harms_nobody(case: Toy) -> None:
    """A client without images, alone or with others, leads to finite numbers only."""
    task = toy_task(case.method.needs, sizes=(6, 0, 7, 3))
    for (state,) in play(case.method, [task], cohorts=[(0, 1), (1,), (1, 2)]):
        for tree in state:
            assert all(bool(leaf.isfinite().all()) for leaf in tree.values() if leaf.is_floating_point())


CONTRACT: tuple[Callable[[Toy], None], ...] = (
    one_batch_equals_clients_alone,
    cohort_order_does_not_matter,
    absent_clients_are_untouched,
    personal_state_stays_with_its_client,
    seeds_together_equal_seeds_alone,
    shapes_never_change,
    arguments_are_not_written_to,
    absent_clients_and_attacks_of_strength_0_change_nothing,
    pickling_keeps_the_method,
    everyone_can_be_deployed,
    state_survives_storage,
    check_accepts_the_task,
    traffic_counts_scalars,
    padding_is_silent,
    a_client_without_images_harms_nobody,
)
"""The properties, each a function with assertions."""


def check_method(method: Method, *, kind: TowerKind = "vit") -> list[str]:
    """Runs all checks of the contract on tiny towers.

    Args:
        method: the method with its hyper-parameters, small ones for speed.
        kind: the image tower.

    Returns:
        The names of the checks, which all passed.

    Raises:
        AssertionError: a check failed.
    """
    case = toy(method, kind=kind)
    for check in CONTRACT:
        check(case)
    return [check.__name__ for check in CONTRACT]
