"""Figures of each client and of all, against those of scikit-learn and by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Batch, Local, State
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.evaluate import Score, auroc_fpr95, deploy_blocks, diagnose, evaluate, summarise
from fpl_tune.simulation.task import ClientData
from fpl_tune.testing import toy_task


def test_scores_of_each_client_by_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    task = toy_task()
    method = CoOp(n_ctx=3)
    state = method.init(task, torch.Generator().manual_seed(0))
    state.personal["prompt"] += 0.5 * torch.randn(state.personal["prompt"].shape, dtype=torch.float64)
    found = evaluate(method, [task], [state])[0]
    for name, data in {"val": task.val, "test": task.tests["test"][1]}.items():
        gaps, n = torch.zeros(15, dtype=torch.float64), 0
        for client, size in enumerate(data.sizes):
            clients = torch.tensor([client])
            batch = data.batch(clients, torch.arange(size)[None])
            chances = method.logits(task, method.deploy(task, state, clients), batch)[0].softmax(-1)
            label, taken = batch.label[0], chances.argmax(-1)
            assert found[name].accuracy[client] == pytest.approx(metrics.accuracy_score(label, taken))
            assert found[name].macro_f1[client] == pytest.approx(metrics.f1_score(label, taken, average="macro"))
            of_true = metrics.f1_score(label, taken, average="macro", labels=label.unique(), zero_division=0)
            assert found[name].macro_f1_present[client] == pytest.approx(of_true)
            loss = metrics.log_loss(label, chances, labels=range(task.n_classes))
            assert found[name].loss[client].item() == pytest.approx(loss, rel=1e-5)
            for chance, right in zip(chances.amax(-1).tolist(), (taken == label).tolist(), strict=True):
                gaps[min(14, int(15 * chance))] += chance - right
            n += size
        assert found[name].ece == pytest.approx(gaps.abs().sum().item() / n)


class _Says(PromptFL):
    """Predicts the class that an image's feature names."""

    def logits(self, task, local: Local, batch: Batch):
        return F.one_hot(batch.image[..., 0].round().long().clamp(0, task.n_classes - 1), task.n_classes).to(task.dtype)


def test_a_class_that_images_are_only_taken_for_lowers_one_of_both_f1() -> None:
    """Labels 0, 0, 1, 1 taken for 0, 2, 1, 1: F1 is 2/3, 1 and, of the class that no image has, 0."""
    task = toy_task()
    known, _ = task.tests["test"]
    images = torch.tensor([0.0, 2.0, 1.0, 1.0]).to(task.dtype)[:, None].expand(-1, task.embed_dim)
    held = [np.arange(4)] * task.n_clients, [np.array([0, 0, 1, 1])] * task.n_clients
    task.tests["test"] = known, ClientData(images, *held, towers=task.towers, dtype=task.dtype)
    method = _Says(n_ctx=1)
    found = evaluate(method, [task], [method.init(task, torch.Generator())])[0]["test"]
    assert found.macro_f1.tolist() == pytest.approx([5 / 9] * task.n_clients)
    assert found.macro_f1_present.tolist() == pytest.approx([5 / 6] * task.n_clients)


class _Sure(PromptFL):
    """Predicts the first class with the confidence that an image's feature names."""

    def logits(self, task, local: Local, batch: Batch):
        sure = batch.image[..., :1]
        return torch.cat([sure, ((1 - sure) / (task.n_classes - 1)).expand(-1, -1, task.n_classes - 1)], -1).log()


def test_calibration_is_judged_in_fifteenths_of_confidence() -> None:
    """Images of one bin even out; those of different bins do not: here two to a bin, and every second bin is right."""
    task = toy_task()
    known, _ = task.tests["test"]
    sure = torch.tensor([(place + away) / 15 for place in range(3, 15) for away in (0.1, 0.9)], dtype=task.dtype)
    label = torch.arange(24) // 2 % 2
    held = [np.arange(24)] * task.n_clients, [label.numpy()] * task.n_clients
    images = sure[:, None].expand(-1, task.embed_dim)
    task.tests["test"] = known, ClientData(images, *held, towers=task.towers, dtype=task.dtype)
    method = _Sure(n_ctx=1)
    found = evaluate(method, [task], [method.init(task, torch.Generator())])[0]["test"]
    away = (sure - (label == 0).to(sure)).view(12, 2)
    assert found.ece == pytest.approx(float(away.sum(1).abs().sum()) / 24)


class _Counting(PromptFL):
    """Counts rows of logits."""

    rows = 0

    def logits(self, task, local: Local, batch: Batch):
        type(self).rows += len(batch.image)
        return super().logits(task, local, batch)


def test_one_global_model_on_one_common_test_set_is_evaluated_once() -> None:
    task = toy_task()
    known, data = task.tests["test"]
    everyone = torch.arange(12)
    shared = everyone.numpy()
    common = type(data)(
        data.images, [shared] * 4, [data.label[data.mask].numpy()] * 4, towers=task.towers, dtype=task.dtype
    )
    task.tests["test"] = (known, common)
    _Counting.rows = 0
    method = _Counting(n_ctx=2)
    found = evaluate(method, [task], [method.init(task, torch.Generator())])[0]
    assert _Counting.rows == 4 + 1  # four clients on validation, one for all on the common set
    assert found["test"].accuracy.unique().numel() == 1
    assert len(found["test"].accuracy) == 4


def test_summary_by_hand() -> None:
    accuracy, loss = torch.tensor([1.0, 0.5, math.nan, 0.0]), torch.tensor([0.1, 0.2, math.nan, 0.6])
    score = Score(accuracy, loss, accuracy**2, accuracy**3, ece=0.03)
    quarter = Score(torch.tensor([0.25]), *torch.zeros(3, 1), ece=0.0)
    found = summarise({"val": score, "test": score, "base": score, "novel": quarter}, primary="test")
    assert found["val/acc_mean"] == pytest.approx(0.5)
    assert found["test/acc_std"] == pytest.approx(math.sqrt((0.25 + 0 + 0.25) / 3))
    assert (found["test/acc_worst10"], found["test/acc_min"], found["test/ece"]) == (0.0, 0.0, 0.03)
    assert found["test/macro_f1"] == pytest.approx((1 + 0.25 + 0) / 3)
    assert found["test/macro_f1_present"] == pytest.approx((1 + 0.125 + 0) / 3)
    assert found["test/loss"] == pytest.approx(0.3)
    assert found["test/base_novel_harmonic_mean"] == pytest.approx(2 / (2 + 4)), "KgCoOp: of base and novel"
    assert found["test/harmonic_mean"] == pytest.approx(3 / (2 + 2 + 4)), "FedPGP: of own, base and novel"


def test_the_worst_tenth_are_a_tenth_of_the_clients_that_hold_images() -> None:
    """At least one; a set that nobody holds has no figures."""
    accuracy = torch.linspace(1, 0, 25)
    holders = torch.cat([accuracy, torch.full((9,), math.nan)])
    own, nobodys = (Score(values, values, values, values, 0.1) for values in (holders, torch.full((34,), math.nan)))
    found = summarise({"val": nobodys, "own": own}, "own")
    assert found["test/acc_worst10"] == pytest.approx((0 + 1 / 24) / 2)
    assert found["test/acc_mean"] == found["test/loss"] == pytest.approx(0.5)
    assert not [name for name in found if name.startswith("val/")]


def test_clients_are_deployed_in_blocks_that_fit_in_a_quarter_of_a_gigabyte() -> None:
    """Their leaves and text features; a few are deployed together whatever their size."""
    task, row = toy_task(sizes=(1,) * 300), torch.zeros(1)

    class Large(PromptFL):
        def deploy(self, task: Any, state: State, clients: Tensor) -> Local:
            return Local({"a": row.expand(len(clients), 1 << 18)}, {"b": row.expand(len(clients), 1 << 18)})

    everyone, state = torch.arange(300), State({}, {}, {})
    size = 8 * (1 << 18) + 4 * task.n_classes * task.embed_dim
    for tasks in ([task], [task] * 3):
        blocks = deploy_blocks(Large(), tasks, [state] * len(tasks), everyone)
        assert torch.equal(torch.cat(list(blocks)), everyone)
        together = {len(block) for block in blocks[:-1]}
        assert together == {2**28 // (len(tasks) * size)}
    assert [len(block) for block in deploy_blocks(Large(), [task], [state], everyone[:256])] == [256]
    assert [len(block) for block in deploy_blocks(Large(), [task], [state], everyone[:256], at_once=200)] == [200, 56]
    assert [len(block) for block in deploy_blocks(PromptFL(), [task], [state], everyone[:0])] == [0]


def test_a_diagnosis_is_the_mean_over_clients_with_validation_images() -> None:
    """Of at most 64 of their images."""
    task = toy_task()

    class Counts(PromptFL):
        def diagnose(self, task: Any, local: Local, batch: Batch) -> dict[str, Tensor]:
            return {"images": torch.stack([batch.mask.sum(1), batch.index[:, 0] + 1], 1)}

    held = [np.arange(n) for n in (100, 0, 3, 64)]
    task.val = ClientData(torch.zeros(100, task.embed_dim), held, held, towers=task.towers)
    method = Counts(n_ctx=1)
    state = method.init(task, torch.Generator())
    assert diagnose(method, task, state) == {"diagnosis/images": [(64 + 3 + 64) / 3, 1.0]}
    assert diagnose(method, task.without(torch.ones(4, dtype=torch.bool)), state) == {}


def test_auroc_and_fpr95_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = torch.Generator().manual_seed(0)
    known, unknown = torch.rand(3, 41, generator=rng) + 0.2, (torch.rand(3, 60, generator=rng) * 20).round() / 20
    known[:, ::3] = (known[:, ::3] * 20).round() / 20  # ties
    for i, (auroc, fpr95) in enumerate(zip(*auroc_fpr95(known, unknown), strict=True)):
        scores, truth = torch.cat([known[i], unknown[i]]), [1] * 41 + [0] * 60
        assert auroc.item() == pytest.approx(metrics.roc_auc_score(truth, scores))
        false, true, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
        assert fpr95.item() == pytest.approx(false[true >= 0.95][0])
