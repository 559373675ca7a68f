import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from fpl_tune import config
from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local, Method, Tree, generator
from fpl_tune.methods.fedamp import FedAMP
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation.simulation import Simulation
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import EVERYONE, play
from fpl_tune.wrappers._accountant import smallest_noise, spent
from fpl_tune.wrappers.finetuned import FineTuned
from fpl_tune.wrappers.private import Private

Gradients = Callable[[Method, Local], Tree]
PROMPT = PromptFL(n_ctx=2)
MIXED = PFedMoAP(n_ctx=2, experts=3, d_gating=12, heads=3)


def test_every_clients_gradient_is_clipped_to_its_own_norm(task: ClientTask, gradients: Gradients) -> None:
    state = play(MIXED, [task], cohorts=[[0, 1, 2, 3]])[-1][0]
    full = gradients(MIXED, MIXED.start(task, state, EVERYONE))
    norms = full["prompt"].flatten(1).norm(dim=1)
    bound = float(norms.median())
    method = Private(MIXED, clip=bound)
    clipped = gradients(method, method.start(task, state, EVERYONE))
    for client in range(4):
        wanted = full["prompt"][client] * min(1.0, bound / float(norms[client]))
        torch.testing.assert_close(clipped["prompt"][client], wanted, rtol=1e-9, atol=1e-12)
    assert int((clipped["prompt"].flatten(1).norm(dim=1) > bound * (1 + 1e-9)).sum()) == 0
    torch.testing.assert_close(clipped["gate.weight"], full["gate.weight"])  # never uploaded, never clipped


@pytest.mark.parametrize(("epsilon", "sigma"), [(50.0, 0.05075), (25.0, 0.10149)])
def test_the_noise_of_table_6(task: ClientTask, epsilon: float, sigma: float) -> None:
    assert Private(PROMPT, epsilon=epsilon).sigma(task) == pytest.approx(sigma, abs=5e-6)
    assert Private(PROMPT, epsilon=epsilon, clip=2.0).sigma(task) == pytest.approx(2 * sigma, abs=1e-5)


def test_uploads_carry_noise_of_that_size_and_of_every_clients_own(task: ClientTask) -> None:
    method, still = Private(PromptFL(n_ctx=64), epsilon=25.0), OptimSpec(lr=0.0, batch=4)
    noise = {}
    for client in (0, 1):
        (a,), (b,), (c,) = play(method, [task], cohorts=[[client], [client]], spec=still)
        noise[client] = [b.shared["prompt"] - a.shared["prompt"], c.shared["prompt"] - b.shared["prompt"]]
        for drawn in noise[client]:
            assert float(drawn.std()) == pytest.approx(method.sigma(task), rel=0.05)
            assert abs(float(drawn.mean())) < 0.1 * method.sigma(task)
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


# What noise is worth has a closed form where clients upload in every round; the numbers here are integrated.


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-3), (1.0, 1e-5), (5.0, 0.05), (20.0, 0.05)])
@pytest.mark.parametrize("rounds", [1, 4])
def test_the_accountants_noise_leaks_exactly_delta(task: ClientTask, epsilon: float, delta: float, rounds: int) -> None:
    method = Private(PROMPT, epsilon, delta, clip=3.0, calibration="accountant", rounds=rounds)
    assert leaked(epsilon, method.sigma(task) / 3 / math.sqrt(rounds)) == pytest.approx(delta, rel=1e-5)
    assert spent(method.sigma(task) / 3, delta, rounds) == pytest.approx(epsilon, rel=1e-6)


def test_sampling_in_one_round_is_the_mixture_it_is() -> None:
    """By definition: the larger hockey-stick divergence between N(0, σ²) and (1 - q) N(0, σ²) + q N(1, σ²)."""
    epsilon, delta, share = 1.0, 0.01, 0.3
    sigma = smallest_noise(epsilon, delta, 1, share)

    def without(x: float) -> float:
        return float(norm.pdf(x, 0, sigma))

    def drawn(x: float) -> float:
        return (1 - share) * without(x) + share * float(norm.pdf(x, 1, sigma))

    losses = [
        quad(lambda x, p=p, q=q: max(0.0, p(x) - math.exp(epsilon) * q(x)), -12, 12, points=[0, 1, 2], limit=500)[0]
        for p, q in ((without, drawn), (drawn, without))
    ]
    assert delta * 0.98 < max(losses) <= delta * (1 + 1e-6)
    assert sigma < smallest_noise(epsilon, delta, 1)


def test_records_say_what_was_spent(task: ClientTask) -> None:
    method = Private(MIXED, epsilon=2.0, delta=1e-3, clip=3.0, calibration="accountant", rounds=2)
    states = [states[0] for states in play(method, [task], cohorts=[[0], [0, 1], [1]])]
    found = [method.metrics(task, state)["privacy/epsilon"] for state in states]
    assert found[0] == 0
    assert 0 < found[1] < found[2] == pytest.approx(2.0)
    assert found[3] == found[2], "two uploads of every client at most"
    shown = FineTuned(method).metrics(task, FineTuned(method).init(task, generator("ft"), states[-1]))
    assert shown == {"privacy/epsilon": found[3]}
    assert Private(PROMPT, epsilon=math.inf, clip=math.inf).metrics(task, states[0]) == {}
    assert [(metric.name, metric.maximize) for metric in Private.own_metrics] == [("privacy/epsilon", False)]


def test_where_who_takes_part_is_secret_rounds_count_and_not_uploads(task: ClientTask) -> None:
    method = Private(PROMPT, epsilon=2.0, delta=1e-3, calibration="accountant", rounds=3, sampling="secret")
    quarter = replace(task, participation=0.25)
    (state,) = play(method, [quarter], cohorts=[[0], [1], [2]])[-1]
    assert method.metrics(quarter, state)["privacy/epsilon"] == pytest.approx(2.0, rel=2e-3)
    everybody = replace(method, sampling="seen")
    assert method.sigma(quarter) < method.sigma(task) == everybody.sigma(task) == everybody.sigma(quarter)


def test_the_share_of_secret_cohorts_is_the_protocols(tmp_path: Path) -> None:
    """With all clients in every round nothing is gained by secrecy; one of four is a quarter, whatever is asked for."""

    def simulation(*overrides: str) -> Simulation:
        words = ["method=promptfl_dp", "method.bound=update", "method.epsilon=1", "method.delta=1e-5", "protocol=quick"]
        words += ["method.calibration=accountant", "method.rounds=2", "method.sampling=secret", "protocol.rounds=2"]
        words += ["data.train_per_class=4", "data.test_per_class=1", "data.domains=[photo]", "data.shots=2"]
        run = config.compose_run([*words, "partition.n_clients=4", *overrides])
        return Simulation(run, [1], cache_dir=tmp_path)

    whole = simulation("protocol.participation=1")
    method = cast(Private, whole.stages[0].method)
    assert method.sigma(whole.tasks[0]) == method.clip * smallest_noise(1.0, 1e-5, 2)
    assert simulation("protocol.participation=0.1").tasks[0].participation == 0.25
    for other in ("protocol.sampling=domain", "protocol.first_round_all=true"):
        with pytest.raises(ConfigError, match="must be seen where cohorts are not drawn uniformly"):
            simulation("protocol.participation=0.5", other)


def test_a_later_stage_never_repeats_its_noise(task: ClientTask) -> None:
    method = Private(PROMPT)
    (state,) = play(method, [task], cohorts=[[0, 1]])[-1]
    later = method.init(task, generator("init", 0), state)
    for name in ("noise.key", "noise.drawn"):
        assert torch.equal(later.personal[name], state.personal[name])
    assert later.server["noise.rounds"] == 1


def test_an_upload_is_bounded_by_what_was_received(task: ClientTask) -> None:
    free = play(MIXED, [task], cohorts=[[1]])[-1][0].personal["own"][1]
    method = Private(MIXED, epsilon=math.inf, clip=0.01, bound="update")
    (before,), (after,) = play(method, [task], cohorts=[[1]])
    received = before.shared["prompt"]
    move = after.shared["prompt"] - received
    assert float(move.norm()) == pytest.approx(0.01)
    torch.testing.assert_close(move, 0.01 * (free - received) / (free - received).norm(), rtol=0, atol=1e-12)
    torch.testing.assert_close(after.personal["own"][1], free, rtol=0, atol=1e-12)  # trained and kept as ever
    loose = Private(MIXED, epsilon=math.inf, clip=math.inf, bound="update")
    whole = play(loose, [task], cohorts=[[1]])[-1][0].server["pool"][1]
    torch.testing.assert_close(whole, free, rtol=0, atol=1e-12)  # received + (free - received) rounds


def test_without_a_received_leaf_updates_cannot_be_bounded(task: ClientTask) -> None:
    """FedAMP uploads what no client received; gradients can be clipped all the same."""
    inner = FedAMP(n_ctx=2, alpha=0.1)
    state = Private(inner).init(task, generator("dp"))
    assert "uploaded.prompt" in Private(inner).start(task, state, EVERYONE).buffers
    with pytest.raises(ConfigError, match=r"none of \['prompt'\] is exchanged"):
        Private(inner, bound="update").start(task, state, EVERYONE)
