"""pFedMoAP: clients mixes whose prompts, what a round moves and sends, and the gate over the experts of an image."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.method import Batch, Local, State, Tree, generator, normalize
from fpl_tune.methods import pfedmoap
from fpl_tune.methods.pfedmoap import PFedMoAP, choose_experts
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, assert_same, play

SMALL: dict[str, Any] = {"n_ctx": 2, "experts": 3, "d_gating": 12, "heads": 3}


def after_rounds(method: PFedMoAP, task: ClientTask, *cohorts: list[int]) -> State:
    return play(method, [task], cohorts=cohorts)[-1][0]


def test_a_lonely_client_stays_with_promptfl(task: ClientTask) -> None:
    mixed = after_rounds(PFedMoAP(**SMALL), task, [2], [2], [2])
    plain = play(PromptFL(n_ctx=2), [task], cohorts=[[2], [2], [2]])[-1][0]
    torch.testing.assert_close(mixed.shared, plain.shared, rtol=0, atol=1e-12)


def test_the_gate_of_a_first_participation_does_not_even_decay(task: ClientTask) -> None:
    method = PFedMoAP(**SMALL)
    spec = OptimSpec(lr=0.1, batch=4, weight_decay=0.1)
    first, second, third = (s[0] for s in play(method, [task], cohorts=[[0, 1], [0, 2]], spec=spec))
    for name in ("gate.weight", "gate.bias"):
        assert torch.equal(second.personal[name], first.personal[name])
        assert torch.equal(third.personal[name][1:], first.personal[name][1:])
        assert not torch.equal(third.personal[name][0], first.personal[name][0])


def test_controls_replace_the_features_of_the_experts_alone(task: ClientTask) -> None:
    """All start from one state of the published method; the same clients are gated, and nothing else is replaced."""
    state = after_rounds(PFedMoAP(**SMALL), task, [0, 1, 2, 3])
    published = PFedMoAP(**SMALL).start(task, state, EVERYONE)
    pool = task.encode_prompts(state.server["pool"])[..., ::2]  # D = 24 to 12
    drawn = PFedMoAP(**SMALL, experts_from="random").init(task, generator("controls")).server["random"]
    wanted = {
        "own": pool[:, None].expand(-1, 2, -1, -1),
        "hand": task.hand_text[:, ::2].expand(4, 2, -1, -1),
        "random": drawn[..., ::2].expand(4, -1, -1, -1),
    }
    for name, expected in wanted.items():
        method = PFedMoAP(**SMALL, experts_from=name)  # pyright: ignore[reportArgumentType] - one of the literals
        begun = state._replace(server={**state.server, "random": drawn})
        local = method.start(task, begun, EVERYONE)
        assert_same(Local(local.params, {}), Local(published.params, {}))
        assert torch.equal(local.buffers["usable"], published.buffers["usable"])
        torch.testing.assert_close(local.buffers["features"], expected)
        assert not torch.as_tensor(method.traffic(task, begun, EVERYONE).down["experts"]).any()
        ended = method.merge(task, begun, EVERYONE, local)
        deployed = method.deploy(task, ended, EVERYONE)
        torch.testing.assert_close(deployed.buffers["features"], expected)
    torch.testing.assert_close(drawn.norm(dim=-1), torch.ones(2, 6, dtype=drawn.dtype))


def with_pool(pool: Tensor, entered: list[bool]) -> State:
    n = len(pool)
    return State({}, {}, {"pool": pool, "entered": torch.tensor(entered), "order": torch.arange(n).flip(0)})


def test_random_experts_are_the_first_of_one_order() -> None:
    state = with_pool(torch.zeros(5, 1, 2), [True, True, True, False, True])
    ids, usable = choose_experts(state, torch.tensor([0, 4, 3]), 2, "random")
    assert ids[:2].tolist() == [[4, 2], [2, 1]]  # the order is 4, 3, 2, 1, 0, and 3 has no entry
    assert usable.tolist() == [[True, True], [True, True], [False, False]]


def test_no_more_experts_than_entries() -> None:
    state = with_pool(torch.randn(4, 1, 2), [True, False, True, False])
    ids, usable = choose_experts(state, torch.tensor([0]), 3, "nearest")
    assert usable.tolist() == [[True, False, False]]
    assert ids[0, 0] == 2


def test_evaluation_holds_what_the_client_trained_with(task: ClientTask) -> None:
    method = PFedMoAP(**SMALL)
    *_, (before,), (after,) = play(method, [task], cohorts=[[0, 1, 2], [0, 1]])
    started, deployed = method.start(task, before, torch.tensor([0, 1])), method.deploy(task, after, EVERYONE)
    for name, leaf in started.buffers.items():  # experts of the pool before the round, not those of the pool after
        torch.testing.assert_close(deployed.buffers[name][:2], leaf)
    assert torch.equal(deployed.params["prompt"][:2], after.server["pool"][:2])
    assert torch.equal(deployed.params["prompt"][2], before.server["pool"][2])
    assert torch.equal(deployed.params["prompt"][3], after.shared["prompt"])
    assert not deployed.buffers["usable"][2:].any()


def test_an_aggregated_gate_is_the_mean_of_the_gates_that_worked(task: ClientTask) -> None:
    method = PFedMoAP(**SMALL, aggregate_gate=True)
    state = after_rounds(method, task, [0, 1])
    clients = torch.tensor([0, 1, 3])  # 3 has never trained: its gate rests
    local = method.start(task, state, clients)
    local.params["gate.bias"] = torch.arange(3.0, dtype=task.dtype).view(3, 1, 1).expand_as(local.params["gate.bias"])
    merged = method.merge(task, state, clients, local)
    torch.testing.assert_close(merged.shared["gate.bias"], torch.full((4, 12), 5 / 14, dtype=task.dtype))
    assert "gate.bias" not in merged.personal


def test_traffic_counts_the_experts_that_exist(task: ClientTask) -> None:
    method, size = PFedMoAP(**{**SMALL, "experts": 4}), 2 * 32
    first, second, _ = (s[0] for s in play(method, [task], cohorts=[[0, 1, 2], [0]]))
    before, after = (method.traffic(task, s, torch.tensor([0, 3])) for s in (first, second))
    assert before.up == after.up == {"prompt": size}
    assert before.down["prompt"] == size
    assert torch.as_tensor(before.down["experts"]).tolist() == [0, 0]
    assert torch.as_tensor(after.down["experts"]).tolist() == [2 * size, 0]


def test_an_aggregated_gate_travels_up_where_it_worked_and_down_to_all(task: ClientTask) -> None:
    method = PFedMoAP(**SMALL, aggregate_gate=True)
    sent = method.traffic(task, after_rounds(method, task, [0, 1, 2]), torch.tensor([0, 3]))
    gate = 4 * (12 * 12 + 12)
    assert torch.as_tensor(sent.up["gate"]).tolist() == [gate, 0]
    assert sent.down["gate"] == gate
    assert "gate" not in PFedMoAP(**SMALL).traffic(task, after_rounds(PFedMoAP(**SMALL), task, [0]), EVERYONE).up


@pytest.mark.parametrize("n_clients", [8, 1_200])
def test_the_nearest_experts_are_among_those_that_have_entered(n_clients: int) -> None:
    """Of many clients, distances to the others are not computed."""
    rng = torch.Generator().manual_seed(0)
    pool = torch.randn(n_clients, 2, 3, generator=rng, dtype=torch.float64)
    entered = torch.rand(n_clients, generator=rng) < 0.5
    entered[1], entered[2] = True, False
    server = {"pool": pool, "entered": entered, "order": torch.arange(n_clients)}
    chosen, usable = choose_experts(State({}, {}, server), torch.tensor([1, 2]), 2, "nearest")
    others = [i for i in range(n_clients) if entered[i] and i != 1]
    assert chosen[0].tolist() == sorted(others, key=lambda i: float((pool[i] - pool[1]).norm()))[:2]
    assert usable.tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rows_that_differ_in_one_bit_are_distinct(dtype: torch.dtype) -> None:
    """Also where they hold the same numbers in another order."""
    rows = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)).to(dtype).repeat(5, 1)
    rows[1, 7], rows[2, [3, 4]] = -rows[1, 7], -rows[2, [3, 4]]
    rows[3] = rows[3].flip(0)
    rows[4, 39] = torch.nextafter(rows[4, 39], rows[4, 39] + 1)
    given = rows[[3, 0, 1, 1, 4, 2, 0]]
    distinct, at = pfedmoap.distinct_rows(given)
    assert len(distinct) == 5
    assert torch.equal(distinct[at], given)


def test_each_prompt_is_encoded_once_and_gives_the_features_of_all(task: ClientTask, monkeypatch) -> None:
    method, state = PFedMoAP(**SMALL), after_rounds(PFedMoAP(**SMALL), task, [0, 1, 2, 3])
    encoded: list[Tensor] = []
    encode = task.encode_prompts
    with monkeypatch.context() as patch:
        patch.setattr(type(task), "encode_prompts", lambda _, prompts: encoded.append(prompts) or encode(prompts))
        local = method.start(task, state, EVERYONE)
    everything = encode(local.buffers["experts"])[..., ::2]  # [C, E-1, K, D], D = 24 to 12
    torch.testing.assert_close(local.buffers["features"], everything, rtol=0, atol=1e-12)
    wanted = local.buffers["experts"].flatten(2).flatten(0, 1).unique(dim=0)
    assert [len(prompts) for prompts in encoded] == [len(wanted)]
    assert len(wanted) < local.buffers["usable"].numel()


Whole = Callable[[ClientTask], Batch]
GATE = ("gate.weight", "gate.bias")


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
