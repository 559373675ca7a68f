"""Test sets and validation images that the protocol adds to a split's."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.config import compose_run
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.metrics import shown_beside
from fpl_tune.data import DataSpec, load
from fpl_tune.execute.plan import preflight
from fpl_tune.method import Table
from fpl_tune.simulation.evaluate import evaluate
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientData
from fpl_tune.study.fingerprints import fingerprints

from .conftest import CORNER

SMALL = (*CORNER, "partition.name=classes", "partition.n_clients=4", "protocol.rounds=1")
CROSS = (*SMALL, "protocol.cross=[shapes/object]", "data.test_per_class=1")


def simulate(feature_cache: Path, *overrides: str) -> Simulation:
    return Simulation(compose_run([*SMALL, *overrides]), (1,), cache_dir=feature_cache)


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
        (["method=linear_head"], "as test sets have other classes than training, but is 'linear_head'"),
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
