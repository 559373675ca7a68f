"""Wrappers that add a term to the loss: Ditto, FedProx, MOON."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local, Method, Tree, generator
from fpl_tune.methods.clip_fc import CLIPFC
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.fedamp import FedAMP
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.moon import Moon
from fpl_tune.wrappers.proximal import Proximal

PROMPT = PromptFL(n_ctx=2)


def test_the_copys_gradient_is_its_own_and_the_way_from_what_was_received(task, gradients) -> None:
    method = Ditto(PROMPT, lam=0.7)
    local = method.start(task, play(method, [task])[-1][0], EVERYONE)
    found, copies = gradients(method, local), local.params["prompt.ditto"]
    for name, leaf, pull in (("prompt", local.params["prompt"], 0), ("prompt.ditto", copies, 0.7)):
        plain = gradients(PROMPT, Local({"prompt": leaf}, {}))["prompt"]
        torch.testing.assert_close(found[name], plain + pull * (leaf - local.params["prompt"]))
    assert (copies - local.params["prompt"]).abs().max() > 1e-3


def test_without_the_term_the_evaluated_copies_are_coops(task: ClientTask) -> None:
    alone, method = CoOp(n_ctx=2), Ditto(PROMPT, lam=0.0)
    state, wanted = (play(m, [task], cohorts=[(0, 1)] * 2)[-1][0] for m in (method, alone))
    found = method.deploy(task, state, EVERYONE).params["prompt"]
    torch.testing.assert_close(found, wanted.personal["prompt"], rtol=0, atol=1e-12)
    assert method.traffic(task, method.init(task, generator("ditto")), EVERYONE).up == {"prompt": 64}


Gradients = Callable[[Method, Local], Tree]
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


def test_the_proximal_gradient_is_mu_times_the_way_from_what_was_received(task, gradients) -> None:
    method = Proximal(PROMPT, mu=0.7)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    away = torch.randn(local.params["prompt"].shape, generator=generator("away"), dtype=task.dtype)
    moved = local._replace(params={"prompt": local.params["prompt"] + away})
    more = gradients(method, moved)["prompt"] - gradients(PROMPT, moved)["prompt"]
    torch.testing.assert_close(more, 0.7 * away, rtol=0, atol=1e-9)
    assert gradients(method, local)["prompt"].equal(gradients(PROMPT, local)["prompt"])


def test_only_what_the_server_sent_is_held(task: ClientTask) -> None:
    method = Proximal(MIXED, mu=0.5)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    assert [name for name in local.buffers if name.startswith("received.")] == ["received.prompt"]


def test_the_term_is_the_papers_over_the_images_of_a_batch(task: ClientTask) -> None:
    """-log(e^(z z_received / τ) / (e^(z z_received / τ) + e^(z z_last / τ))), for clients that have trained before."""
    method = Moon(CLIPFC(), mu=3.0, temperature=0.2)
    (state,) = play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    local = method.start(task, state, EVERYONE)
    now = {n: leaf + 0.1 * torch.randn(leaf.shape, generator=generator("now")) for n, leaf in local.params.items()}
    batch = task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))
    found, _ = method.loss(task, local._replace(params=now), batch)
    plain, _ = CLIPFC().loss(task, Local(now, {}), batch)

    def z(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.normalize(batch.image @ weight.mT + bias[:, None], dim=-1)

    received, last = (
        (z(**now) * z(**other)).sum(-1) / 0.2 for other in (local.params, {n: state.personal[f"moon.{n}"] for n in now})
    )
    term = -torch.log(received.exp() / (received.exp() + last.exp()))
    torch.testing.assert_close(found, plain + 3.0 * term.mean(1))
    assert (received - last).abs().max() > 1e-3


def test_where_text_alone_is_trained_the_mean_is_over_the_classes(task: ClientTask) -> None:
    method = Moon(PROMPT, mu=2.0)
    (state,) = play(method, [task], cohorts=[(0, 1, 2, 3)])[-1]
    local = method.start(task, state, EVERYONE)
    now = {"prompt": local.params["prompt"] + 0.1}
    batch = task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))
    found, _ = method.loss(task, local._replace(params=now), batch)
    plain, _ = PROMPT.loss(task, Local(now, {}), batch)
    near, past = (
        (task.encode_prompts(now["prompt"]) * task.encode_prompts(other)).sum(-1) / 0.5
        for other in (local.params["prompt"], state.personal["moon.prompt"])
    )
    torch.testing.assert_close(found, plain + 2.0 * (near.exp() + past.exp()).log().sub(near).mean(1))


def test_nothing_pulls_in_a_clients_first_round(task: ClientTask, gradients: Callable[[Method, Local], Tree]) -> None:
    method = Moon(PROMPT, mu=50.0)
    (state,) = play(method, [task], cohorts=[(0, 1)])[-1]
    assert state.personal["moon.trained"].tolist() == [True, True, False, False]
    local = method.start(task, state, EVERYONE)
    found = gradients(method, local)["prompt"]
    plain = gradients(PROMPT, Local(local.params, {}))["prompt"]
    torch.testing.assert_close(found[2:], plain[2:])
    assert (found - plain)[:2].abs().amax((1, 2)).min() > 1e-3


def test_a_method_without_features_is_refused(task: ClientTask) -> None:
    with pytest.raises(ConfigError, match=r"method\.inner must be a method whose models .* but is 'FedAMP'"):
        Moon(FedAMP(n_ctx=2)).check(task)


def test_features_are_those_of_the_method_inside(task: ClientTask) -> None:
    method, plain = Proximal(PROMPT), PROMPT
    local = plain.start(task, plain.init(task, generator("features")), torch.arange(4))
    image = task.train.batch(torch.arange(4), torch.arange(3).expand(4, -1)).image
    assert torch.equal(method.representation(task, local, image), plain.representation(task, local, image))
