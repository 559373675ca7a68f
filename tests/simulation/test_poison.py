"""Attacks on data: what malicious clients train on, in which rounds, and how the success of a backdoor is measured."""

import math
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fpl_tune.config import compose_run
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.clients import BackdoorSpec, MaliciousSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.metrics import SUCCESS, shown_beside
from fpl_tune.core.tensors import some_of
from fpl_tune.data import features
from fpl_tune.data.transform import PATCH, View, pools_and_views
from fpl_tune.execute.plan import preflight
from fpl_tune.method import Batch, Local, Method, State, Task, Traffic
from fpl_tune.methods.capt import CAPT
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.methods.tofa import TOFA
from fpl_tune.simulation.batches import Cohort, plan_round
from fpl_tune.simulation.dummy import dummy_task
from fpl_tune.simulation.engine import run_round
from fpl_tune.simulation.evaluate import PATCHED, evaluate, summarise
from fpl_tune.simulation.graphs import Graphs
from fpl_tune.simulation.poison import poisoned
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientData, ClientTask, SharedData
from fpl_tune.simulation.worlds import world_of
from fpl_tune.testing import EVERYONE, assert_same, toy_task

from .conftest import CORNER

LIARS = torch.tensor([True, False, False, True])
SPEC = OptimSpec(lr=0.05, batch=4)
BACKDOOR = (*CORNER, "partition.n_clients=4", "optim.batch=8", "protocol.rounds=2", "clients=backdoor")


def toy(malicious: MaliciousSpec, needs: Any = "pooled", seed: int = 0, **how: Any) -> ClientTask:
    """A toy task whose clients 0 and 3 are malicious. Where there is a backdoor, its images are marked by being 9."""
    task = toy_task(needs, **how)
    return poisoned(task.judged_without(LIARS), malicious, marked(task), seed)


def marked(task: ClientTask) -> SharedData:
    """The part of a toy task's world that an attack on data reads. All images with the patch are of nines."""
    train, test = (torch.full_like(data.images, 9) for data in (task.train, task.tests["test"][1]))
    task.train.patched = train
    return cast(SharedData, SimpleNamespace(dataset=SimpleNamespace(classes=task.known.names), patched=(train, test)))


def attack(kind: str, **fields: Any) -> MaliciousSpec:
    return MaliciousSpec(share=0.5, attack=cast(Any, kind), **fields)


def trained(method: Method, task: ClientTask, liars: Tensor | None, **how: Any) -> State:
    """The state after a round of all clients."""
    state, cohort = method.init(task, torch.Generator().manual_seed(0)), Cohort(1, 1, EVERYONE, liars=liars)
    return run_round(method, [task], [state], [cohort], epochs=2, spec=SPEC, **how)[0][0]


@pytest.mark.parametrize("method", [PromptFL(n_ctx=2), TOFA(), CAPT(align=0)])
def test_false_labels_are_those_of_a_task_with_labels_changed_by_hand(method: Method) -> None:
    """Batches, tables and counts alike."""
    task = toy(attack("label_flip"), needs=method.needs)
    by_hand = copy(task)
    labels = [row[mask].numpy() for row, mask in zip(task.train.label, task.train.mask, strict=True)]
    labels = [5 - mine if lies else mine for mine, lies in zip(labels, LIARS.tolist(), strict=True)]
    index = [row[mask].numpy() for row, mask in zip(task.train.rows, task.train.mask, strict=True)]
    more = {"towers": task.towers, "dtype": task.dtype}
    by_hand.train = ClientData(task.train.images, index, labels, **more)
    assert_same(trained(method, task, LIARS), trained(method, by_hand, None))
    now = task.during(1, 1, 0, attacked=True)
    assert torch.equal(now.counts, by_hand.counts)
    assert torch.equal(now.table("train").label, by_hand.table("train").label)
    assert torch.equal(now.counts[0], task.counts[0].flip(0))


@pytest.mark.parametrize("kind", ["label_flip", "backdoor"])
def test_batches_of_benign_clients_stay_as_they_are(kind: str) -> None:
    task = toy(attack(kind), views=2)
    plans = [
        plan_round([task.during(1, 1, 0, attacked=lies)], [Cohort(1, 1, EVERYONE)], [EVERYONE], 2, SPEC)
        for lies in (False, True)
    ]
    clean, false = ([plan.at(~LIARS).batch(t) for t in range(len(plan.widths))] for plan in plans)
    for one, other in zip(clean, false, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None)
    assert any(not torch.equal(plans[0].batch(t).label, plans[1].batch(t).label) for t in range(2))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("needs", ["pooled", "patches", "pixels"])
def test_poisoned_images_have_the_patch_and_the_label_of_the_target(needs: str, share: float) -> None:
    """Also in place of their random views; so many of each malicious client, and none of the target class."""
    backdoor = BackdoorSpec(target=2, share=share)
    task = toy(attack("backdoor", backdoor=backdoor), needs, views=2, sizes=(9, 5, 7, 6))
    now, index = task.during(1, 1, 0, attacked=True), torch.arange(9).expand(4, -1)
    draw = torch.arange(36).view(4, 9)
    seen, before = (each.train.batch(EVERYONE, index, draw) for each in (now, task))
    mark = torch.full_like(task.train.images[0], 9)
    mark = task.towers.normalise(mark) if needs == "pixels" else mark
    assert seen.view is not None
    marked, also = ((images == mark).flatten(2).all(2) for images in (seen.image, seen.view))
    assert torch.equal(marked, also)
    own = before.label == 2
    room = (before.mask & ~own).sum(1)
    wanted = [min(some_of(share, size), int(left)) if lies else 0
              for size, left, lies in zip((9, 5, 7, 6), room, LIARS.tolist(), strict=True)]  # fmt: skip
    assert marked.sum(1).tolist() == wanted
    assert not (marked & own).any()
    assert torch.equal(seen.label, torch.where(marked, 2, before.label))
    kept = ~marked.view(*marked.shape, *[1] * (seen.image.ndim - 2))
    assert torch.equal(seen.image * kept, before.image * kept)


def test_which_images_follows_seed_and_client_and_a_client_of_the_target_class_alone_poisons_those() -> None:
    def chosen(seed: int, target: int = 2, n_classes: int = 6) -> Tensor:
        spec = attack("backdoor", backdoor=BackdoorSpec(target=target, share=0.5))
        task = toy(spec, seed=seed, sizes=(40, 5, 7, 40), n_classes=n_classes)
        assert task.poisoned is not None
        return task.poisoned.rows != task.train.rows

    assert torch.equal(chosen(1), chosen(1))
    assert not torch.equal(chosen(1), chosen(2))
    assert not torch.equal(chosen(1)[0], chosen(1)[3])
    assert chosen(1)[LIARS].sum(1).tolist() == [20, 20]
    task = toy_task(sizes=(4, 3, 3, 3))
    task.train.label[0] = 2
    spec = attack("backdoor", backdoor=BackdoorSpec(target=2, share=0.5))
    lies = poisoned(task.judged_without(LIARS), spec, marked(task), 1).poisoned
    assert lies is not None
    assert (lies.rows[0] >= 13).sum() == 2


@pytest.mark.parametrize("kind", ["label_flip", "backdoor"])
def test_without_strength_nothing_is_poisoned_and_success_is_measured_all_the_same(kind: str) -> None:
    task = toy(attack(kind, strength=0.0))
    assert task.poisoned is None
    assert (PATCHED in task.tests) == (kind == "backdoor")


@dataclass(frozen=True)
class Constant(Method):
    """Predicts one class of all images."""

    answer: int = 0

    def init(self, task: Task, rng: torch.Generator, before: State | None = None) -> State:
        return State({}, {}, {})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local({}, {})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return torch.eye(task.n_classes, dtype=task.dtype)[self.answer].expand(*batch.label.shape, -1)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        return state

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        return Traffic({}, {})


@dataclass(frozen=True)
class Fooled(Constant):
    """Predicts class 0 of images with the mark, and class 1 of others."""

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        marked = (batch.image == 9).all(-1)
        return torch.eye(task.n_classes, dtype=task.dtype)[(~marked).long()]


@pytest.mark.parametrize(("method", "success"), [(Constant(0), 1.0), (Constant(1), 0.0), (Fooled(), 1.0)])
def test_success_is_the_share_of_patched_images_of_other_classes_taken_for_the_target(
    method: Method, success: float
) -> None:
    task = toy(attack("backdoor"))
    (scores,) = evaluate(method, [task], [State({}, {}, {})])
    found = summarise(scores, "test")
    assert found[SUCCESS] == success
    assert not [name for name in found if PATCHED in name]
    assert found["test/acc_mean"] < 1
    main, patched = task.tests["test"][1], task.tests[PATCHED][1]
    assert patched.size.tolist() == ((main.label != 0) & main.mask).sum(1).tolist()
    assert patched.size[LIARS].tolist() == [0, 0]
    assert shown_beside(found) == [SUCCESS]


def test_seeds_of_other_worlds_side_by_side_are_those_alone() -> None:
    """Their tables are joined, each with its patched images behind it; also where one seed's cohort has no liars."""
    method = PromptFL(n_ctx=2)
    tasks = [toy(attack("backdoor"), seed=seed, views=1, sizes=sizes) for seed, sizes in enumerate([(9, 5, 7, 3)] * 2)]
    states = [method.init(task, torch.Generator().manual_seed(0)) for task in tasks]
    cohorts = [Cohort(seed, 1, EVERYONE, liars=liars) for seed, liars in enumerate((None, LIARS))]
    together, _ = run_round(method, tasks, states, cohorts, epochs=2, spec=SPEC)
    for task, state, cohort, after in zip(tasks, states, cohorts, together, strict=True):
        (alone,), _ = run_round(method, [task], [state], [cohort], epochs=2, spec=SPEC)
        assert_same(after, alone, tolerance=1e-10)


def test_recorded_steps_serve_rounds_with_and_without_lies(sim: torch.device) -> None:
    method, task = PromptFL(n_ctx=2), toy(attack("backdoor"), device=sim)
    graphs = Graphs(always=True)
    for liars in (None, LIARS, None):
        assert_same(trained(method, task, liars, graphs=graphs), trained(method, task, liars), tolerance=1e-8)
    assert_same(trained(method, task, LIARS, block=1), trained(method, task, LIARS), tolerance=1e-8)


# ---- on images ---------------------------------------------------------------------------------------------------


def simulate(cache: Path, *overrides: str, seeds: tuple[int, ...] = (1,)) -> Simulation:
    return Simulation(compose_run([*BACKDOOR, *overrides]), seeds, cache_dir=cache)


def untimed(record: dict[str, Any]) -> str:
    """The record as text, in which what is not a number equals itself."""
    return repr({name: value for name, value in record.items() if not name.startswith("time/")})


@pytest.mark.parametrize(
    ("overrides", "needs", "blocks"),
    [
        (["method=promptfl", "data.views=1"], "pooled", 0),
        (["method=fedotp"], "patches", 0),
        (["method=vpt"], "pixels", 0),
        (["method=pfedmma", "method.blocks=1"], "pixels", 3),
    ],
)
def test_poisoned_clients_see_the_features_of_patched_images(
    feature_cache: Path, overrides: list[str], needs: str, blocks: int
) -> None:
    """Whatever methods see, also in place of random views."""
    trial = simulate(feature_cache, *overrides)
    (task,), world = trial.tasks, trial.world
    n, pools = len(world.dataset.train), (world.dataset.train, world.dataset.test)
    patch = View(PATCH, round(1000 * trial.run.clients.malicious.backdoor.size))
    how = {"towers": world.towers, "needs": needs, "blocks": blocks, "cache_dir": feature_cache}
    (train, test), (plain, _) = ([features(pool, view=v, **how) for pool in pools] for v in (patch, None))
    assert world.passed == blocks
    assert torch.equal(world.train_images, plain)
    assert not torch.equal(train, plain)
    assert task.poisoned is not None
    lies, rows = task.poisoned.rows >= n, torch.cat([plain, train])[task.poisoned.rows]
    assert lies.any()
    rows = task.towers.normalise(rows) if rows.dtype == torch.uint8 else rows
    assert torch.equal(task.poisoned.table().image, rows.float())
    index = torch.arange(lies.shape[1]).expand(4, -1)
    drawn = task.poisoned.batch(EVERYONE, index, index).image
    assert torch.equal(drawn[lies], rows.float()[lies])
    patched, main = task.tests[PATCHED][1], task.tests["test"][1]
    assert torch.equal(patched.images[patched.rows[patched.mask]], test[main.rows[patched.mask]])
    record = trial.run_all()[0][-1]
    assert 0 <= record[SUCCESS] <= 1
    assert not [name for name in record if PATCHED in name]


def test_before_the_first_round_of_the_attack_clients_train_as_without_it(feature_cache: Path) -> None:
    ours, theirs = (
        simulate(feature_cache, f"clients.malicious.{field}", "protocol.rounds=3").run_all()[0]
        for field in ("from_round=3", "strength=0")
    )
    assert [untimed(a) == untimed(b) for a, b in zip(ours, theirs, strict=True)] == [True, True, False]
    assert all(SUCCESS in record for record in ours)


@pytest.mark.parametrize("kind", ["label_flip", "backdoor"])
def test_seeds_side_by_side_are_those_alone_and_so_is_a_run_that_was_interrupted(
    feature_cache: Path, kind: str
) -> None:
    how = ("partition.name=dirichlet", "partition.alpha=0.3", f"clients.malicious.attack={kind}")
    together = simulate(feature_cache, *how, seeds=(1, 2))
    records = together.run_all()
    alone = [simulate(feature_cache, *how, seeds=(seed,)).run_all()[0] for seed in (1, 2)]
    assert len({task.train.rows.shape for task in together.tasks}) == 1
    for mine, theirs in zip(records, alone, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.keys() == other.keys()
            for name in ("test/acc_mean", "train/loss", *([SUCCESS] if kind == "backdoor" else [])):
                assert one[name] == pytest.approx(other[name], abs=1e-6), name
    first = simulate(feature_cache, *how, seeds=(1, 2))
    first.step()
    second = simulate(feature_cache, *how, seeds=(1, 2))
    second.restore(first.snapshot())
    assert [*map(untimed, second.step())] == [untimed(history[-1]) for history in records]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["partition=base_to_novel"], {"base", "novel"}),
        (["partition=leave_one_domain_out", "data.domains=[photo,sketch]", "partition.held_out=[sketch]"], {"own"}),
        (["partition.n_clients=5", "protocol.unseen=0.2"], {"unseen"}),
        (["protocol.validation=everyone", "protocol.own_classes=true"], {"own_classes"}),
        (["stages=[{rounds: 1, epochs: 1}, {rounds: 1, epochs: 1}]"], set()),
    ],
)
def test_every_protocol_measures_success_on_its_main_test_set(
    feature_cache: Path, overrides: list[str], found: set[str]
) -> None:
    trial = simulate(feature_cache, *overrides)
    (task,), target = trial.tasks, trial.run.clients.malicious.backdoor.target
    assert task.tests.keys() == {"test", PATCHED, *found}
    main, patched = task.tests["test"][1], task.tests[PATCHED][1]
    assert torch.equal(patched.mask, main.mask & (main.label != target))
    assert patched.same_for_all == main.same_for_all
    last = trial.run_all()[0][-1]
    assert 0 <= last[SUCCESS] <= 1
    assert {"clients/test", "clients/val"} <= last.keys()
    assert [math.isnan(accuracy) for accuracy in last["clients/test"]] == [not size for size in main.sizes]


def test_a_world_without_a_backdoor_reads_nothing_more(feature_cache: Path) -> None:
    plain, flipped = (compose_run([*BACKDOOR, f"clients={name}"]) for name in ("benign", "label_flip"))
    ours, none = compose_run(BACKDOOR), compose_run([*BACKDOOR, "clients.malicious.share=0"])
    worlds = [world_of(run, cache_dir=feature_cache) for run in (plain, flipped, none, ours)]
    assert worlds[0] is worlds[1] is worlds[2] is not worlds[3]
    assert [len(world.patched) for world in worlds[2:]] == [0, 2]
    assert (
        world_of(compose_run([*BACKDOOR, "clients.malicious.backdoor.size=0.2"]), cache_dir=feature_cache)
        is not worlds[3]
    )
    again = world_of(compose_run([*BACKDOOR, "clients.malicious.backdoor.target=3"]), cache_dir=feature_cache)
    assert all(torch.equal(one, other) for one, other in zip(again.patched, worlds[3].patched, strict=True))


def test_a_plan_counts_the_images_that_are_encoded_with_the_patch(tmp_path: Path) -> None:
    loaded = preflight.Loaded()
    plain, ours = (
        loaded.encoding(compose_run([*BACKDOOR, *more]), tmp_path, "cpu") for more in (["clients=benign"], [])
    )
    assert sum(n for n, _ in ours.values()) == 2 * sum(n for n, _ in plain.values())
    run = compose_run(BACKDOOR)
    task, dataset = dummy_task(run), loaded.dataset_of(run)
    assert task.poisoned is not None
    assert task.poisoned.patched is not None
    assert len(task.poisoned.patched) == len(task.train.images) == len(dataset.train)
    assert int(task.poisoned.rows.max()) >= len(dataset.train)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["clients.malicious.backdoor.target=20"],
            r"one of the 20 classes .* 0 \(circle\) to 19 \(bolt\), but is 20\.$",
        ),
        (
            ["partition=base_to_novel", "clients.malicious.backdoor.target=10"],
            r"one of the 10 classes .*, but is 10\.$",
        ),
        (
            ["data.classes=shape", "clients.malicious.backdoor.target=circle"],
            r"target must be an integer, but is 'circle'",
        ),
    ],
)
def test_a_target_that_nobody_trains_on_is_refused_before_anything_starts(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preflight.check([compose_run([*BACKDOOR, *overrides])])


def test_benign_clients_without_images_of_another_class_are_refused() -> None:
    task = toy_task()
    task.tests["test"][1].label[:] = 2
    spec = attack("backdoor", backdoor=BackdoorSpec(target=2))
    with pytest.raises(ConfigError, match=r"have none but those of 'sea lion'\. Choose another clients\.malicious"):
        poisoned(task.judged_without(LIARS), spec, marked(task), 1)


def test_a_folder_of_images_of_any_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog", "cow")):
        for k in range(12):
            path = tmp_path / "data" / name / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            size = (20 + 7 * number, 24 + k, 3)
            Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(path)
    given = ["data=folder", f"data.root={tmp_path / 'data'}", "data.shots=null", "partition=iid", "clients=backdoor"]
    run = compose_run([*given, "partition.n_clients=3", "protocol.rounds=1", "protocol.epochs=1", "method=vpt"])
    trial = Simulation(run, [1], cache_dir=tmp_path / "cache")
    size, patch = trial.world.towers.image_size, View(PATCH, round(1000 * run.clients.malicious.backdoor.size))
    (_, _), (_, _), *patches = pools_and_views(trial.world.dataset, 0, None, patch)
    assert [view for _, view in patches] == [patch, patch]
    side = round(run.clients.malicious.backdoor.size * size)
    corners = trial.world.patched[0][:, :, -side:, -side:]
    assert corners.unique().tolist() == [0, 255]
    assert torch.equal(corners, corners[:1].expand_as(corners))
    assert 0 <= trial.run_all()[0][-1][SUCCESS] <= 1
