"""Methods made from methods: each forwards to `inner` and changes one thing.

What a client exchanges is known by name: a leaf of `Local.train` with the name of a leaf of `State.shared`
starts from what the server sent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Generator, Tensor

from fpl_tune.errors import ConfigError
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree, put, require

Needs = Literal["pooled", "patches", "pixels"]


class Wrapper(Method):
    """Abstract: what every wrapper leaves to the method it wraps."""

    inner: Method

    @property
    def needs(self) -> Needs:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.needs

    @property
    def view(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.view

    def check(self, sizes: Sizes) -> None:
        self.inner.check(sizes)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self.inner.logits(task, local, batch)

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        return self.inner.diagnose(task, local, batch)


def _exchanged(local: Local, known: Iterable[str], wrapper: str) -> list[str]:
    """Names of the trained leaves that are also in `known`.

    Raises:
        ConfigError: there is none, so that the wrapper would do nothing.
    """
    names = [name for name in local.train if name in known]
    if not names:
        raise ConfigError(
            f"{wrapper} acts on what clients exchange, but none of {sorted(local.train)} is exchanged. "
            "Wrap a method with a shared part, such as promptfl."
        )
    return names


# -- FedProx ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proximal(Wrapper):
    """FedProx: the local loss plus μ/2 · ‖w − w_received‖² over every leaf that came from the server.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
    https://arxiv.org/abs/1812.06127 (Eq. 2). The released prompt-learning codes compute the term from
    detached tensors, so that it has no gradient; here it has.

    inner: the method whose loss is extended.
    mu: weight of the proximal term, >= 0; 0 is `inner`. 0.005 is what pFedPrompt (App. A.3) found best.
    """

    inner: Method
    mu: float = 0.005

    def __post_init__(self) -> None:
        require(math.isfinite(self.mu) and self.mu >= 0, "mu", "must be a finite number >= 0", self.mu)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return self.inner.init(task, rng, before)

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        local = self.inner.start(task, state, who)
        names = _exchanged(local, state.shared, "proximal")
        return local._replace(fixed={**local.fixed, **{f"received.{n}": local.train[n].clone() for n in names}})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        loss, moved = self.inner.loss(task, local, batch)
        for name, leaf in local.train.items():
            if f"received.{name}" in local.fixed:
                away = leaf - local.fixed[f"received.{name}"]
                loss = loss + self.mu / 2 * away.flatten(1).square().sum(1)
        return loss, {**local.fixed, **moved}

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        return self.inner.merge(task, state, who, local)

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        return self.inner.deploy(task, state, who)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        return self.inner.traffic(task, state, who)


# -- +FT ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTuned(Wrapper):
    """Local fine-tuning of a federated model: every client goes on training its own copy, nothing is
    aggregated.

    Cheng, Chadha, Duchi: Federated Asymptotics: a model to compare federated learning algorithms (FedAvg with
    fine-tuning), AISTATS 2023, https://arxiv.org/abs/2108.07313. A second stage: it starts from the state
    that the first one left (`before`). Without one it is local training from the initial state of `inner`; of
    PromptFL that is CoOp.

    inner: the method of the stage before.
    """

    inner: Method

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = before if before is not None else self.inner.init(task, rng)
        everyone = torch.arange(task.n_clients, device=task.device)
        own = {f"own.{n}": leaf.clone() for n, leaf in self.inner.deploy(task, state, everyone).train.items()}
        received = torch.zeros(task.n_clients, dtype=torch.bool, device=task.device)
        return State(state.shared, {**state.personal, **own}, {**state.server, "received": received})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        return self._own(self.inner.start(task, state, who), state, who)

    def _own(self, local: Local, state: State, who: Tensor) -> Local:
        return local._replace(train={n: state.personal[f"own.{n}"][who] for n in local.train})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        return self.inner.loss(task, local, batch)

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        own = {f"own.{n}": put(state.personal[f"own.{n}"], who, leaf) for n, leaf in local.train.items()}
        received = state.server["received"].index_fill(0, who, True)
        return State(state.shared, {**state.personal, **own}, {**state.server, "received": received})

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        return self._own(self.inner.deploy(task, state, who), state, who)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        """The model is received once, before the client's first fine-tuning; nothing is sent."""
        first = (~state.server["received"][who]).long()
        return Traffic(up={}, down={n: v * first for n, v in self.inner.traffic(task, state, who).down.items()})


# -- differential privacy -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Private(Wrapper):
    """Differential privacy of uploads: gradients clipped at every step, Gaussian noise on the uploaded copy.

    Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014, App. A,
    https://doi.org/10.1561/0400000042, as pFedMoAP applies it (Luo et al., ICLR 2025, App. C.2, Table 6,
    https://arxiv.org/abs/2410.10114). That paper
    gives neither clip nor sensitivity: the sensitivity of an upload is taken to be `clip`, which clipping per
    step does not prove for several steps with momentum. Clients keep and evaluate what they trained without
    noise.

    inner: the method whose uploads are noised: the trained leaves that `State.shared` or `State.server`
    names.
    epsilon, delta: the privacy loss of one upload; epsilon = inf (with clip = inf) is `inner`.
    clip: bound on the l2 norm of a client's gradient over all uploaded leaves, and the sensitivity.
    calibration: `classical`: σ = √(2 ln(1.25/δ)) · clip / ε, proven for ε < 1 only, used by the papers far above (their
        ε of 50 at δ = 0.05 is 226 in truth, see `privacy_spent`); `analytic`: the smallest σ that holds (Balle, Wang,
        ICML 2018, Theorem 8).
    """

    inner: Method
    epsilon: float = 50.0
    delta: float = 0.05
    clip: float = 1.0
    calibration: Literal["classical", "analytic"] = "classical"

    def __post_init__(self) -> None:
        require(self.epsilon > 0, "epsilon", "must be > 0", self.epsilon)
        require(0 < self.delta < 1, "delta", "must lie in (0, 1)", self.delta)
        require(self.clip > 0, "clip", "must be > 0", self.clip)
        require(
            math.isfinite(self.clip) or math.isinf(self.epsilon),
            "clip",
            "must be finite where epsilon is",
            self.clip,
            "Noise is scaled to the clip.",
        )

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on every uploaded number."""
        if math.isinf(self.epsilon):
            return 0.0
        if self.calibration == "classical":
            return math.sqrt(2 * math.log(1.25 / self.delta)) * self.clip / self.epsilon
        return self.clip * smallest_noise(self.epsilon, self.delta)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = self.inner.init(task, rng, before)
        key = torch.randint(1 << 62, (task.n_clients,), generator=rng).to(task.device)
        return state._replace(personal={**state.personal, "noise.key": key, "noise.drawn": torch.zeros_like(key)})

    def start(self, task: Task, state: State, who: Tensor) -> Local:
        local = self.inner.start(task, state, who)
        names = _exchanged(local, {**state.shared, **state.server}, "private")
        return local._replace(fixed={**local.fixed, **{f"uploaded.{n}": torch.zeros_like(who) for n in names}})

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        names = _uploaded(local)
        clipped = _ClippedGradient.apply(self.clip, *(local.train[n] for n in names))
        train = {**local.train, **dict(zip(names, clipped, strict=True))}
        loss, moved = self.inner.loss(task, local._replace(train=train), batch)
        return loss, {**local.fixed, **moved}

    def merge(self, task: Task, state: State, who: Tensor, local: Local) -> State:
        key, drawn = state.personal["noise.key"], state.personal["noise.drawn"]
        noisy = dict(local.train)
        for name in _uploaded(local):
            rows = zip(local.train[name], key[who].tolist(), drawn[who].tolist(), strict=True)
            noisy[name] = torch.stack([leaf + self.sigma * _noise(leaf, k, t, name) for leaf, k, t in rows])
        heard = self.inner.merge(task, state, who, local._replace(train=noisy))
        kept = self.inner.merge(task, state, who, local).personal
        noise = {"noise.key": key, "noise.drawn": put(drawn, who, drawn[who] + 1)}
        return heard._replace(personal={**kept, **noise})

    def deploy(self, task: Task, state: State, who: Tensor) -> Local:
        return self.inner.deploy(task, state, who)

    def traffic(self, task: Task, state: State, who: Tensor) -> Traffic:
        return self.inner.traffic(task, state, who)


def _uploaded(local: Local) -> list[str]:
    return [name for name in local.train if f"uploaded.{name}" in local.fixed]


def _noise(like: Tensor, key: int, drawn: int, name: str) -> Tensor:
    """Standard normal numbers that depend on a client's key, on how often it has drawn, and on the leaf."""
    digest = hashlib.blake2b(repr((key, drawn, name)).encode(), digest_size=8).digest()
    rng = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(like.shape, generator=rng).to(like.device, like.dtype)


class _ClippedGradient(torch.autograd.Function):
    """Identity on leaves [C, ...]; a client's gradient over all of them together gets a norm <= bound."""

    @staticmethod
    def forward(ctx: Any, bound: float, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.bound = bound
        return tuple(leaf.view_as(leaf) for leaf in leaves)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        norm = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
        factor = (ctx.bound / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
        return None, *(g * factor.view(-1, *([1] * (g.ndim - 1))) for g in grads)


def _leaked(epsilon: float, noise: float) -> float:
    """The smallest δ at which one Gaussian release of sensitivity 1 is (ε, δ)-private (Balle, Wang)."""
    a, b = 1 / (2 * noise), epsilon * noise
    return math.exp(log_ndtr(a - b)) - math.exp(epsilon + log_ndtr(-a - b))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where `function` of a logarithm crosses zero, as the number itself."""
    return math.exp(float(brentq(lambda x: function(math.exp(x)), math.log(low), math.log(high), xtol=1e-12)))  # pyright: ignore[reportArgumentType]


def smallest_noise(epsilon: float, delta: float) -> float:
    """Standard deviation, in units of the sensitivity, for one (ε, δ)-private Gaussian release."""
    return _root(lambda noise: _leaked(epsilon, noise) - delta, 1e-3, 1e6)


def privacy_spent(method: Private, uploads: int) -> float:
    """ε at the method's δ after so many uploads of one client, each of sensitivity `clip`.

    Exact for Gaussian noise: T releases are one of sensitivity √T (Dong, Roth, Su: Gaussian Differential
    Privacy, JRSS-B 2022). Not accounted: that several clipped steps with momentum make one upload, and
    sampling of images.
    """
    require(uploads >= 1, "uploads", "must be >= 1", uploads)
    if method.sigma == 0:
        return math.inf
    noise = method.sigma / method.clip / math.sqrt(uploads)
    return _root(lambda epsilon: _leaked(epsilon, noise) - method.delta, 1e-9, 1e9)
