import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.method import Batch, generator
from fpl_tune.methods.tofa import TOFA
from fpl_tune.methods.zeroshot import ZeroShot
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, assert_same, play


def rows(task: ClientTask, clients: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit features and labels of some clients' training images."""
    table = task.table("train")
    mask = table.mask[list(clients)]
    return F.normalize(table.image[list(clients)][mask], dim=-1), table.label[list(clients)][mask]


def discriminant(image: torch.Tensor, label: torch.Tensor, weight: torch.Tensor, shrink: float) -> Any:
    """Mean of every class that is there, and inverse of the shrunk covariance, from weighted images one by one."""
    means = {int(c): (weight[label == c] @ image[label == c]) / weight[label == c].sum() for c in label.unique()}
    away = image - torch.stack([means[int(c)] for c in label])
    spread = (away.T * weight) @ away / weight.sum()
    eye = torch.eye(len(spread), dtype=spread.dtype)
    return means, torch.linalg.inv((1 - shrink) * spread + shrink * spread.diagonal().mean() * eye)


@pytest.mark.parametrize(("alpha", "prior"), [(0.0, False), (0.5, True), (math.inf, False)])
def test_logits_are_the_discriminant_of_weighted_images(task, batch, alpha, prior) -> None:
    """α = 0 knows the client's own images alone; α = inf everybody's alone."""
    method = TOFA(alpha=alpha, prior=prior, shrink=0.3, inference="visual")
    state = play(method, [task], cohorts=[[0, 1, 2, 3]])[-1][0]
    found = method.logits(task, method.deploy(task, state, EVERYONE), batch)
    all_image, all_label = rows(task, (0, 1, 2, 3))
    for client in range(4):
        own_image, own_label = rows(task, (client,))
        image, label = torch.cat([own_image, all_image]), torch.cat([own_label, all_label])
        shares = (0.0, 1.0) if math.isinf(alpha) else (1.0, alpha)
        weight = torch.cat(
            [torch.full((len(part),), s) for part, s in zip((own_image, all_image), shares, strict=True)]
        )
        kept = weight > 0
        weight, image, label = weight[kept].double(), image[kept], label[kept]
        means, inverse = discriminant(image, label, weight, 0.3)
        scores = torch.full((3, task.n_classes), math.nan, dtype=task.dtype)
        for c, mean in means.items():
            scores[:, c] = F.normalize(batch.image[client], dim=-1) @ inverse @ mean - mean @ inverse @ mean / 2
            if prior:
                scores[:, c] += weight[label == c].sum().log()
        lowest = scores.nan_to_num(math.inf).amin(-1, keepdim=True)
        torch.testing.assert_close(found[client], torch.where(scores.isnan(), lowest, scores), rtol=1e-7, atol=1e-7)


def test_clients_in_two_rounds_or_again_end_where_one_round_ends(task: ClientTask) -> None:
    once, twice = (play(TOFA(), [task], cohorts=c)[-1][0] for c in ([[0, 1, 2, 3]], [[0, 2], [2, 3, 1]]))
    assert_same(twice, once, tolerance=1e-12)
    image, label = rows(task, (0, 1, 2, 3))
    torch.testing.assert_close(once.shared["count"], label.bincount(minlength=6).to(image))
    moment = image.T @ image
    torch.testing.assert_close(once.shared["moment"].sum(), moment.triu().sum())


def test_halves_are_mixed_by_their_confidence(task: ClientTask, batch: Batch) -> None:
    visual, text, both = (TOFA(inference=i) for i in ("visual", "text", "both"))
    state = play(both, [task], cohorts=[[0, 1, 2, 3]])[-1][0]
    local = both.deploy(task, state, EVERYONE)
    f_v, f_t, mixed = (m.logits(task, local, batch) for m in (visual, text, both))
    assert torch.equal(f_t, ZeroShot().logits(task, local, batch))
    sure = [f.softmax(-1).amax(-1) for f in (f_v, f_t)]
    share = torch.sigmoid((sure[0] / sure[1]).log())[..., None]
    torch.testing.assert_close(mixed, share * f_v + (1 - share) * f_t)


def test_sums_are_sent_once(paper_task: Any) -> None:
    task = paper_task(n_classes=100)
    state, clients = TOFA().init(task, generator("size")), torch.arange(6)
    first = TOFA().traffic(task, state, clients)
    assert sum(int(torch.as_tensor(v)[0]) for v in first.up.values()) == 100 * 512 + 512 * 513 // 2 + 100 == 182_628
    again = TOFA().traffic(task, state._replace(server={"received": clients >= 0}), clients)
    assert sum(int(torch.as_tensor(v).sum()) for v in (*again.up.values(), *again.down.values())) == 0
