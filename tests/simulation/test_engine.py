"""The round: who trains, on what, in which order. What every method must keep is in the contract test."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic, derive, scatter_rows
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.simulation import divergence, optim
from fpl_tune.simulation.batches import Cohort, draw_cohort, passes, plan_round
from fpl_tune.simulation.engine import run_round
from fpl_tune.testing import EVERYONE, toy_task


@dataclass(frozen=True)
class Counter(Method):
    """Writes down in `fixed` how often each image was in a batch; its one weight has gradient 1."""

    def init(self, task: Task, rng: torch.Generator, before: State | None = None) -> State:
        seen = torch.zeros(task.n_clients, task.table("train").mask.shape[1], dtype=task.dtype)
        return State({}, {"seen": seen, "weight": torch.zeros(task.n_clients, 1, dtype=task.dtype)}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local({"weight": state.personal["weight"][clients]}, {"seen": state.personal["seen"][clients]})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return torch.zeros(*batch.label.shape, task.n_classes, dtype=task.dtype)

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        seen = local.buffers["seen"].scatter_add(1, batch.index, torch.ones_like(batch.index, dtype=task.dtype))
        return local.params["weight"].sum(1), {"seen": seen}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        kept = {n: scatter_rows(state.personal[n], clients, leaf) for n, leaf in (local.params | local.buffers).items()}
        return state._replace(personal=kept)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        return Traffic(up={"same": 2}, down={"each": torch.arange(len(clients))})


def _count(epochs: int, batch: int, clients: list[int]) -> tuple[Tensor, Tensor, list[int], list[int]]:
    task = toy_task(sizes=(9, 5, 7, 0))
    method = Counter()
    state = method.init(task, torch.Generator())
    spec = OptimSpec(lr=1.0, momentum=0.0, weight_decay=0.0, batch=batch)
    states, report = run_round(method, [task], [state], [Cohort(1, 1, torch.tensor(clients))], epochs=epochs, spec=spec)
    return states[0].personal["seen"], states[0].personal["weight"], report.up, report.down


def test_every_image_is_seen_once_an_epoch_and_nobody_else_trains() -> None:
    seen, weight, _, _ = _count(epochs=3, batch=4, clients=[0, 2, 3])
    assert seen[0, :9].tolist() == [3.0] * 9
    assert seen[2, :7].tolist() == [3.0] * 7
    assert seen[1].abs().sum() == 0
    # 9 images make 3 batches of 4, 7 make 2; a client without images takes no step.
    assert weight.flatten().tolist() == [-9.0, 0.0, -6.0, 0.0]


def test_traffic_adds_up_over_the_cohort() -> None:
    _, _, up, down = _count(epochs=1, batch=4, clients=[0, 1, 2])
    assert (up, down) == ([6], [0 + 1 + 2])


def test_order_of_images_depends_on_seed_client_and_round() -> None:
    def trained(seed: int, round_: int, client: int) -> Tensor:
        task = toy_task()
        method = CoOp(n_ctx=2)
        state = method.init(task, torch.Generator().manual_seed(0))
        cohort = Cohort(seed, round_, torch.tensor([client]))
        states, _ = run_round(method, [task], [state], [cohort], epochs=1, spec=OptimSpec(lr=0.1, batch=2))
        return states[0].personal["prompt"][client]

    base = trained(1, 1, 0)
    assert torch.equal(base, trained(1, 1, 0))
    assert not torch.equal(base, trained(2, 1, 0))
    assert not torch.equal(base, trained(1, 2, 0))


def test_loss_is_the_mean_over_the_last_epoch() -> None:
    task = toy_task()
    method = CoOp(n_ctx=2)
    state = method.init(task, torch.Generator().manual_seed(0))
    cohort = Cohort(1, 1, torch.tensor([1]))
    _, report = run_round(method, [task], [state], [cohort], epochs=1, spec=OptimSpec(lr=0.0, batch=5))
    assert report.loss is not None
    batch = task.train.batch(torch.tensor([1]), torch.arange(5)[None])
    wanted = method.loss(task, method.start(task, state, torch.tensor([1])), batch)[0]
    torch.testing.assert_close(report.loss[0].double(), wanted, rtol=1e-6, atol=1e-6)


def test_cohorts_are_uniform_and_change_with_the_round() -> None:
    counts = torch.zeros(10)
    for round_ in range(2000):
        counts[draw_cohort(10, 0.3, seed=1, round_=round_)] += 1
    # Binomial(2000, 0.3): deviation 20.5
    assert ((counts - 600).abs() < 5 * 20.5).all()
    assert len(draw_cohort(10, 0.3, 1, 1, everyone=True)) == 10


def test_cohorts_by_domain_hold_a_share_of_each() -> None:
    """FedAPT, Table 2: one random client of each of six domains, where five hold each."""
    domain = torch.arange(6).repeat_interleave(5)
    counts = torch.zeros(30)
    for round_ in range(1000):
        clients = draw_cohort(30, 0.2, seed=1, round_=round_, domain=domain)
        assert domain[clients].tolist() == [0, 1, 2, 3, 4, 5]
        counts[clients] += 1
    # Binomial(1000, 0.2): deviation 12.6
    assert ((counts - 200).abs() < 5 * 12.6).all()
    shuffled = torch.tensor([1, 0, 1, 0, 0])
    assert sorted(shuffled[draw_cohort(5, 0.7, 1, 1, domain=shuffled)].tolist()) == [0, 0, 1]
    assert len(draw_cohort(5, 0.2, 1, 1, domain=shuffled, everyone=True)) == 5


def test_batches_that_are_given_replace_the_draw() -> None:
    task, spec = toy_task(sizes=(9, 5, 7, 0)), OptimSpec(batch=4)
    drawn = Cohort(1, 1, torch.tensor([0, 2]))
    orders = {client: passes(task.train.sizes[client], 2, drawn, client) for client in (0, 2)}
    own, same = (plan_round([task], [c], [c.clients], 2, spec) for c in (drawn, drawn._replace(orders=orders)))
    assert torch.equal(own.picked.index, same.picked.index)
    few = drawn._replace(orders={0: [torch.tensor([8, 1, 3])], 2: [torch.tensor([6]), torch.tensor([0, 5])]})
    plan = plan_round([task], [few], [few.clients], 2, spec)
    assert plan.picked.index[plan.picked.mask].tolist() == [8, 1, 3, 6, 0, 5]
    assert plan.steps.tolist() == [1, 2]
    assert plan.last.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("epochs", [0.5, 0.3, 1.5, 2.75])
def test_broken_epochs_go_on_where_the_round_before_ended(epochs: float) -> None:
    """Over 20 rounds every image is seen as often as 20 · epochs says, none more than once more than another."""
    task = toy_task(sizes=(9, 5, 7, 0))
    size = 7
    for spec in (OptimSpec(batch=1), OptimSpec(batch=4)):
        seen = torch.zeros(size, dtype=torch.int64)
        for round_ in range(1, 21):
            cohort = Cohort(1, round_, torch.tensor([2]))
            index = plan_round([task], [cohort], [cohort.clients], epochs, spec).picked.index
            used = index[index != task.train.spare]
            assert abs(len(used) - epochs * size) <= 1
            seen += torch.bincount(used, minlength=size)
        assert int(seen.sum()) == round(20 * epochs * size)
        assert int(seen.max() - seen.min()) <= 1


def test_a_step_is_as_long_and_as_wide_as_it_has_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of ragged clients: who has no batch left and columns that only pad cost nothing."""
    seen: list[tuple[int, ...]] = []

    def loss(self: Counter, task: Task, local: Local, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        assert len(local.params["weight"]) == len(local.buffers["seen"]) == len(batch.label)
        seen.append((*batch.label.shape, int(batch.mask.sum())))
        return local.params["weight"].sum(1), local.buffers

    monkeypatch.setattr(Counter, "loss", loss)
    tasks = [toy_task(sizes=(9, 5, 7, 0)), toy_task(sizes=(2, 9, 0, 1))]
    states = [Counter().init(task, torch.Generator()) for task in tasks]
    cohorts = [Cohort(1, 1, torch.tensor([0, 1, 3])), Cohort(2, 1, torch.tensor([0, 3]))]
    spec = OptimSpec(lr=1.0, momentum=0.0, weight_decay=0.0, batch=4)
    states, _ = run_round(Counter(), tasks, states, cohorts, epochs=1, spec=spec)
    # 9 = 4 + 4 + 1, 5 = 4 + 1, 0, and 2, 1: (clients, columns, images) of the three steps
    assert seen == [(4, 4, 11), (2, 4, 5), (1, 1, 1)]
    assert [state.personal["weight"].flatten().tolist() for state in states] == [[-3, -2, 0, 0], [-1, 0, 0, -1]]


def test_derived_seeds_are_stable_across_processes() -> None:
    assert derive("order", 1, 2, 3) == derive("order", 1, 2, 3) != derive("order", 1, 23, "")
    # A fixed point, so that results stay comparable between versions.
    assert derive("init", 1) == 4618789450268498290


@pytest.mark.parametrize("reuse", [False, True])
def test_a_round_copies_the_leaves_of_all_clients_unless_their_memory_may_be_reused(reuse: bool) -> None:
    task, method = toy_task(), CoOp(n_ctx=2)
    state = method.init(task, torch.Generator().manual_seed(0))
    before = {name: leaf.clone() for name, leaf in state.personal.items()}
    spec, cohort = OptimSpec(lr=0.1, batch=4), Cohort(1, 1, torch.tensor([0, 2]))
    ((after,), _) = run_round(method, [task], [state], [cohort], epochs=1, spec=spec, reuse=reuse)
    for name, leaf in after.personal.items():
        assert (leaf.data_ptr() == state.personal[name].data_ptr()) == reuse
        assert torch.equal(state.personal[name], before[name]) != reuse
        assert not torch.equal(leaf, before[name])


@pytest.mark.parametrize("method", [CoOp(n_ctx=2), PFedMoAP(n_ctx=2, experts=2)], ids=["coop", "pfedmoap"])
def test_a_round_costs_nothing_for_clients_that_do_not_train(method: Method) -> None:
    """Rows of others are NaN: a round that read one would spread it, and it writes into its own clients' rows alone."""
    task = toy_task()
    cohort, others = [Cohort(1, 1, torch.tensor([0, 2]))], torch.tensor([1, 3])
    first = method.init(task, torch.Generator().manual_seed(0))
    known, _ = run_round(method, [task], [first], [Cohort(1, 1, EVERYONE)], epochs=1, spec=OptimSpec())
    hidden = {
        name: leaf.index_fill(0, others, torch.nan) if leaf.is_floating_point() else leaf
        for name, leaf in known[0].personal.items()
    }
    (plain,), _ = run_round(method, [task], known, cohort, epochs=1, spec=OptimSpec())
    (found,), report = run_round(
        method, [task], [known[0]._replace(personal=dict(hidden))], cohort, epochs=1, spec=OptimSpec(), reuse=True
    )
    divergence.watch(OptimSpec(), [task], [found], cohort, report.loss)
    for name, leaf in found.personal.items():
        assert leaf is hidden[name]
        assert torch.equal(leaf[cohort[0].clients], plain.personal[name][cohort[0].clients])
    for name, leaf in found.shared.items():
        assert torch.equal(leaf, plain.shared[name])


STEPS = 6


def _gradient(leaf: torch.Tensor, t: int) -> torch.Tensor:
    """Any smooth function of the leaf and the step will do."""
    return torch.sin(leaf * (t + 1)) + 0.1 * leaf


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_equals_torch_for_each_client_alone(name: Literal["sgd", "adam", "adamw"]) -> None:
    """FedCLIP's released optimiser is Adam with betas 0.9 and 0.98, eps 1e-6 and a coupled decay of 0.2."""
    torch.manual_seed(0)
    more = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.2}
    spec = OptimSpec(name=name, lr=0.05, groups={"gate": 0.3}, momentum=0.9, **more)
    train = {
        "prompt": torch.randn(3, 4, 5, dtype=torch.float64),
        "gate.weight": torch.randn(3, 2, dtype=torch.float64),
    }
    moved, state = train, optim.start(spec, train)
    for t in range(STEPS):
        grads = {n: _gradient(leaf, t) for n, leaf in moved.items()}
        moved, state = optim.step(spec, moved, grads, state, torch.ones(3))
    for client in range(3):
        alone = {n: leaf[client].clone().requires_grad_() for n, leaf in train.items()}
        groups = [{"params": [alone["prompt"]], "lr": 0.05}, {"params": [alone["gate.weight"]], "lr": 0.3}]
        reference = {
            "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.2),
            "adam": lambda groups: torch.optim.Adam(groups, **more),
            "adamw": lambda groups: torch.optim.AdamW(groups, **more),
        }[name](groups)
        for t in range(STEPS):
            for leaf in alone.values():
                leaf.grad = _gradient(leaf.detach(), t)
            reference.step()
        for n, leaf in alone.items():
            torch.testing.assert_close(moved[n][client], leaf.detach(), atol=1e-12, rtol=1e-12)


def test_shared_cosine_has_the_multipliers_of_the_released_code() -> None:
    """One scheduler that clients step in turn: 5 local epochs of the first, the second, the third client."""
    found = [optim.rate_factor("shared_cosine", e, 5, place) for place in range(3) for e in range(5)]
    first = [0.0, 1, 0.9045, 0.6545, 0.3455]  # warm-up, then half a cosine
    second = [0.0955, 0, 0.0955, 0.3455, 0.6545]
    third = [0.9045, 1, 0.9045, 0.6545, 0.3455]
    assert found == pytest.approx(first + second + third, abs=1e-4)


def test_shared_cosine_leaves_the_rates_of_groups_constant() -> None:
    """The gate of pFedMoAP's released code has an optimiser of its own, without a scheduler."""
    train = {"prompt": torch.ones(2, 3), "gate.weight": torch.ones(2, 3)}
    spec = OptimSpec(lr=0.1, groups={"gate": 0.1}, momentum=0, weight_decay=0, schedule="shared_cosine")
    factor = torch.tensor([0.0, 0.5])
    moved, _ = optim.step(spec, train, train, optim.start(spec, train), factor)
    assert moved["prompt"][:, 0].tolist() == pytest.approx([1.0, 0.95])
    assert moved["gate.weight"][:, 0].tolist() == pytest.approx([0.9, 0.9])
    moved, _ = optim.step(replace(spec, schedule="cosine"), train, train, optim.start(spec, train), factor)
    assert moved["gate.weight"][:, 0].tolist() == pytest.approx([1.0, 0.95])


def test_a_rate_that_falls_over_rounds_is_torchs_cosine() -> None:
    leaf = torch.nn.Parameter(torch.zeros(1))
    reference = torch.optim.SGD([leaf], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=7)
    for round_ in range(1, 8):
        for epoch in range(3):
            found = optim.rate_factor("rounds_cosine", epoch, 3, round_=round_, rounds=7)
            assert found == pytest.approx(scheduler.get_last_lr()[0])
        reference.step()
        scheduler.step()
