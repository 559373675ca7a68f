from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, Local, generator
from fpl_tune.methods.fedmgp import FedMGP
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels")


def begin(task: ClientTask, method: FedMGP) -> Local:
    """Groups well apart."""
    local = method.start(task, method.init(task, generator("begin")), EVERYONE)
    rng = generator("apart")
    train = {
        n: leaf + 0.3 * torch.randn(leaf.shape, generator=rng, dtype=leaf.dtype) for n, leaf in local.params.items()
    }
    return local._replace(params=train)


def by_hand(task: ClientTask, local: Local, client: int, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features of each group of one client, prompt by prompt: images [G, B, D] and texts [G, K, D]."""
    tail = task.words("of a")
    text, image = [], []
    for words, tokens in zip(local.params["text"][client], local.params["visual"][client], strict=True):
        text.append(task.encode_prompts(torch.cat([words, tail])))
        seen, _ = task.encode_images(images[client : client + 1], tokens[None])
        image.append(F.normalize(seen[0], dim=-1))
    return torch.stack(image), torch.stack(text)


def likeness(diversity: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Of rows of features [n, D], as the released code computes it for a pair."""
    if diversity == "l1":
        return -(one - other).abs().mean(-1).mean()
    if diversity == "l2":
        return -((one - other).square().sum(-1) + 1e-8).sqrt().mean()
    return F.cosine_similarity(one, other, dim=-1).mean()


@pytest.mark.parametrize("signs", ["meant", "released"])
@pytest.mark.parametrize("diversity", ["cosine", "l1", "l2"])
def test_logits_and_loss_follow_the_equations(task: ClientTask, batch: Batch, signs: Any, diversity: Any) -> None:
    method = FedMGP(groups=3, lam=0.7, signs=signs, diversity=diversity)
    local = begin(task, method)
    logits, (losses, _) = method.logits(task, local, batch), method.loss(task, local, batch)
    largest, mean = (FedMGP(groups=3, inference=how).logits(task, local, batch) for how in ("max", "features"))
    for client in range(2):
        image, text = by_hand(task, local, client, batch.image)
        scores = task.scale * image @ text.mT
        torch.testing.assert_close(logits[client], scores.mean(0))
        torch.testing.assert_close(mean[client], task.scale * image.mean(0) @ text.mean(0).T)
        for image_number, of_groups in enumerate(scores.unbind(1)):  # [G, K]
            group = int(of_groups.max(1).values.argmax())
            torch.testing.assert_close(largest[client][image_number], of_groups[group])
        pairs = [(i, j) for i in range(3) for j in range(i)]
        alike = [sum(likeness(diversity, x[i], x[j]) for i, j in pairs) / 3 for x in (image, text)]
        fit = torch.stack([F.cross_entropy(s, batch.label[client]) for s in scores]).mean()
        term = (alike[0] + alike[1]) / 2
        released = (1 if diversity == "cosine" else 0) - term
        torch.testing.assert_close(losses[client], fit + 0.7 * (term if signs == "meant" else released))


def test_a_round_draws_averages_and_replaces(task: ClientTask) -> None:
    """Without training: slot i is the mean of what clients drew i-th, and stands in its place at the next start."""
    method = FedMGP(groups=4, select=2)
    still = OptimSpec(lr=0.0, batch=4)
    first = method.init(task, generator("draws"))
    apart = {
        n: leaf + torch.arange(4, dtype=task.dtype).view(4, 1, 1, 1) if n.startswith("groups.") else leaf
        for n, leaf in first.personal.items()
    }
    before, after = (
        s[0] for s in play(method, [task], states=[first._replace(personal=apart)], cohorts=[[0, 3]], spec=still)
    )
    for part in ("text", "visual"):
        place, groups = after.personal[f"place.{part}"], before.personal[f"groups.{part}"]
        assert place[[1, 2]].tolist() == [[-1, -1], [-1, -1]]
        assert all(len(set(row)) == 2 for row in place[[0, 3]].tolist())
        for slot in (0, 1):
            drawn = [groups[client, place[client, slot]] for client in (0, 3)]  # 9 and 3 images
            torch.testing.assert_close(after.shared[part][slot], 0.75 * drawn[0] + 0.25 * drawn[1])
        local = method.start(task, after, EVERYONE).params[part]
        assert torch.equal(local[1], groups[1])
        for group in range(4):
            slots = place[3].tolist()
            wanted = after.shared[part][slots.index(group)] if group in slots else groups[3, group]
            assert torch.equal(local[3, group], wanted)


def test_draws_follow_the_scores(task: ClientTask) -> None:
    """Two of three groups, one after another: frequencies of 40,000 clients against the formula."""
    score = torch.tensor([1.0, 0.0, -1.0])
    slot, other = F.one_hot(torch.tensor(0), 2).double(), F.one_hot(torch.tensor(1), 2).double()
    groups = torch.stack([slot, other, -slot]).view(3, 1, 2).expand(40_000, 3, 1, 2)
    method = FedMGP(groups=3, select=2, temperature=0.5)
    drawn = method.draw(groups, slot.view(1, 1, 2), torch.rand(40_000, 3, generator=generator("draw")).double())
    share = (score / 0.5).softmax(0)
    for i in range(3):
        for j in {0, 1, 2} - {i}:
            wanted = float(share[i] * share[j] / (1 - share[i]))
            assert float((drawn == torch.tensor([i, j])).all(1).double().mean()) == pytest.approx(wanted, abs=0.01)
    even = method.draw(
        groups, torch.zeros(1, 1, 2).double(), torch.rand(40_000, 3, generator=generator("even")).double()
    )
    assert (even[:, 0].bincount() / 40_000).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)


def test_a_slots_pair_comes_from_one_group(task: ClientTask) -> None:
    """Before the first round no group has a score, so that equal numbers draw equal places for texts and images."""
    method = FedMGP(groups=4)
    (state,) = play(method, [task], cohorts=[[0, 1, 2, 3]])[-1]
    assert torch.equal(state.personal["place.text"], state.personal["place.visual"])
