"""pFedPG: prompts that the server generates, and the step of its generator."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fpl_tune.method import Local, State, Tree, generator
from fpl_tune.methods.pfedpg import PFedPG
from fpl_tune.methods.vpt import VPT
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play

TASK = dict(needs="pixels", sizes=(3, 2, 2, 1))
SMALL = PFedPG(n_tokens=2, depth=2, heads=4, server_lr=0.5)
FORMS = [
    SMALL,
    replace(SMALL, output="attention"),
    replace(SMALL, descriptor="tokens"),
    replace(SMALL, descriptor="tokens", output="attention", heads=1, depth=1),
]


def begin(task: ClientTask, method: PFedPG) -> State:
    """A state whose descriptors matter."""
    state = method.init(task, generator("begin"))
    server = {n: 20 * leaf if n in ("visual", "descriptor") else leaf for n, leaf in state.server.items()}
    return state._replace(server=server)


def by_hand(method: PFedPG, server: Tree, client: int) -> torch.Tensor:
    """One client's prompts [J n, w], query by query and head by head."""
    basis = server["visual"].flatten(0, 1)
    wide = basis.shape[1] // method.heads
    found = []
    for descriptor in server["descriptor"][client]:
        mixed = []
        for head in range(method.heads):
            rows = slice(head * wide, (head + 1) * wide)
            query = server["attention.q"][rows] @ descriptor
            scores = torch.stack([query @ (server["attention.k"][rows] @ token) for token in basis]) / wide**0.5
            share = scores.exp() / scores.exp().sum()
            mixed.append(sum(s * (server["attention.v"][rows] @ t) for s, t in zip(share, basis, strict=True)))
        found.append(server["attention.out"] @ torch.cat([m for m in mixed if isinstance(m, torch.Tensor)]))
    shift = torch.stack(found).expand(len(basis), -1)
    return basis + shift if method.output == "residual" else shift


def trained(task: ClientTask, method: PFedPG, state: State, clients: torch.Tensor) -> tuple[Local, torch.Tensor]:
    """What clients hold after a made-up training, and what it added to their prompts."""
    local = method.start(task, state, clients)
    moved = torch.randn(local.params["visual"].shape, generator=generator("moved")).to(task.dtype)
    return local._replace(params={**local.params, "visual": local.params["visual"] + moved}), moved


@pytest.mark.parametrize("method", FORMS, ids=str)
def test_prompts_are_the_basis_and_an_attention_of_the_descriptor(task: ClientTask, method: PFedPG) -> None:
    state = begin(task, method)
    found = method.start(task, state, EVERYONE).params["visual"]
    for client in range(4):
        torch.testing.assert_close(found[client].flatten(0, 1), by_hand(method, state.server, client))
    assert float((found[0] - found[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("method", FORMS, ids=str)
def test_the_servers_step_descends_minus_delta_times_the_prompts(task: ClientTask, method: PFedPG) -> None:
    """Autograd's gradient of <-ΔP, P> through the prompts written out, times the rate."""
    state, clients = begin(task, method), torch.tensor([2, 0])
    local, moved = trained(task, method, state, clients)
    leaves = {n: leaf.clone().requires_grad_() for n, leaf in state.server.items()}
    made = torch.stack([by_hand(method, leaves, client) for client in (2, 0)])
    gradient = torch.autograd.grad(-(moved.flatten(1, 2) * made).sum(), list(leaves.values()))
    after, away = (m.merge(task, state, clients, local).server for m in (method, replace(method, signs="released")))
    for (name, leaf), slope in zip(state.server.items(), gradient, strict=True):
        torch.testing.assert_close(after[name], leaf - 0.5 * slope, msg=lambda m, n=name: f"{n}: {m}")
        torch.testing.assert_close(away[name], leaf + 0.5 * slope)
        assert float(slope.abs().max()) > 0


def test_without_an_attention_the_basis_moves_by_the_sum_of_what_clients_found(task: ClientTask) -> None:
    """W_o = 0: P_i = P_b, and α ΣΔP_i is what remains of the step."""
    state, clients = begin(task, SMALL), torch.tensor([0, 3])
    state.server["attention.out"] = torch.zeros_like(state.server["attention.out"])
    local, moved = trained(task, SMALL, state, clients)
    after = SMALL.merge(task, state, clients, local).server
    torch.testing.assert_close(after["visual"], state.server["visual"] + 0.5 * moved.sum(0))
    assert torch.equal(after["descriptor"], state.server["descriptor"])


def test_clients_are_evaluated_with_what_they_trained_or_with_what_is_generated(task: ClientTask) -> None:
    before, after = (states[0] for states in play(SMALL, [task], cohorts=[(0, 2)], epochs=1))
    fresh = SMALL.prompts(after.server, EVERYONE)
    held = SMALL.deploy(task, after, EVERYONE).params["visual"]
    assert torch.equal(held[[1, 3]], fresh[[1, 3]])
    assert torch.equal(held[[0, 2]], after.personal["own"][[0, 2]])
    assert not torch.allclose(held[[0, 2]], SMALL.prompts(before.server, EVERYONE)[[0, 2]])
    generated = replace(SMALL, deployed="generated").deploy(task, after, EVERYONE).params["visual"]
    assert torch.equal(generated, fresh)


@pytest.mark.parametrize("head", ["text", "linear"])
def test_logits_are_those_of_visual_prompts_under_the_head(task: ClientTask, whole_batch: Any, head: Any) -> None:
    method, batch = replace(SMALL, head=head), whole_batch(task)
    state = begin(task, method)
    if head == "linear":
        state.personal["head.bias"] += torch.arange(4)[:, None]
    local = method.start(task, state, EVERYONE)
    prompted = VPT(n_tokens=2, depth=2)
    image = prompted.representation(task, local, batch.image)
    wanted = prompted.logits(task, local, batch)
    if head == "linear":
        rows = zip(image, local.params["head.weight"], local.params["head.bias"], strict=True)
        wanted = torch.stack([features @ weight.T + bias for features, weight, bias in rows])
    torch.testing.assert_close(method.logits(task, local, batch), wanted)


def test_a_linear_head_stays_with_its_client(task: ClientTask) -> None:
    method = replace(SMALL, head="linear")
    before, after = (states[0] for states in play(method, [task], cohorts=[(0, 2)], epochs=1))
    moved = (after.personal["head.weight"] != before.personal["head.weight"]).flatten(1).any(1)
    assert moved.tolist() == [True, False, True, False]
    assert set(method.traffic(task, after, EVERYONE).up) == {"visual"}
