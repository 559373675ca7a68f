"""Test sets and validation images that the protocol adds to a split's, also of the models that new clients receive."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.config import compose_run, identity
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.metrics import shown_beside
from fpl_tune.data import DataSpec, load
from fpl_tune.execute.plan import preflight
from fpl_tune.method import State, Table, generator
from fpl_tune.methods.fedper import FedPer
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation import bounds
from fpl_tune.simulation.dummy import dummy_task
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientData, ClientTask
from fpl_tune.simulation.worlds import draw_clients, initial_state, needs_of, threads_of, world_of
from fpl_tune.study.fingerprints import fingerprints
from fpl_tune.testing import play, toy_task
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.finetuned import FineTuned

from .conftest import CORNER

SMALL = (*CORNER, "partition.name=classes", "partition.n_clients=4", "protocol.rounds=1")
CROSS = (*SMALL, "protocol.cross=[shapes/object]", "data.test_per_class=1")


def simulate(feature_cache: Path, *overrides: str, seeds: tuple[int, ...] = (1,)) -> Simulation:
    return Simulation(compose_run([*SMALL, *overrides]), seeds, cache_dir=feature_cache)


def accuracies(logits: torch.Tensor, table: Table) -> list[float]:
    """Of each client's images [N, R] under logits [N, R, K]."""
    right = (logits.argmax(-1) == table.label) & table.mask
    return (right.sum(1) / table.mask.sum(1)).tolist()


def zero_shot(trial: Simulation, held: ClientData) -> tuple[torch.Tensor, Table]:
    table = held.table()
    return F.normalize(table.image, dim=-1) @ trial.tasks[0].hand_text.T, table


def test_own_classes_are_those_of_the_clients_training_images(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "method=zeroshot", "partition.evaluation=domains", "protocol.own_classes=true")
    found = trial.run_all()[0][-1]
    task = trial.tasks[0]
    train = task.table("train")
    counts = [torch.bincount(row[mask], minlength=20) for row, mask in zip(train.label, train.mask, strict=True)]
    owned = torch.stack(counts) > 0
    logits, table = zero_shot(trial, task.tests["test"][1])
    known = table._replace(mask=table.mask & owned.gather(1, table.label))
    assert known.mask.sum() < table.mask.sum(), "some images show a class that their client does not train on"
    assert found["clients/own_classes"] == pytest.approx(
        accuracies(logits.masked_fill(~owned[:, None], -math.inf), known)
    )
    assert found["clients/test"] == pytest.approx(accuracies(logits, table))


@pytest.mark.parametrize("method", ["fedtpg", "promptfl"])
def test_own_classes_are_what_the_loss_of_own_classes_knows(feature_cache: Path, method: str) -> None:
    """FedTPG's network reads the client's own names, as in training; other methods compare fewer classes."""
    trial = simulate(feature_cache, f"method={method}", "protocol.own_classes=true")
    trial.run_all()
    task, state, stage = trial.tasks[0], trial.states[0], trial.stages[0]
    (scores,) = evaluate(stage.method, [task], [state])
    held, everyone = task.tests["own_classes"][1], torch.arange(4)
    batch = held.batch(everyone, torch.arange(held.spare).expand(4, -1))
    logits = stage.method.logits(task, stage.method.start(task, state, everyone), batch)
    logits = logits.masked_fill(~(task.counts > 0)[:, None], -math.inf)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.label.flatten(), reduction="none").view_as(batch.label)
    wanted = torch.where(batch.mask, loss, 0).sum(1) / batch.mask.sum(1)
    torch.testing.assert_close(scores["own_classes"].loss, wanted.detach())
    assert (scores["own_classes"].loss < scores["test"].loss).all(), "fewer classes compete"


def test_another_data_set_is_tested_among_its_own_classes(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "method=zeroshot", *CROSS)
    found = trial.run_all()[0][-1]
    other = load(DataSpec(classes="object", test_per_class=1))
    classes, held = trial.tasks[0].tests["cross/shapes/object"]
    assert classes.names == other.classes
    table = held.table()
    assert table.mask.sum(1).tolist() == [len(other.test)] * 4
    (wanted,) = set(accuracies(F.normalize(table.image, dim=-1) @ classes.hand_text.T, table))
    assert found["test/cross/shapes/object/acc_mean"] == pytest.approx(wanted)
    assert found["test/cross/acc_mean"] == found["test/cross/shapes/object/acc_mean"]
    assert found["test/acc_mean"] != found["test/cross/acc_mean"]
    assert [name for name in shown_beside(found) if "cross" in name] == ["test/cross/acc_mean"]


def test_another_data_set_is_part_of_what_a_result_depends_on() -> None:
    plain, crossed = compose_run(SMALL), compose_run(CROSS)
    assert fingerprints(crossed)["data"] != fingerprints(plain)["data"]


@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["method=linear_head"], "LinearHead needs test images of the training classes"),
        (["method=pfedprompt"], r"protocol\.cross=\[\]"),
        (["protocol.cross=[shape]"], "There is no data set 'shape'"),
        (["protocol.cross=[shapes/red]"], "red"),
    ],
)
def test_what_cannot_be_tested_on_another_data_set_is_refused_before_the_start(overrides: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        preflight.check([compose_run([*CROSS, *overrides])])


def test_missing_files_of_another_data_set_are_reported_before_the_start(tmp_path: Path) -> None:
    run = compose_run([*SMALL, "protocol.cross=[dtd]", f"data.root={tmp_path}"])
    with pytest.raises(EnvironmentProblem, match="dtd"):
        preflight.check([run])


def test_the_plan_counts_tests_on_another_data_set() -> None:
    """Ten times the classes take as long as ten tests, and its images as many bytes as they have."""
    loaded = preflight.Loaded()
    plain, crossed = (compose_run([*overrides, "method=coop"]) for overrides in (SMALL, CROSS))
    assert loaded.typical_pace(crossed, "cpu") > 1.5 * loaded.typical_pace(plain, "cpu")
    more = loaded.memory_of(crossed).images - loaded.memory_of(plain).images
    assert more == 4 * loaded.towers_of(plain).embed_dim * (200 * 6 - 20 * 3)


def test_validation_on_everyones_images_scores_each_model_on_all_of_them(feature_cache: Path) -> None:
    trial = simulate(feature_cache, "method=coop", "protocol.validation=everyone", "protocol.unseen=0.25")
    found = trial.run_all()[0][-1]
    task = trial.tasks[0]
    (unseen,) = [client for client, size in enumerate(task.train.sizes) if not size]
    own = task.table("val")
    images, labels = own.image[own.mask], own.label[own.mask]
    assert len(labels) == sum(task.val.sizes)
    for client, accuracy in enumerate(found["clients/val"]):
        if client == unseen:
            assert math.isnan(accuracy)
            continue
        prompt = trial.states[0].personal["prompt"][client]
        logits = F.normalize(images, dim=-1) @ task.encode_prompts(prompt).T
        assert accuracy == pytest.approx((logits.argmax(-1) == labels).double().mean().item())


def test_the_shared_model_is_validated_on_everyones_images_once(feature_cache: Path) -> None:
    """Its accuracy is the mean of the clients' own, each weighing as much as it has images."""
    pooled, own = (simulate(feature_cache, f"protocol.validation={of}").run_all()[0][-1] for of in ("everyone", "own"))
    task = simulate(feature_cache).tasks[0]
    wanted = sum(a * n for a, n in zip(own["clients/val"], task.val.sizes, strict=True)) / sum(task.val.sizes)
    assert pooled["clients/val"] == pytest.approx([wanted] * 4)
    assert pooled["test/acc_mean"] == own["test/acc_mean"]


TEN = ("partition.name=auto", "partition.n_clients=10", "protocol.rounds=2", "method.n_ctx=2")


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


def test_unseen_clients_never_train_and_have_a_test_set_of_their_own(feature_cache: Path) -> None:
    trial = simulate(
        feature_cache, *TEN, "method=fedper", "method.n_own=1", "protocol.unseen=0.3", "protocol.participation=0.5"
    )
    before = {name: leaf.clone() for name, leaf in trial.states[0].personal.items()}
    records = trial.run_all()[0]
    unseen = [size == 0 for size in trial.tasks[0].train.sizes]
    assert sum(unseen) == 3
    for name, leaf in trial.states[0].personal.items():
        assert torch.equal(leaf[unseen], before[name][unseen])
    last = records[-1]
    assert [math.isnan(accuracy) for accuracy in last["clients/test"]] == unseen
    assert [math.isnan(accuracy) for accuracy in last["clients/val"]] == unseen
    assert [math.isnan(accuracy) for accuracy in last["clients/unseen"]] == [not it for it in unseen]
    held = [accuracy for accuracy, it in zip(last["clients/unseen"], unseen, strict=True) if it]
    assert last["test/unseen/acc_mean"] == pytest.approx(sum(held) / 3)
    assert trial.tasks[0].participation == 3 / 7


@pytest.mark.parametrize(
    ("overrides", "cohort", "malicious"),
    [
        (["partition.n_clients=8", "protocol.unseen=0.5"], 4, 2),
        (["partition.n_clients=10", "protocol.participation=0.4", "protocol.first_round_all=true"], 4, 2),
        (["data.domains=[photo,sketch,clipart]", "partition=domain_dirichlet", "partition.n_clients=4",
          "protocol.participation=0.3", "protocol.sampling=domain"], 3, 2),
    ],
)  # fmt: skip
def test_a_method_is_told_the_clients_of_a_round(overrides: list[str], cohort: int, malicious: int) -> None:
    """Of those that train. Half of them are malicious, which no robust rule admits."""
    run = compose_run([*overrides, "method=promptfl_robust", "clients=sign_flip", "clients.malicious.share=0.5"])
    task = dummy_task(run)
    assert (task.cohort, task.malicious) == (cohort, malicious)
    assert len(draw_clients(run, task, 1, 2)) == cohort
    with pytest.raises(ConfigError, match=rf"as 2 of the {cohort} clients of a round are malicious|of the {cohort} up"):
        run.method.check(task)


def test_memory_is_that_of_the_largest_round() -> None:
    run = compose_run(["partition.n_clients=10", "protocol.participation=0.4", "protocol.first_round_all=true"])
    task = dummy_task(run)
    assert bounds.estimate(run, task, initial_state(run.method, task, 1)).clients == 10


def test_who_is_unseen_follows_the_seed(feature_cache: Path) -> None:
    tasks = simulate(feature_cache, *TEN, "protocol.unseen=0.5", seeds=(1, 2)).tasks
    assert [task.train.sizes.count(0) for task in tasks] == [5, 5]
    assert [size == 0 for size in tasks[0].train.sizes] != [size == 0 for size in tasks[1].train.sizes]


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_share_that_leaves_nobody_out_or_nobody_in_is_refused(feature_cache: Path, share: float) -> None:
    with pytest.raises(ConfigError, match=r"protocol\.unseen must leave out some of 10 clients and not all"):
        simulate(feature_cache, *TEN, f"protocol.unseen={share}")


def test_without_personal_leaves_the_global_model_is_everybodys(feature_cache: Path) -> None:
    last = simulate(feature_cache, *TEN, "protocol.global_model=true").run_all()[0][-1]
    assert last["clients/global"] == last["clients/test"]
    assert last["test/global/acc_mean"] == last["test/acc_mean"]


def test_the_global_model_is_what_is_shared_with_a_new_clients_own_part(task: ClientTask) -> None:
    method = FedPer(n_ctx=3, n_own=1)
    fresh, (state,) = method.init(task, generator("new")), play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    found = method.newcomers(task, state, fresh)
    assert found.shared is state.shared
    assert torch.equal(found.personal["own"], fresh.personal["own"])


@pytest.mark.parametrize("wrapper", [Ditto, FineTuned])
def test_new_clients_begin_their_copies_from_what_is_shared(
    task: ClientTask, wrapper: type[Ditto] | type[FineTuned]
) -> None:
    method = wrapper(PromptFL(n_ctx=2))
    fresh = method.init(task, generator("new"))
    (state,) = play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    task.tests["global"] = task.tests["test"]
    (scores,) = evaluate(method, [task], [state], fresh=[fresh])
    (wanted,) = evaluate(PromptFL(n_ctx=2), [task], [State(state.shared, {}, {})], fresh=[fresh])
    del task.tests["global"]
    assert torch.equal(scores["global"].loss, wanted["test"].loss)
    assert not torch.equal(scores["global"].loss, scores["test"].loss)


def test_ids_of_earlier_cells_stay_what_they_were() -> None:
    assert identity(compose_run([])) == identity(compose_run(["protocol.unseen=0", "protocol.global_model=false"]))
    assert identity(compose_run(["protocol.unseen=0.5"])) != identity(compose_run([]))


@pytest.mark.parametrize(
    ("stages", "wanted"),
    [
        (["promptfl", "coop"], ("pooled", None, None)),
        (["pfedmma, blocks: 1", "pfedmma, blocks: 3"], ("pixels", None, 3)),
        (["pfedmma, blocks: 3", "pfedmma, blocks: 1"], ("pixels", None, 3)),
        (["pfedmma, blocks: 3", "vpt"], ("pixels", None, None)),
    ],
)
def test_images_are_read_as_all_stages_need_them(stages: list[str], wanted: tuple[str, str | None, int | None]) -> None:
    """After the blocks that none of them changes."""
    how = ", ".join(f"{{method: {{name: {stage}}}, rounds: 1, epochs: 1}}" for stage in stages)
    assert needs_of(compose_run([f"stages=[{how}]"])) == wanted


def test_stages_that_see_images_of_different_kinds_are_refused() -> None:
    how = "{method: {name: promptfl}, rounds: 1, epochs: 1}, {method: {name: vpt}, rounds: 1, epochs: 1}"
    with pytest.raises(ConfigError, match="All stages of a run must see the same kind of images"):
        needs_of(compose_run([f"stages=[{how}]"]))


def test_large_towers_have_up_to_four_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = compose_run([]), compose_run(["clip=rn50"])
    for cores, threads in ((1, 1), (3, 3), (8, 4)):
        monkeypatch.setattr("fpl_tune.simulation.worlds.cores", lambda n=cores: n)
        assert (threads_of(large), threads_of(small), threads_of(large, "cuda")) == (threads, 1, 1)


def test_trials_that_agree_on_what_they_read_share_a_world(feature_cache: Path) -> None:
    """Another learning rate reads the same, other images are another world."""
    one, other, more = (
        world_of(compose_run([*SMALL, given]), cache_dir=feature_cache)
        for given in ("optim.lr=0.1", "optim.lr=0.2", "data.test_per_class=1")
    )
    assert one is other is not more
    assert len(more.test_images) < len(one.test_images)
