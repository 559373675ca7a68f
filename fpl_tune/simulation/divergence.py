"""Divergence of a round: losses and states that are NaN, inf or out of range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fpl_tune.config.specs import OptimSpec
from fpl_tune.core.errors import FplTuneError
from fpl_tune.method import State
from fpl_tune.simulation.batches import Cohort
from fpl_tune.simulation.evaluate import Score
from fpl_tune.simulation.task import ClientTask

GUESSES = 100
"""Times log(classes), the loss of guessing: a client's mean loss over a round beyond it counts as diverged.

A wrong class whose cosine is 0.5 higher costs 50 at CLIP's scale of 100; the least limit, of two classes, is 69."""


class Diverged(FplTuneError):
    """A loss or a state is NaN, inf or out of range; the message names seed, client and round."""


def watch(
    spec: OptimSpec,
    tasks: Sequence[ClientTask],
    states: Sequence[State],
    cohorts: Sequence[Cohort],
    losses: Sequence[Tensor] | None,
    scores: Sequence[Mapping[str, Score]] | None = None,
) -> list[Tensor] | None:
    """The losses [C] of each seed's clients that hold images, read from the device at once with the states.

    Args:
        spec: the clients' optimiser, whose rate is named.
        tasks, states, cohorts: by seed.
        losses: by seed, [C] mean losses of the round; None where nothing is learned.
        scores: by seed, those of the round; None where it is not evaluated.

    Raises:
        Diverged: the round ended with a loss that is NaN or out of range, a state that is NaN or inf, or logits of
            deployed models that are NaN.
    """
    finite = [_finite(state, cohort.clients) for state, cohort in zip(states, cohorts, strict=True)]
    parts = [*(losses or ()), torch.stack(finite)]
    *read, finite = torch.cat([part.double() for part in parts]).cpu().split([len(part) for part in parts])
    found = []
    for i, (cohort, task) in enumerate(zip(cohorts, tasks, strict=True)):
        clients = torch.tensor([client for client in cohort.clients.tolist() if task.train.sizes[client]])
        where = f"seed {cohort.seed}, round {cohort.round}"
        if losses is not None:
            found.append(read[i][torch.isin(cohort.clients, clients)])
            for client, loss in zip(clients.tolist(), found[-1].tolist(), strict=True):
                if not abs(loss) <= (limit := GUESSES * math.log(max(2, task.n_classes))):
                    where = f"seed {cohort.seed}, client {client}, round {cohort.round}"
                    what = "NaN" if math.isnan(loss) else f"{loss:.4g}"
                    if math.isfinite(loss):
                        what += f", beyond {limit:.0f}, {GUESSES} times that of guessing"
                    raise _diverged(f"loss is {what}", where, spec)
        if not finite[i]:
            raise _diverged("what was learned is NaN or inf", where, spec)
        if scores is not None and any(math.isnan(score.ece) for score in scores[i].values()):
            raise _diverged("logits of deployed models are NaN", where, spec)
    return found if losses is not None else None


def _finite(state: State, clients: Tensor) -> Tensor:
    """A bool on the state's device: the shared state and that of the round's clients are finite."""
    own = [leaf[clients.to(leaf.device)] for leaf in state.personal.values()]
    leaves = [leaf for leaf in (*state.shared.values(), *own, *state.server.values()) if leaf.is_floating_point()]
    bounds = [bound for leaf in leaves if leaf.numel() for bound in leaf.aminmax()]  # which are NaN where a number is
    return torch.stack([bound.isfinite() for bound in bounds]).all() if bounds else torch.tensor(True)


def _diverged(what: str, where: str, spec: OptimSpec) -> Diverged:
    groups = f" or optim.groups (now {spec.groups})" if spec.groups else ""
    return Diverged(f"training diverged: {what} ({where}); lower optim.lr (now {spec.lr:g}){groups}")
