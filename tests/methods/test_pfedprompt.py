from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Batch, Local
from fpl_tune.methods.pfedprompt import GRID, PFedPrompt
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, assert_same, play, toy_task

TWO: dict[str, Any] = {"n_ctx": 2}


def images_to_test(task: ClientTask) -> Batch:
    held = task.tests["test"][1]
    return held.batch(EVERYONE, torch.arange(3).expand(4, -1))


def deployed(method: PFedPrompt, task: ClientTask) -> Local:
    return method.deploy(task, play(method, [task])[-1][0], EVERYONE)


def test_without_memory_it_is_promptfl(task: ClientTask) -> None:
    method, plain = PFedPrompt(alpha=0.0, weighted=True, **TWO), PromptFL(**TWO)
    found, wanted = (play(m, [task])[-1][0] for m in (method, plain))
    assert_same(found, wanted, tolerance=1e-12)
    batch = images_to_test(task)
    torch.testing.assert_close(
        method.logits(task, method.deploy(task, found, EVERYONE), batch),
        plain.logits(task, plain.deploy(task, wanted, EVERYONE), batch),
    )


@pytest.mark.parametrize("memory", ["class", "image"])
def test_the_memory_adds_affinities_with_training_images(task: ClientTask, memory: Any) -> None:
    method = PFedPrompt(alpha=2.0, memory=memory, **TWO)
    local, batch, table = deployed(method, task), images_to_test(task), task.table("train")
    found = method.logits(task, local, batch)
    for client in range(4):
        image = F.normalize(batch.image[client], dim=-1)
        wanted = task.scale * image @ task.encode_prompts(local.params["prompt"][client]).T
        labels = table.label[client][table.mask[client]]
        stored = F.normalize(table.image[client][table.mask[client]], dim=-1)
        for c in labels.unique().tolist():
            keys = stored[labels == c]
            if memory == "class":
                keys = keys.mean(0, keepdim=True)
            wanted[:, c] += 2.0 * F.cosine_similarity(image.unsqueeze(1), keys, dim=-1).sum(1)
        torch.testing.assert_close(found[client], wanted, rtol=0, atol=1e-9)


def accuracy_and_loss(method: PFedPrompt, task: ClientTask, local: Local, alpha: float) -> list[Tensor]:
    fixed = {**local.buffers, "alpha": torch.full((4,), alpha, dtype=task.dtype)}
    held = task.table("val")
    batch = Batch(held.image[:, :2], held.label[:, :2], held.mask[:, :2], EVERYONE)
    logits = method.logits(task, local._replace(buffers=fixed), batch)
    right = (logits.argmax(-1) == batch.label).double().mean(1)
    return [right, F.cross_entropy(logits.mT, batch.label, reduction="none").mean(1)]


def test_alpha_is_each_clients_best_on_its_own_validation_images() -> None:
    method, chosen = PFedPrompt(**TWO), set()
    for seed in range(3):
        task = toy_task(seed=seed)
        local = deployed(method, task)
        for client in range(4):
            figures = [accuracy_and_loss(method, task, local, a) for a in GRID]
            best = max(GRID, key=lambda a, f=figures, c=client: (
                float(f[GRID.index(a)][0][c]), -float(f[GRID.index(a)][1][c]), -a
            ))  # fmt: skip
            assert float(local.buffers["alpha"][client]) == pytest.approx(best)
            chosen.add(best)
    assert len(chosen) > 1


def test_the_grid_is_the_papers() -> None:
    assert len(GRID) == 20
    printed = {0.10, 0.35, 0.59, 1.08, 1.33, 2.06, 2.55, 3.29, 3.53, 3.77, 4.51, 4.75}
    assert all(min(abs(a - p) for a in GRID) < 0.0051 for p in printed)
