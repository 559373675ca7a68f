"""pFedMoAP's gate: attention over the experts of an image, its linear form, and what it costs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Batch, State, Tree, generator, normalize
from fpl_tune.methods import pfedmoap
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

Whole = Callable[[ClientTask], Batch]
GATE = ("gate.weight", "gate.bias")
SMALL: dict[str, Any] = {"n_ctx": 2, "experts": 3, "d_gating": 12, "heads": 3}


def after_rounds(method: PFedMoAP, task: ClientTask, *cohorts: list[int]) -> State:
    return play(method, [task], cohorts=cohorts)[-1][0]


@pytest.mark.parametrize(
    ("how", "divide", "cosine"),
    [
        ({}, False, False),
        ({"attention_scale": "sqrt"}, False, False),
        ({"pooling": "mean"}, True, False),
        ({"similarity": "cosine"}, False, True),
    ],
    ids=str,
)
def test_loss_and_gradient_are_those_of_multi_head_attention(
    task: ClientTask, assert_equal_to_clients_alone: Any, how: dict[str, Any], divide: bool, cosine: bool
) -> None:
    """Eqs. 9 to 11 for one client with torch's own attention, class by class. It divides by the root of a head's 4."""
    method = PFedMoAP(**SMALL, lam=0.7, **how)
    local = method.start(task, after_rounds(method, task, [0, 1, 2, 3]), EVERYONE)
    factor = 1.0 if method.attention_scale == "sqrt" else 10 * 4**0.5

    def pooled(feature: Tensor) -> Tensor:  # D = 24 to 12: every second number, or the mean of two
        return feature.unflatten(-1, (12, 2)).mean(-1) if divide else feature[..., ::2]

    def plain(client: int, leaf: Tree, images: Tensor, labels: Tensor) -> Tensor:
        image, own = F.normalize(images, dim=-1), task.encode_prompts(leaf["prompt"])
        others = task.encode_prompts(local.buffers["experts"][client][local.buffers["usable"][client]])
        weight, bias = ([f * x for f, x in zip((factor, 1, 1, 1), leaf[n], strict=True)] for n in GATE)
        columns = []
        for c in range(task.n_classes):
            experts = pooled(torch.cat([own[c : c + 1], others[:, c]])).unsqueeze(1)  # [E, 1, G]
            mixed, _ = F.multi_head_attention_forward(
                pooled(image).unsqueeze(1), experts, experts, 12, 3, torch.cat(weight[:3]), torch.cat(bias[:3]),
                None, None, False, 0.0, weight[3], bias[3],
            )  # fmt: skip
            pair = [pooled(image), mixed[:, 0]]
            columns.append(torch.mul(*(F.normalize(x, dim=-1) if cosine else x for x in pair)).sum(-1))
        return F.cross_entropy(task.scale * (torch.stack(columns, -1) + 0.7 * image @ own.T), labels)

    assert_equal_to_clients_alone(method, task, local, plain)


def test_the_linear_gate_mixes_whole_features_by_weights_of_the_image(task: ClientTask, whole_batch: Whole) -> None:
    method = PFedMoAP(n_ctx=2, experts=3, gate="linear", lam=0.3)
    state = after_rounds(method, task, [0, 1, 2, 3])
    local, batch = method.start(task, state, EVERYONE), whole_batch(task)
    found = method.logits(task, local, batch)
    for client in range(4):
        own = task.encode_prompts(local.params["prompt"][client])
        experts = torch.stack([own, *task.encode_prompts(local.buffers["experts"][client])])
        for image, logits in zip(normalize(batch.image[client]), found[client], strict=True):
            weight = F.linear(image, local.params["gate.weight"][client], local.params["gate.bias"][client])
            mixed = torch.einsum("e,ekd->kd", weight.softmax(0), experts)
            wanted = F.cosine_similarity(image, mixed) + 0.3 * F.cosine_similarity(image, own)
            torch.testing.assert_close(logits, task.scale * wanted, rtol=0, atol=1e-9)


def test_attention_sums_to_one_and_forgets_what_may_not_be_used(task: ClientTask) -> None:
    method = PFedMoAP(**{**SMALL, "experts": 4})
    local = method.start(task, after_rounds(method, task, [0, 1, 2]), torch.tensor([0, 1]))
    weights = method.attention(
        local, normalize(task.table("train").image[:2]), task.encode_prompts(local.params["prompt"])
    )
    torch.testing.assert_close(weights.sum(3), torch.ones_like(weights[:, :, :, 0]))
    assert local.buffers["usable"].tolist() == [[True, True, False]] * 2
    assert bool((weights[:, :, :, 3] == 0).all())
    assert bool((weights[:, :, :, :3] > 0).all())


def test_shares_of_the_experts_sum_to_one_in_falling_order(task: ClientTask, whole_batch: Whole) -> None:
    method = PFedMoAP(**{**SMALL, "experts": 4})
    local = method.start(task, after_rounds(method, task, [0, 1, 2, 3]), EVERYONE)
    (shares,) = method.diagnose(task, local, whole_batch(task)).values()
    assert shares.shape == (4, 4)
    torch.testing.assert_close(shares.sum(1), torch.ones(4, dtype=task.dtype))
    assert bool((shares[:, 1:].diff(dim=1) <= 0).all())


def test_cutting_the_batch_for_memory_changes_nothing(task, whole_batch, monkeypatch) -> None:
    method = PFedMoAP(**SMALL)
    local, batch = method.start(task, after_rounds(method, task, [0, 1, 2, 3]), EVERYONE), whole_batch(task)
    whole = method.logits(task, local, batch)
    monkeypatch.setattr(pfedmoap, "_ELEMENTS", 1)
    torch.testing.assert_close(method.logits(task, local, batch), whole, rtol=0, atol=1e-10)


def test_the_gates_width_is_the_papers_where_it_divides_the_features() -> None:
    def gate(embed_dim: int, **fields: Any) -> int:
        sizes: Any = SimpleNamespace(
            n_clients=2, embed_dim=embed_dim, text_width=8, device=torch.device("cpu"), dtype=torch.float32
        )
        method = PFedMoAP(n_ctx=1, experts=2, **fields)
        method.check(sizes)
        return method.init(sizes, generator("width")).personal["gate.weight"].shape[-1]

    assert [gate(width) for width in (1024, 512, 128, 96, 64)] == [128, 128, 128, 96, 64]
    assert gate(512, d_gating=64) == 64
    assert gate(512, d_gating=128, similarity="cosine") == 128
