from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fpl_tune.engine import generator
from fpl_tune.errors import ConfigError
from fpl_tune.method import Batch, Local, Method
from fpl_tune.methods.coop import CoOp
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.optim import OptimSpec
from fpl_tune.task import ClientTask
from fpl_tune.testing import assert_same, play, toy_task
from fpl_tune.wrappers import FineTuned, Private, Proximal, privacy_spent, smallest_noise

EVERYONE = torch.arange(4)
PROMPT = PromptFL(n_ctx=2)
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


@pytest.fixture(scope="module")
def task() -> ClientTask:
    return toy_task()


def first_batch(task: ClientTask) -> Batch:
    return task.train.batch(EVERYONE, torch.arange(3).expand(4, -1))


def gradients(method: Method, task: ClientTask, local: Local) -> dict[str, torch.Tensor]:
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in local.train.items()}
    loss, _ = method.loss(task, local._replace(train=leaves), first_batch(task))
    return dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values())), strict=True))


# -- FedProx ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [PROMPT, MIXED], ids=["promptfl", "pfedmoap"])
def test_without_weight_the_proximal_term_is_not_there(task: ClientTask, inner: Method) -> None:
    assert_same(play(Proximal(inner, mu=0.0), [task])[-1][0], play(inner, [task])[-1][0], tolerance=1e-12)


def test_the_proximal_gradient_is_mu_times_the_way_from_what_was_received(task: ClientTask) -> None:
    method = Proximal(PROMPT, mu=0.7)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    away = torch.randn(local.train["prompt"].shape, generator=generator("away"), dtype=task.dtype)
    moved = local._replace(train={"prompt": local.train["prompt"] + away})
    more = gradients(method, task, moved)["prompt"] - gradients(PROMPT, task, moved)["prompt"]
    torch.testing.assert_close(more, 0.7 * away, rtol=0, atol=1e-9)
    assert gradients(method, task, local)["prompt"].equal(gradients(PROMPT, task, local)["prompt"])


def test_a_large_weight_holds_the_prompt_near_what_was_received(task: ClientTask) -> None:
    spec = OptimSpec(lr=0.01, batch=4, momentum=0.0, weight_decay=0.0)
    ways = []
    for mu in (0.0, 20.0):
        (before,), (after,) = play(Proximal(PROMPT, mu=mu), [task], cohorts=[[0, 1, 2]], spec=spec, epochs=5)
        ways.append(float((after.shared["prompt"] - before.shared["prompt"]).norm()))
    assert 0 < ways[1] < 0.8 * ways[0]


def test_only_what_the_server_sent_is_held(task: ClientTask) -> None:
    method = Proximal(MIXED, mu=0.5)
    local = method.start(task, method.init(task, generator("prox")), EVERYONE)
    assert [name for name in local.fixed if name.startswith("received.")] == ["received.prompt"]


def test_a_method_without_a_shared_part_cannot_be_held(task: ClientTask) -> None:
    method = Proximal(CoOp(n_ctx=2))
    with pytest.raises(ConfigError, match=r"none of \['prompt'\] is exchanged.*Wrap a method with a shared part"):
        method.start(task, method.init(task, generator("prox")), EVERYONE)


# -- +FT ----------------------------------------------------------------------------------------------------


def test_without_a_stage_before_fine_tuned_promptfl_is_coop(task: ClientTask) -> None:
    tuned, local = (play(m, [task])[-1][0] for m in (FineTuned(PROMPT), CoOp(n_ctx=2)))
    torch.testing.assert_close(tuned.personal["own.prompt"], local.personal["prompt"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("inner", [PROMPT, MIXED], ids=["promptfl", "pfedmoap"])
def test_fine_tuning_starts_from_what_the_stage_before_deployed(task: ClientTask, inner: Method) -> None:
    before = play(inner, [task])[-1][0]
    method = FineTuned(inner)
    state = method.init(task, generator("ft"), before)
    assert_same(method.deploy(task, state, EVERYONE), inner.deploy(task, before, EVERYONE))
    *_, (after,) = play(method, [task], states=[state], cohorts=[[0, 3]])
    assert_same(after._replace(personal={}, server={}), state._replace(personal={}, server={}))
    moved = (after.personal["own.prompt"] != state.personal["own.prompt"]).flatten(1).any(1)
    assert moved.tolist() == [True, False, False, True]


def test_the_model_is_received_once_and_nothing_is_sent(task: ClientTask) -> None:
    (first,), (second,) = play(FineTuned(PROMPT), [task], cohorts=[[0, 3]])
    for state, down in ((first, [64] * 4), (second, [0, 64, 64, 0])):
        traffic = FineTuned(PROMPT).traffic(task, state, EVERYONE)
        assert traffic.up == {}
        assert torch.as_tensor(traffic.down["prompt"]).tolist() == down


# -- differential privacy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [PROMPT, MIXED], ids=["promptfl", "pfedmoap"])
def test_unbounded_loss_of_privacy_is_the_method_itself(task: ClientTask, inner: Method) -> None:
    private = play(Private(inner, epsilon=math.inf, clip=math.inf), [task])[-1][0]
    personal = {n: v for n, v in private.personal.items() if not n.startswith("noise.")}
    assert_same(private._replace(personal=personal), play(inner, [task])[-1][0], tolerance=1e-12)


def test_every_clients_gradient_is_clipped_to_its_own_norm(task: ClientTask) -> None:
    state = play(MIXED, [task], cohorts=[[0, 1, 2, 3]])[-1][0]
    full = gradients(MIXED, task, MIXED.start(task, state, EVERYONE))
    norms = full["prompt"].flatten(1).norm(dim=1)
    bound = float(norms.median())
    method = Private(MIXED, clip=bound)
    clipped = gradients(method, task, method.start(task, state, EVERYONE))
    for client in range(4):
        wanted = full["prompt"][client] * min(1.0, bound / float(norms[client]))
        torch.testing.assert_close(clipped["prompt"][client], wanted, rtol=1e-9, atol=1e-12)
    assert int((clipped["prompt"].flatten(1).norm(dim=1) > bound * (1 + 1e-9)).sum()) == 0
    torch.testing.assert_close(clipped["gate.weight"], full["gate.weight"])  # never uploaded, never clipped


@pytest.mark.parametrize(("epsilon", "sigma"), [(50.0, 0.05075), (25.0, 0.10149)])
def test_the_noise_of_table_6(epsilon: float, sigma: float) -> None:
    assert Private(PROMPT, epsilon=epsilon).sigma == pytest.approx(sigma, abs=5e-6)
    assert Private(PROMPT, epsilon=epsilon, clip=2.0).sigma == pytest.approx(2 * sigma, abs=1e-5)


def test_uploads_carry_noise_of_that_size_and_of_every_clients_own(task: ClientTask) -> None:
    method, still = Private(PromptFL(n_ctx=64), epsilon=25.0), OptimSpec(lr=0.0, batch=4)
    noise = {}
    for client in (0, 1):
        (a,), (b,), (c,) = play(method, [task], cohorts=[[client], [client]], spec=still)
        noise[client] = [b.shared["prompt"] - a.shared["prompt"], c.shared["prompt"] - b.shared["prompt"]]
        for drawn in noise[client]:
            assert float(drawn.std()) == pytest.approx(method.sigma, rel=0.05)
            assert abs(float(drawn.mean())) < 0.1 * method.sigma
    every = torch.stack([d.flatten() for pair in noise.values() for d in pair])
    assert float((torch.corrcoef(every) - torch.eye(4)).abs().max()) < 0.1


def test_clients_keep_what_they_trained_without_noise(task: ClientTask) -> None:
    method = Private(MIXED, epsilon=25.0, clip=1.0)
    silent = Private(MIXED, epsilon=math.inf, clip=1.0)
    noisy, clean = (play(m, [task], cohorts=[[0, 1]])[-1][0] for m in (method, silent))
    assert torch.equal(noisy.personal["own"], clean.personal["own"])
    for part, name in (("shared", "prompt"), ("server", "pool")):
        assert not torch.allclose(getattr(noisy, part)[name], getattr(clean, part)[name], atol=1e-3)
    assert noisy.personal["noise.drawn"].tolist() == [1, 1, 0, 0]


def leaked(epsilon: float, sigma: float) -> float:
    """δ of a Gaussian release of sensitivity 1: the hockey-stick divergence, by numerical integration."""
    ratio_falls_to = 0.5 - epsilon * sigma**2  # where p(x) = e^ε q(x) for p = N(0, σ²) and q = N(1, σ²)
    low = min(0.0, ratio_falls_to) - 12 * sigma
    value, _ = quad(
        lambda x: norm.pdf(x, 0, sigma) - math.exp(epsilon) * norm.pdf(x, 1, sigma), low, ratio_falls_to, limit=200
    )
    return value


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-5), (5.0, 0.05), (20.0, 0.05)])
def test_the_smallest_noise_leaks_exactly_delta(epsilon: float, delta: float) -> None:
    sigma = smallest_noise(epsilon, delta)
    assert leaked(epsilon, sigma) == pytest.approx(delta, rel=1e-5)
    method = Private(PROMPT, epsilon, delta, clip=3.0, calibration="analytic")
    assert method.sigma == pytest.approx(3 * sigma)
    assert privacy_spent(method, 1) == pytest.approx(epsilon, rel=1e-6)


def test_the_classical_formula_holds_below_one_and_fails_far_above() -> None:
    assert leaked(0.5, Private(PROMPT, epsilon=0.5, delta=1e-3).sigma) < 1e-3
    assert privacy_spent(Private(PROMPT, epsilon=50.0, delta=0.05), 1) == pytest.approx(226, abs=1)


def test_four_uploads_cost_what_one_of_half_the_noise_costs() -> None:
    method = Private(PROMPT, epsilon=2.0, delta=1e-3, calibration="analytic")
    four = privacy_spent(method, 4)
    assert leaked(four, method.sigma / 2) == pytest.approx(1e-3, rel=1e-5)
    assert privacy_spent(Private(PROMPT, epsilon=math.inf, clip=math.inf), 1) == math.inf


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Proximal, {"mu": -1.0}, r"method\.mu must be a finite number >= 0, but is -1\.0"),
        (Private, {"epsilon": 0.0}, r"method\.epsilon must be > 0"),
        (Private, {"delta": 1.0}, r"method\.delta must lie in \(0, 1\), but is 1\.0"),
        (Private, {"clip": 0.0}, r"method\.clip must be > 0"),
        (Private, {"clip": math.inf}, r"method\.clip must be finite where epsilon is"),
    ],
)
def test_refusals(kind: type[Any], fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(PROMPT, **fields)
