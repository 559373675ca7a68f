"""Attacks of malicious clients on the updates that they send.

The update of a client is what training changed in the leaves that it sends; what else it sends, such as prototypes, is
part of the update as it is. Attackers know the honest updates of all clients of the cohort, as in Blades (Li et al.,
IoTDI 2024, https://arxiv.org/abs/2206.05359). Attacks on data, which change what malicious clients train on, are in
`fpl_tune.simulation.poison`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune import methods
from fpl_tune.config import RunSpec
from fpl_tune.core.clients import MaliciousSpec
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Local, generator, sent_leaves
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.task import ClientTask
from fpl_tune.simulation.worlds import initial_state


class Updates(NamedTuple):
    """The honest updates of a cohort, of P numbers each, and who lies about them."""

    own: Tensor
    """[L, P] of the clients that lie."""
    benign: Tensor
    """[C - L, P] of the others; `own` if there are no others."""
    cohort: Cohort


def _sign_flip(honest: Updates) -> Tensor:
    """-u."""
    return -honest.own


def _noise(honest: Updates) -> Tensor:
    """u + N(0, rms(u)²)."""
    cohort, size = honest.cohort, honest.own.shape[1]
    liars = cohort.clients[cohort.liars].tolist()
    drawn = [torch.randn(size, generator=generator("noise", cohort.seed, client, cohort.round)) for client in liars]
    return honest.own + honest.own.square().mean(1, keepdim=True).sqrt() * torch.stack(drawn).to(honest.own)


def _scale(honest: Updates) -> Tensor:
    """C u, which replaces the mean of C clients if the others have converged (model replacement)."""
    return len(honest.cohort.clients) * honest.own


_DEVIATIONS = 1.5
"""The z of the released code (moranant/attacking_distributed_learning, ed79e98). The paper's rule for the largest z
that is not noticed gives 0.36 for 12 of 51 clients, and 0.14 for 3 of 12."""


def _alie(honest: Updates) -> Tensor:
    """μ - 1.5 σ of the benign updates, coordinate by coordinate."""
    benign = honest.benign
    return benign.mean(0) - _DEVIATIONS * benign.std(0, correction=0)


def _ipm(honest: Updates) -> Tensor:
    """-μ/2 of the benign updates."""
    return -0.5 * honest.benign.mean(0)


def _min_max(honest: Updates) -> Tensor:
    """μ - γ σ with the largest γ that leaves it no further from a benign update than these are from each other.

    Its distance from update i is within D if γ² ‖σ‖² - 2 γ σ·(μ - u_i) + ‖μ - u_i‖² <= D², which gives γ without the
    paper's search.
    """
    benign = honest.benign
    mean, deviation = benign.mean(0), benign.std(0, correction=0)
    away = mean - benign
    apart = torch.cdist(benign, benign, compute_mode="donot_use_mm_for_euclid_dist").square().max()
    a, half = deviation.square().sum().clamp(min=torch.finfo(benign.dtype).tiny), away @ deviation
    room = (apart - away.square().sum(1)).clamp(min=0)
    return mean - ((half + (half.square() + a * room).sqrt()) / a).min() * deviation


ATTACKS: dict[str, Callable[[Updates], Tensor]] = {
    "sign_flip": _sign_flip,
    "noise": _noise,
    "scale": _scale,
    "alie": _alie,
    "ipm": _ipm,
    "min_max": _min_max,
}
"""Attacks on updates: what malicious clients send, [L, P], or [P] for all of them."""


def attacked(spec: MaliciousSpec, cohort: Cohort, up: Collection[str], start: Local, trained: Local) -> Local:
    """What a cohort holds after a round in which some of its clients lie about what they send.

    Args:
        spec: the attack; one on data leaves updates as they are.
        cohort: the clients [C], of whom some lie.
        up: names of what they send, as in `Traffic.up`.
        start: the leaves [C, ...] with which the round began.
        trained: the leaves after training.
    """
    if spec.attack not in ATTACKS:
        return trained
    sent = sent_leaves(trained, up)
    moves = [leaf - start.params[name] for name, leaf in sent.params.items()] + [*sent.buffers.values()]
    if not moves:
        return trained
    assert cohort.liars is not None
    updates = torch.cat([move.flatten(1) for move in moves], 1)
    liars, others = (which.nonzero()[:, 0].to(updates.device) for which in (cohort.liars, ~cohort.liars))
    own = updates[liars]
    lies = ATTACKS[spec.attack](Updates(own, updates[others] if len(others) else own, cohort))
    shifts = iter((spec.strength * (lies - own)).split([move[0].numel() for move in moves], 1))
    lied = (
        {name: leaf.index_add(0, liars, next(shifts).view_as(leaf[liars])) for name, leaf in kind.items()}
        for kind in sent
    )
    return Local(*({**kind, **changed} for kind, changed in zip(trained, lied, strict=True)))


def check(run: RunSpec, task: ClientTask) -> None:
    """Raises `ConfigError` for an attack on updates where clients learn, but send none in any stage."""
    malicious, state = run.clients.malicious, None
    if not (malicious.share and run.learns and malicious.attack in ATTACKS):
        return
    someone = torch.zeros(1, dtype=torch.int64, device=task.device)
    for stage in run.stages:
        state = initial_state(stage.method, task, 1, state)
        up = stage.method.traffic(task, state, someone).up
        if any(sent_leaves(stage.method.start(task, state, someone), up)):
            return
    raise ConfigError(
        f"clients.malicious.attack={malicious.attack} changes the updates that clients send, but those of "
        f"{methods.name_of(run.method)} send none. Choose another method, or attack its data: label_flip or backdoor."
    )
