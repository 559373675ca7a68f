"""SGPT: images choose the group whose prompts follow the shared ones."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, Local, generator
from fpl_tune.methods.sgpt import SGPT
from fpl_tune.methods.vpt import VPT
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE

TASK = dict(needs="pixels", sizes=(4, 3, 3, 2))
SMALL = SGPT(groups=3, shared_blocks=2, group_blocks=1, n_tokens=2)


def begin(task: ClientTask, method: SGPT, seed: str = "begin") -> Local:
    """Prompts well apart, and keys that follow the features."""
    local = method.start(task, method.init(task, generator(seed)), EVERYONE)
    rng = generator("apart")
    for name in ("visual", "groups"):
        leaf = local.params[name]
        local.params[name] = leaf + 0.5 * torch.randn(leaf.shape, generator=rng).to(leaf)
    return local


def plain_features(task: ClientTask, images: torch.Tensor) -> torch.Tensor:
    return F.normalize(task.towers.encode_images(images), dim=-1)


def by_hand(task: ClientTask, local: Local, client: int, image: torch.Tensor, group: int) -> torch.Tensor:
    """Raw feature of one image under the shared prompts of blocks 1 and 2 and its group's of block 3."""
    shared, groups = local.params["visual"][client], local.params["groups"][client]
    found, _ = task.encode_images(image[None, None], shared[:1], deep=torch.cat([shared[1:], groups[group]])[None])
    return found[0, 0]


@pytest.mark.parametrize("query", ["feature", "relu"])
def test_an_image_chooses_the_nearest_key_and_reads_its_groups_prompts(task: ClientTask, whole: Batch, query) -> None:
    method = replace(SMALL, query=query)
    local = begin(task, method)
    keys = plain_features(task, whole.image[0, :3])
    local.params["keys"] = (keys.clamp(min=0) if query == "relu" else keys).expand(4, -1, -1)  # each image its own
    logits, chosen = method.logits(task, local, whole), set()
    for client in range(4):
        for number in range(int(whole.mask[client].sum())):
            image = whole.image[client, number]
            feature = task.towers.encode_images(image[None])[0]
            feature = feature.clamp(min=0) if query == "relu" else feature
            away = [1 - float(F.cosine_similarity(feature, key, dim=0)) for key in local.params["keys"][client]]
            group = min(range(3), key=lambda j: away[j])
            wanted = F.normalize(by_hand(task, local, client, image, group), dim=0)
            torch.testing.assert_close(logits[client, number], task.scale * task.hand_text @ wanted)
            chosen.add(group)
    assert len(chosen) > 1


def test_keys_start_orthonormal(task: ClientTask) -> None:
    keys = SMALL.init(task, generator("keys")).shared["keys"]
    torch.testing.assert_close(keys @ keys.T, torch.eye(3, dtype=keys.dtype))


def test_rare_groups_are_nearer_in_training() -> None:
    """Distances 0.2, 0.5 and 0.6 with shares 0.7, 0.3 and 0: the last one costs 0.6 · 0.0005."""
    likeness = torch.tensor([[[0.8, 0.5, 0.4]]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    for share, wanted in (([0.7, 0.3, 0.0], 2), ([0.6, 0.2, 0.2], 1), ([0.5, 0.3, 0.2], 0), ([0.2, 0.4, 0.4], 0)):
        assert SMALL.choose(likeness, torch.tensor([share]) + 5e-4, mask).tolist() == [[wanted]]
    assert SMALL.choose(likeness, torch.ones(1, 3), mask).tolist() == [[0]]


def test_the_weights_are_the_shares_of_all_choices_so_far(task: ClientTask) -> None:
    state = SMALL.init(task, generator("weights"))
    assert torch.equal(SMALL.start(task, state, EVERYONE).buffers["weight"], torch.ones(4, 3, dtype=task.dtype))
    state.shared["chosen"] = torch.tensor([6, 3, 1])
    wanted = torch.tensor([0.6, 0.3, 0.1], dtype=task.dtype) + 5e-4
    torch.testing.assert_close(SMALL.start(task, state, EVERYONE).buffers["weight"], wanted.expand(4, 3))
    plain = replace(SMALL, balance="none").start(task, state, EVERYONE).buffers["weight"]
    assert torch.equal(plain, torch.ones_like(plain))


def test_a_batch_chooses_as_most_of_its_images_do() -> None:
    likeness = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.1, 0.7], [0.6, 0.5]]])
    mask = torch.tensor([[True, True, True, False]])
    assert SGPT(groups=2).choose(likeness, torch.ones(1, 2), mask).tolist() == [[0, 1, 1, 0]]
    assert SGPT(groups=2, choice="batch").choose(likeness, torch.ones(1, 2), mask).tolist() == [[1] * 4]


def test_the_loss_is_cross_entropy_and_the_pull_of_the_chosen_keys(task: ClientTask, whole: Batch) -> None:
    method = replace(SMALL, pull=0.3)
    local = begin(task, method)
    local.buffers["step"] += 1  # the turn of groups and keys
    local.params["keys"].requires_grad_()
    losses, after = method.loss(task, local, whole)
    (pulled,) = torch.autograd.grad(losses.sum(), [local.params["keys"]])
    for client in range(4):
        rows = whole.mask[client]
        feature, keys = plain_features(task, whole.image[client, rows]), local.params["keys"][client].detach()
        group = (feature @ keys.T).argmax(1)  # orthonormal keys, no frequencies yet
        scores = torch.stack([
            task.scale * task.hand_text @ F.normalize(by_hand(task, local, client, x, int(j)), dim=0)
            for x, j in zip(whole.image[client, rows], group, strict=True)
        ])  # fmt: skip
        away = 1 - (feature * keys[group]).sum(1)
        wanted = F.cross_entropy(scores, whole.label[client, rows]) + 0.3 * away.mean()
        torch.testing.assert_close(losses[client].detach(), wanted)
        assert after["chosen"][client].tolist() == group.bincount(minlength=3).tolist()
        for j in range(3):  # the gradient of a unit key is minus the part of the features that is not along it
            mine = feature[group == j]
            across = mine - (mine @ keys[j])[:, None] * keys[j]
            torch.testing.assert_close(pulled[client, j], -0.3 * across.sum(0) / rows.sum(), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("turn", [1, 2])
def test_blocks_move_in_turns(task: ClientTask, whole: Batch, turn: int) -> None:
    """Shared prompts first; the other block has no gradient at all."""
    method = replace(SMALL, turn=turn, head="linear")
    local = begin(task, method)
    for step in range(2 * turn + 1):
        leaves = {n: leaf.detach().requires_grad_() for n, leaf in local.params.items()}
        losses, buffers = method.loss(task, local._replace(params=leaves), whole)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        moves = {n for n, g in zip(leaves, found, strict=True) if g is not None and bool(g.any())}
        shared = step // turn % 2 == 0
        assert moves == {"head.weight", "head.bias"} | ({"visual"} if shared else {"groups", "keys"}), step
        local = local._replace(buffers=buffers)


def test_one_group_is_visual_prompt_tuning(task: ClientTask, whole: Batch) -> None:
    method = replace(SMALL, groups=1)
    local = begin(task, method)
    deep = torch.cat([local.params["visual"], local.params["groups"][:, 0]], 1)
    prompted = VPT(n_tokens=2, depth=3).logits(task, Local({"visual": deep}, {}), whole)
    torch.testing.assert_close(method.logits(task, local, whole), prompted)


@pytest.mark.parametrize("keys", ["chosen", "released", "size"])
def test_keys_are_averaged_by_who_chose_them_and_keep_a_share(task: ClientTask, keys: Any) -> None:
    method, clients = replace(SMALL, keys=keys, momentum=0.25), torch.tensor([0, 3])  # 4 and 2 images
    state = method.init(task, generator("merge"))
    local = method.start(task, state, clients)
    for name in ("visual", "groups", "keys"):
        local.params[name][0], local.params[name][1] = 1.0, 4.0
    local.buffers["chosen"] = torch.tensor([[90, 1, 0], [10, 3, 0]])
    after = method.merge(task, state, clients, local).shared
    assert after["chosen"].tolist() == [100, 4, 0]
    torch.testing.assert_close(after["visual"], torch.full_like(after["visual"], 2.0))
    torch.testing.assert_close(after["groups"], 0.25 * state.shared["groups"] + 0.75 * 2.0)
    mean = {"chosen": [1.3, 3.25, None], "released": [1.3, 2.5, 2.5], "size": [2.0] * 3}[keys]
    for j, value in enumerate(mean):
        old = state.shared["keys"][j]
        torch.testing.assert_close(after["keys"][j], old if value is None else 0.25 * old + 0.75 * value)
