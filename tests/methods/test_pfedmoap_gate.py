"""pFedMoAP's gate: attention over the experts of an image, its linear form, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import Batch, Local, State, cross_entropy, generator, normalize
from fpl_tune.methods import pfedmoap
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

Whole = Callable[[ClientTask], Batch]
SMALL: dict[str, Any] = {"n_ctx": 2, "experts": 3, "d_gating": 12, "heads": 3}


def after_rounds(method: PFedMoAP, task: ClientTask, *cohorts: list[int]) -> State:
    return play(method, [task], cohorts=cohorts)[-1][0]


def reference(method: PFedMoAP, task: ClientTask, local: Local, batch: Batch, client: int) -> Tensor:
    """Eqs. 9 to 11 for one client with torch's own attention, class by class."""
    image = F.normalize(batch.image[client], dim=-1)
    own = task.encode_prompts(local.params["prompt"][client])
    usable = local.buffers["usable"][client]
    others = task.encode_prompts(local.buffers["experts"][client][usable])
    width = method.d_gating
    assert width is not None
    step = task.embed_dim // width
    weight, bias = local.params["gate.weight"][client], local.params["gate.bias"][client]
    # torch divides the dot products by the root of the width of a head
    factor = 1.0
    if method.attention_scale != "sqrt":
        factor = method.attention_scale * (width / method.heads) ** 0.5
    projection = torch.cat([weight[0] * factor, weight[1], weight[2]])
    offset = torch.cat([bias[0] * factor, bias[1], bias[2]])
    columns = []
    for c in range(task.n_classes):
        experts = torch.cat([own[c : c + 1], others[:, c]])[:, ::step].unsqueeze(1)  # [E, 1, G]
        mixed, _ = F.multi_head_attention_forward(
            image[:, ::step].unsqueeze(1), experts, experts, width, method.heads,
            projection, offset, None, None, False, 0.0, weight[3], bias[3],
        )  # fmt: skip
        columns.append((image[:, ::step] * mixed[:, 0]).sum(-1))
    return task.scale * (torch.stack(columns, -1) + method.lam * image @ own.T)


@pytest.mark.parametrize("scale", [10.0, "sqrt"])
def test_logits_loss_and_gradient_are_those_of_multi_head_attention(
    task: ClientTask, whole_batch: Whole, scale: Any
) -> None:
    method = PFedMoAP(**SMALL, attention_scale=scale, lam=0.7)
    state = after_rounds(method, task, [0, 1, 2, 3])
    start, batch = method.start(task, state, EVERYONE), whole_batch(task)
    local = start._replace(params={k: v.clone().requires_grad_() for k, v in start.params.items()})
    found = method.logits(task, local, batch)
    for client in range(4):
        wanted = reference(method, task, local, batch, client)
        torch.testing.assert_close(found[client], wanted, rtol=0, atol=1e-9)
        seen = batch.mask[client]
        loss = F.cross_entropy(wanted[seen], batch.label[client][seen])
        grads = torch.autograd.grad(loss, list(local.params.values()))
        ours = torch.autograd.grad(cross_entropy(found, batch)[client], list(local.params.values()), retain_graph=True)
        for mine, theirs in zip(ours, grads, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("pooling", ["stride", "mean"])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_pooling_and_similarity_are_what_the_names_say(
    task: ClientTask, whole_batch: Whole, pooling: Any, similarity: Any
) -> None:
    """With one head, no scale and W_Q = 0 experts weigh the same; W_V = W_O = 1 then makes the mixture their mean."""
    fields: dict[str, Any] = {"n_ctx": 2, "experts": 3, "d_gating": 8, "heads": 1, "lam": 0.0}
    method = PFedMoAP(**fields, pooling=pooling, similarity=similarity)
    local, batch = method.start(task, after_rounds(method, task, [0, 1, 2, 3]), EVERYONE), whole_batch(task)
    eye, zero = torch.eye(8, dtype=task.dtype), torch.zeros(8, 8, dtype=task.dtype)
    gate = torch.stack([zero, eye, eye, eye]).expand(4, -1, -1, -1)
    train = {**local.params, "gate.weight": gate, "gate.bias": torch.zeros(4, 4, 8, dtype=task.dtype)}
    found = method.logits(task, local._replace(params=train), batch)

    def pooled(feature: Tensor) -> Tensor:  # D = 24 to 8: every third number, or the mean of three
        return (
            feature[..., 0::3]
            if pooling == "stride"
            else (feature[..., 0::3] + feature[..., 1::3] + feature[..., 2::3]) / 3
        )

    for client in range(4):
        text = task.encode_prompts(
            torch.cat([local.params["prompt"][client : client + 1], local.buffers["experts"][client]])
        )
        mixed, image = pooled(text).mean(0), pooled(normalize(batch.image[client]))
        if similarity == "cosine":
            mixed, image = F.normalize(mixed, dim=-1), F.normalize(image, dim=-1)
        torch.testing.assert_close(found[client], task.scale * image @ mixed.T, rtol=0, atol=1e-9)


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


def test_cutting_the_batch_for_memory_changes_nothing(
    task: ClientTask, whole_batch: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("width", "scalars"),
    [(128, 66_048), (1024, 4_198_400)],
)
def test_the_gate_has_the_parameters_of_table_9(width: int, scalars: int) -> None:
    sizes: Any = SimpleNamespace(
        n_clients=2, embed_dim=1024, text_width=512, device=torch.device("cpu"), dtype=torch.float32
    )
    method = PFedMoAP(d_gating=width, experts=2)
    method.check(sizes)
    state = method.init(sizes, generator("gate"))
    gate = sum(leaf[0].numel() for name, leaf in state.personal.items() if name.startswith("gate."))
    assert gate == scalars
    assert state.shared["prompt"].numel() == 8_192
    largest = float(state.personal["gate.weight"].abs().max())  # PyTorch's start of a layer, U(±1/√in)
    assert 0.99 * width**-0.5 < largest <= width**-0.5
