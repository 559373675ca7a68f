"""Differentially private uploads of any method.

pFedMoAP (Luo et al., ICLR 2025, App. C.2, Table 6, https://arxiv.org/abs/2410.10114) clips gradients and adds noise to
uploads, but gives neither clip nor sensitivity nor code. Here the sensitivity of an upload is the clip. The privacy of
the noise is computed by the accountants of Google's `dp-accounting`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Tree
from fpl_tune.wrappers._accountant import classical_noise, smallest_noise, spent
from fpl_tune.wrappers._wrapper import Wrapper, exchanged


@fl.dataclass
class Private(Wrapper):
    """Differential privacy of uploads: the influence of a client's data is bounded, and noise is added to its upload.

    Clients keep and evaluate their leaves without noise, unless `leaves` is `all`. The ε that a run has spent is
    reported as `privacy/epsilon`. It compares runs in which a client takes part with runs in which it does not. If a
    client's data is replaced by other data instead, the same noise costs more: with that of (ε 10, δ 1e-5) over 100
    rounds, ε = 24.4.

    inner: the method whose uploads are noised: the trained leaves with names of `State.shared` or `State.server`.
    epsilon, delta: the privacy loss; epsilon = inf (with clip = inf and bound = gradient) is `inner`.
    clip: the bound, an l2 norm over all uploaded leaves of a client, and the sensitivity of its upload.
    bound: clipped quantity. `gradient`: gradients at every local step, as in the paper. After several steps with
        momentum, an upload may then exceed `clip`, so that no ε is proven. `update`: the difference between upload and
        received leaves (McMahan et al., ICLR 2018, https://arxiv.org/abs/1710.06963), which proves it.
    leaves: leaves that are bounded and noised: those that are `uploaded`, or `all` trained leaves of a client, with one
        bound. With `all`, personal leaves are private too, as in DP-FPL; it needs bound = update.
    calibration: calibration of the noise. `classical`: σ = √(2 ln(1.25/δ)) · clip / ε for one upload, which Table 6
        implies and which is proven for ε < 1 only (its ε of 50 at δ = 0.05 is actually 226); `accountant`: the least σ
        with which `rounds` rounds lose (ε, δ).
    rounds: the accountant's number of rounds, over all stages.
    sampling: knowledge of others about participation. `seen`: the server may see every upload, and ε is that of the
        client with the most uploads. `secret`: nobody, including the server, sees who took part or a single upload, and
        the accountant uses the protocol's share of clients in a round as the probability to be drawn. That is proven if
        clients are drawn independently; for cohorts of a fixed size, as protocols draw them, it is customary but not
        proven. Protocols that draw otherwise (by domain, or all clients in the first round) are rejected.
    """

    adds = ("noise.",)
    own_metrics = (fl.Metric("privacy/epsilon", maximize=False, sampled=False),)

    inner: Method
    epsilon: fl.Positive = 50.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 0.05
    clip: fl.Positive = 1.0
    bound: Literal["gradient", "update"] = "gradient"
    leaves: Literal["uploaded", "all"] = "uploaded"
    calibration: Literal["classical", "accountant"] = "classical"
    rounds: fl.AtLeastOne = 1
    sampling: Literal["seen", "secret"] = "seen"

    def __post_init__(self) -> None:
        finite = math.isfinite(self.clip) or math.isinf(self.epsilon)
        fl.require(finite, "clip", "must be finite where epsilon is", self.clip, "Noise is scaled to the clip.")
        fits = self.leaves == "uploaded" or self.bound == "update"
        fl.require(fits, "leaves", "must be uploaded unless bound is update", self.leaves, "Set method.bound=update.")
        for name, plain in (("rounds", 1), ("sampling", "seen")):
            fits = self.calibration == "accountant" or getattr(self, name) == plain
            remedy = "Set method.calibration=accountant."
            fl.require(fits, name, f"must be {plain} where calibration is classical", getattr(self, name), remedy)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        drawn = self.sampling == "seen" or sizes.participation is not None
        remedy = "Set protocol.sampling=uniform and protocol.first_round_all=false."
        fl.require(drawn, "sampling", "must be seen where cohorts are not drawn uniformly", self.sampling, remedy)

    def _share(self, sizes: Sizes) -> float:
        """Probability of a client to take part in a round that the accountant may assume."""
        return 1.0 if self.sampling == "seen" else sizes.participation or 1.0

    def sigma(self, sizes: Sizes) -> float:
        """Standard deviation of the noise on every uploaded number."""
        if math.isinf(self.epsilon):
            return 0.0
        if self.calibration == "classical":
            return self.clip * classical_noise(self.epsilon, self.delta)
        return self.clip * smallest_noise(self.epsilon, self.delta, self.rounds, self._share(sizes))

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        self._reject_other_uploads(task, state)
        key = torch.randint(1 << 62, (task.n_clients,), generator=rng).to(task.device)
        own = {"noise.key": key, "noise.drawn": torch.zeros_like(key)}
        rounds = torch.zeros((), dtype=torch.int64, device=task.device)
        if before is not None and "noise.key" in before.personal:  # a later stage never draws the same noise again
            own = {name: before.personal[name] for name in own}
            rounds = before.server["noise.rounds"]
        return State(state.shared, {**state.personal, **own}, {**state.server, "noise.rounds": rounds})

    def _reject_other_uploads(self, task: Task, state: State) -> None:
        """Raises `ConfigError` if clients send anything that is not noised, whose ε would be infinite."""
        first = torch.zeros(1, dtype=torch.int64, device=task.device)
        names = {alias for name in _uploaded(self.start(task, state, first)) for alias in (name, name.split(".")[0])}
        other = sorted(self.inner.traffic(task, state, first).up.keys() - names)
        if other and self.sigma(task):
            raise ConfigError(
                f"method.inner must upload trained leaves only, but {type(self.inner).__name__} also uploads "
                f"{', '.join(other)}, to which no noise is added. Choose another method to wrap in private."
            )

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        inner_state = self.inner_state(state)
        local = self.inner.start(task, inner_state, clients)
        received = inner_state.shared if self.bound == "update" else {**inner_state.shared, **inner_state.server}
        names = exchanged(local, received, "private") if self.leaves == "uploaded" else list(local.params)
        return local._replace(buffers={**local.buffers, **{f"uploaded.{n}": local.params[n].clone() for n in names}})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        train = dict(local.params)
        if self.bound == "gradient":
            names = _uploaded(local)
            train.update(zip(names, _ClippedGradient.apply(self.clip, *(train[n] for n in names)), strict=True))
        loss, moved = self.inner.loss(task, local._replace(params=train), batch)
        return loss, {**local.buffers, **moved}

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        drawn, rounds = state.personal["noise.drawn"], state.server["noise.rounds"]
        noisy = local._replace(params={**local.params, **self._uploads(task, state, clients, local)})
        inner_state = self.inner_state(state)
        own = local if self.leaves == "uploaded" else noisy
        with fl.in_place(False):  # the second merge starts from the same state
            personal = self.inner.merge(task, inner_state, clients, own).personal
        merged = self.inner.merge(task, inner_state, clients, noisy)
        noise = {
            "noise.key": state.personal["noise.key"],
            "noise.drawn": fl.scatter_rows(drawn, clients, drawn[clients] + 1),
        }
        return State(merged.shared, {**personal, **noise}, {**merged.server, "noise.rounds": rounds + 1})

    def _uploads(self, task: Task, state: State, clients: Tensor, local: Local) -> Tree:
        """The bounded and noised leaves that clients upload."""
        names = _uploaded(local)
        sent = {name: local.params[name] for name in names}
        if self.bound == "update":
            received = {name: local.buffers[f"uploaded.{name}"] for name in names}
            moves = fl.clipped(self.clip, [sent[name] - received[name] for name in names])
            sent = {name: received[name] + move for name, move in zip(names, moves, strict=True)}
        sigma = self.sigma(task)
        if sigma == 0:
            return sent
        counted = torch.stack(
            [state.personal["noise.key"][clients], state.personal["noise.drawn"][clients]], 1
        ).tolist()
        for name, rows in sent.items():  # noise depends on the client's key, its number of draws, and the leaf
            noise = [torch.randn(rows.shape[1:], generator=fl.generator(*client, name)) for client in counted]
            sent[name] = rows + sigma * torch.stack(noise).to(rows)
        return sent

    def metrics(self, task: Task, state: State) -> dict[str, float]:
        """The ε of the client with the most uploads."""
        sigma = self.sigma(task)
        if sigma == 0:
            return super().metrics(task, state)
        uploads = state.personal["noise.drawn"].max() if self.sampling == "seen" else state.server["noise.rounds"]
        epsilon = spent(sigma / self.clip, self.delta, int(uploads), self._share(task))
        return {**super().metrics(task, state), "privacy/epsilon": epsilon}


def _uploaded(local: Local) -> list[str]:
    return [name for name in local.params if f"uploaded.{name}" in local.buffers]


class _ClippedGradient(torch.autograd.Function):
    """Identity on leaves [C, ...] that clips the norm of a client's gradient over all leaves to a bound."""

    @staticmethod
    def forward(ctx: Any, bound: float, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.bound = bound
        return tuple(leaf.view_as(leaf) for leaf in leaves)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *fl.clipped(ctx.bound, grads)
