"""Attacks on updates, by numbers derived here and by what they leave alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fpl_tune.config import compose_run
from fpl_tune.core.clients import MaliciousSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local, generator, sent_leaves
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.simulation import attacks
from fpl_tune.simulation.attacks import ATTACKS, attacked
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.dummy import dummy_task
from fpl_tune.simulation.engine import run_round
from fpl_tune.testing import assert_same, toy_task
from fpl_tune.testing.rounds import EPOCHS, SPEC
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.scaffold import Scaffold

CLIENTS, LIARS = torch.tensor([0, 1, 2, 4, 7]), torch.tensor([False, True, False, False, True])
COHORT = Cohort(3, 2, CLIENTS, liars=LIARS)


def leaves() -> tuple[Local, Local]:
    """What five clients start from and what they have learned: a prompt and an own one, a bank and counts."""
    rng = torch.Generator().manual_seed(5)
    params = {"prompt": (5, 2, 3), "own": (5, 4)}
    shapes = {**params, "bank": (5, 6)}
    start, trained = ({n: torch.randn(s, generator=rng, dtype=torch.float64) for n, s in shapes.items()} for _ in "ab")
    counts = {"seen": torch.arange(5)}
    of = [({n: made[n] for n in params}, {"bank": made["bank"], **counts}) for made in (start, trained)]
    return Local(*of[0]), Local(*of[1])


UP = ("prompt", "bank", "seen")


def updates(start: Local, after: Local) -> Tensor:
    """[C, P] of all that is sent."""
    moves = after.params["prompt"] - start.params["prompt"], after.buffers["bank"]
    return torch.cat([move.flatten(1) for move in moves], 1)


def lied(attack: Any, start: Local, trained: Local, *, cohort: Cohort = COHORT, strength: float = 1.0) -> Local:
    return attacked(MaliciousSpec(attack=attack, strength=strength), cohort, UP, start, trained)


def lies(attack: str) -> tuple[Tensor, Tensor]:
    """Honest updates [C, P], and those that are sent."""
    start, trained = leaves()
    return updates(start, trained), updates(start, lied(attack, start, trained))


def test_flipped_and_scaled_updates() -> None:
    for attack, factor in (("sign_flip", -1.0), ("scale", 5.0)):
        honest, sent = lies(attack)
        torch.testing.assert_close(sent[LIARS], factor * honest[LIARS])


def test_a_scaled_update_replaces_the_model_where_others_have_converged() -> None:
    start, trained = leaves()
    received, alone = start.params["prompt"], torch.tensor([False, True, False, False, False])
    prompt = torch.where(alone.view(-1, 1, 1), trained.params["prompt"], received)
    converged = Local({**start.params, "prompt": prompt}, trained.buffers)
    sent = lied("scale", start, converged, cohort=COHORT._replace(liars=alone))
    torch.testing.assert_close((sent.params["prompt"] - received).mean(0), (prompt - received)[1])


def test_noise_is_as_large_as_the_update_and_drawn_by_seed_client_and_round() -> None:
    honest, sent = lies("noise")
    for row, client in ((1, 1), (4, 7)):
        drawn = torch.randn(12, generator=generator("noise", 3, client, 2)).double()
        torch.testing.assert_close(sent[row], honest[row] + honest[row].square().mean().sqrt() * drawn)


def test_a_little_is_enough_and_inner_products_follow_the_benign_clients() -> None:
    for attack in ("alie", "ipm"):
        honest, sent = lies(attack)
        benign = honest[~LIARS]
        mean = benign.sum(0) / 3
        deviation = ((benign - mean).square().sum(0) / 3).sqrt()
        wanted = mean - 1.5 * deviation if attack == "alie" else -0.5 * mean
        torch.testing.assert_close(sent[LIARS], wanted.expand(2, -1))


def test_min_max_is_as_far_as_the_benign_updates_are_apart() -> None:
    honest, sent = lies("min_max")
    benign, lie = honest[~LIARS], sent[1]
    apart = max(float((a - b).norm()) for a in benign for b in benign)
    assert max(float((lie - row).norm()) for row in benign) == pytest.approx(apart)
    away = lie - benign.mean(0)
    torch.testing.assert_close(away / away.norm(), -benign.std(0, correction=0) / benign.std(0, correction=0).norm())


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_changes_what_malicious_clients_send_and_nothing_else(attack: str) -> None:
    start, trained = leaves()
    after = lied(attack, start, trained)
    assert torch.equal(after.params["own"], trained.params["own"])
    assert torch.equal(after.buffers["seen"], trained.buffers["seen"])
    for kind, name in (("params", "prompt"), ("buffers", "bank")):
        was, now = getattr(trained, kind)[name], getattr(after, kind)[name]
        assert torch.equal(now[~LIARS], was[~LIARS])
        assert not torch.equal(now[LIARS], was[LIARS])
    none = lied(attack, start, trained, strength=0.0)
    assert_same(none, trained)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_cohort_of_malicious_clients_sends_finite_numbers(attack: str) -> None:
    start, trained = leaves()
    alone = Cohort(3, 2, CLIENTS[:1], liars=torch.tensor([True]))
    rows = slice(0, 1)
    after = lied(attack, start.at(rows), trained.at(rows), cohort=alone)
    assert bool(after.params["prompt"].isfinite().all())


def test_sent_leaves_are_those_that_the_traffic_names() -> None:
    task, clients = toy_task(), torch.tensor([0, 2])
    for method, names in (
        (PFedMoAP(n_ctx=2, experts=2, d_gating=12, heads=3), {"prompt"}),
        (
            PFedMoAP(n_ctx=2, experts=2, d_gating=12, heads=3, aggregate_gate=True),
            {"prompt", "gate.weight", "gate.bias"},
        ),
        (Ditto(PromptFL(n_ctx=2)), {"prompt"}),
        (Scaffold(PromptFL(n_ctx=2)), {"prompt", "control.prompt"}),
    ):
        state = method.init(task, generator("init"))
        sent = sent_leaves(method.start(task, state, clients), method.traffic(task, state, clients).up)
        assert {*sent.params, *sent.buffers} == names


@pytest.mark.parametrize(("experts", "reached"), [(4, True), (3, False)])
def test_a_lie_reaches_other_clients_as_an_expert_if_it_is_among_the_nearest(experts: int, reached: bool) -> None:
    """With three experts beside its own, a client gets those of all others; with two, the far one is left out."""
    method, task, everyone = PFedMoAP(n_ctx=2, experts=experts, d_gating=12, heads=3), toy_task(), torch.arange(4)
    cohort = Cohort(0, 1, everyone, liars=torch.tensor([True, False, False, False]))
    spec, state = MaliciousSpec(attack="sign_flip", strength=50.0), method.init(task, generator("init"))
    (state,), _ = run_round(method, [task], [state], [cohort], epochs=EPOCHS, spec=SPEC, malicious=spec)
    lie = state.server["pool"][0]
    received = method.start(task, state, everyone[1:]).buffers["experts"]
    assert [bool((held == lie).flatten(1).all(1).any()) for held in received] == [reached] * 3


def test_an_attack_on_updates_needs_updates() -> None:
    run = compose_run(["method=coop", "clients=ipm"])
    task = dummy_task(run)
    with pytest.raises(ConfigError, match="those of coop send none"):
        attacks.check(run, task)
    for others in (["method=coop"], ["method=coop", "clients=label_flip"], ["method=zeroshot", "clients=ipm"]):
        attacks.check(compose_run(others), task)


def test_malicious_clients_are_not_evaluated() -> None:
    task = toy_task().judged_without(torch.tensor([False, True, False, False]))
    assert task.tests["test"][1].sizes == [3, 0, 3, 3]
    assert task.validation is not None
    assert task.validation.sizes == [2, 0, 2, 2]
    assert task.val.sizes == [2] * 4, "a method may read the validation images of its client"
