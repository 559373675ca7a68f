"""Robust aggregation around any method whose server averages: rules that bound what a few updates can do.

median, trimmed_mean: Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, ICML 2018, https://arxiv.org/abs/1803.01498 (Definitions 1 and 2).
krum, multi_krum: Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant
    Gradient Descent, NeurIPS 2017, https://arxiv.org/abs/1703.02757 (Section 4; Section 6 with m = n - f).
geometric_median: Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning (RFA), IEEE TSP 2022,
    https://arxiv.org/abs/1912.13445 (smoothed Weiszfeld algorithm, ν = 1e-6).
norm_bound: Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019,
    https://arxiv.org/abs/1911.07963 (norm thresholding).
centered_clipping: Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021,
    https://arxiv.org/abs/2012.10333 (one iteration a round).
bucket: Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022,
    https://arxiv.org/abs/2006.09365 (Algorithm 1).

The code of Blades (lishenghui/blades, d8c737e) has other forms of two rules: its Krum adds the squares of squared
distances, and its centered clipping has five iterations a round and a fixed radius.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.core.errors import ConfigError
from fpl_tune.core.tensors import some_of
from fpl_tune.method import Local, Method, Sizes, State, Task, Tree
from fpl_tune.wrappers._wrapper import Wrapper, exchanged
from fpl_tune.wrappers.private import Private

_SMOOTH = 1e-6
"""ν: smaller distances from the geometric median count as this one."""
_STEPS = 100
"""Of the Weiszfeld algorithm. Each costs a product of the matrix of distances [C, C] with a vector."""


@fl.dataclass
class Robust(Wrapper):
    """The server's average of n updates, of which f may be anything, is replaced by a robust one.

    An update is what a client sends minus what the server sent, over all leaves together. Every rule but the first two
    is a linear combination of updates:
    - `median`: the median of every number.
    - `trimmed_mean`: the mean of every number without its f smallest and its f largest values.
    - `krum`: the update with the least sum of squared distances to its n - f - 2 nearest ones; of equal ones, that of
      the client with the lower id. `multi_krum`: the mean of the n - f updates for which the sum is least.
    - `geometric_median`: the point with the least sum of distances to the updates, weighted by numbers of images.
    - `norm_bound`: an update longer than R is shortened to R. Then `inner` averages, with its own weights.
    - `centered_clipping`: the same of an update minus c, where c is what the round before changed; 0 at first.

    R is `bound` times the median length in this round, because the length of a useful update depends on the learning
    rate, the number of steps and the prompt. Updates weigh the same but in the last three rules.

    `inner` merges the robust updates in place of those that were sent. Shared leaves are taken from this merge, and
    leaves of the server that extend a shared leaf's name, as a moment's do. Personal leaves, and others of the server,
    such as the pool of pFedMoAP, are those of updates as sent. A leaf that a client did not send counts as unchanged.
    Counts that are sent are merged as sent, and so are the control variates of SCAFFOLD around robust.

    inner: the method whose average is replaced; private goes around robust.
    rule: `median`, `trimmed_mean`, `krum`, `multi_krum`, `geometric_median`, `norm_bound` or `centered_clipping`.
    liars: share of the updates of a round that may be anything: f of n, rounded, and at least 1 if it is above 0.
        A smaller cohort, of which clients dropped out, has as many of them as the rule admits.
    bound: R in median lengths, > 0. With inf, `norm_bound` is `inner`.
    bucket: number of updates that are averaged at random before the rule applies to the averages; 1: none are. Each
        of f updates may spoil an average of its own.
    """

    adds = ("robust.",)

    inner: Method
    rule: Literal[
        "median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "norm_bound", "centered_clipping"
    ] = "median"
    liars: fl.Share = 0.25
    bound: fl.Positive = 1.0
    bucket: fl.AtLeastOne = 1

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        inner = self.inner
        while isinstance(inner, Wrapper):
            remedy = "Wrap robust in private."
            rule = "must not be private, whose noise is added to updates before they are sent"
            fl.require(not isinstance(inner, Private), "inner", rule, type(inner).__name__, remedy)
            inner = inner.inner
        n, least = sizes.cohort, sizes.malicious
        f, most = some_of(self.liars, n), self._most(n)
        rule = f"must be at most {most / n:.3g} ({most} of the {n} updates of a round) with rule={self.rule}"
        rule += f" and bucket={self.bucket}" if self.bucket > 1 else ""
        fl.require(f <= most, "liars", rule, self.liars, "Lower it, or train more clients in a round.")
        rule = f"must be at least {least / n:.3g}, as {least} of the {n} clients of a round are malicious"
        remedy = "Raise it, or lower clients.malicious.share."
        fl.require(least <= f, "liars", rule, self.liars, remedy)

    def _most(self, n: int) -> int:
        """The largest f for n updates: 2 f + 2 < b in Krum's rules, and 2 f < b in others, for b buckets."""
        buckets = -(-n // self.bucket)
        return max(0, (buckets - (3 if self.rule in ("krum", "multi_krum") else 1)) // 2)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = super().init(task, rng, before)
        one = torch.zeros(1, dtype=torch.int64, device=task.device)
        names = self._sent(task, state, one, self.inner.start(task, state, one))
        moved = {f"robust.{n}": torch.zeros_like(state.shared[n]) for n in names}
        return state._replace(server={**state.server, **(moved if self.rule == "centered_clipping" else {})})

    def _sent(self, task: Task, state: State, clients: Tensor, local: Local) -> Tree:
        """The leaves [C, ...] that clients send, by name; as received for clients that do not send them.

        Raises:
            ConfigError: there are none, or the server does not average one of them as a whole.
        """
        up = self.inner.traffic(task, state, clients).up
        trained, others = fl.sent_leaves(local, up)
        shared = {n: leaf for n, leaf in state.shared.items() if n in trained and leaf.shape == trained[n].shape[1:]}
        exchanged(local, shared, "robust")
        if other := sorted({*trained, *others} - shared.keys()):
            raise ConfigError(
                f"robust acts on trained leaves that are averaged, but {type(self.inner).__name__} also sends "
                f"{', '.join(other)}. Wrap a method that sends nothing else, such as promptfl."
            )
        rows = {}
        for name, leaf in trained.items():
            count = up[name if name in up else name.split(".")[0]]
            sends = _by_row(count > 0, leaf) if isinstance(count, Tensor) else None
            rows[name] = leaf if sends is None else torch.where(sends, leaf, shared[name])
        return rows

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        before = self.inner_state(state)
        rows = self._sent(task, before, clients, local)
        centre = {name: before.shared[name] + state.server.get(f"robust.{name}", 0) for name in rows}
        moves = self._robust(task, clients, {name: leaf - centre[name] for name, leaf in rows.items()})
        robust = {name: (centre[name] + move).expand_as(rows[name]) for name, move in moves.items()}
        with fl.in_place(False):  # the second merge starts from the same state
            agreed = self.inner.merge(task, before, clients, local._replace(params={**local.params, **robust}))
        kept = self.inner.merge(task, before, clients, local) if before.personal or before.server else agreed
        moments = {name: leaf for name, leaf in agreed.server.items() if _extends(name, leaf, before.shared)}
        server = {**kept.server, **moments}
        if self.rule == "centered_clipping":
            server |= {f"robust.{name}": agreed.shared[name] - before.shared[name] for name in rows}
        return State(agreed.shared, kept.personal, server)

    def _robust(self, task: Task, clients: Tensor, moves: Tree) -> Tree:
        """Robust updates of leaves [C, ...]: [1, ...] where one replaces all, else [C, ...]."""
        share = self._buckets(task, clients)
        f = min(some_of(self.liars, len(clients)), self._most(len(clients)))
        if self.rule in ("median", "trimmed_mean"):
            cut = f if self.rule == "trimmed_mean" else (len(share) - 1) // 2
            means = moves if self.bucket == 1 else {name: _mixed(share, move) for name, move in moves.items()}
            return {name: trimmed_mean(rows, cut)[None] for name, rows in means.items()}
        flat = (move.flatten(1).double() for move in moves.values())
        products = share @ torch.stack([rows @ rows.T for rows in flat]).sum(0) @ share.T
        together = (share > 0).double()  # [b, C]
        if self.rule in ("norm_bound", "centered_clipping"):
            weight = together.T * shortened(products, self.bound) @ share
        elif self.rule == "geometric_median":
            weight = geometric_median(products, together @ task.size[clients].double())[None] @ share
        else:
            weight = krum(products, f, 1 if self.rule == "krum" else len(share) - f)[None] @ share
        return {name: _mixed(weight, move) for name, move in moves.items()}

    def _buckets(self, task: Task, clients: Tensor) -> Tensor:
        """[b, C] shares of the updates in each of the averages to which the rule applies, in the order of clients' ids
        or at random."""
        n, order = len(clients), clients.argsort()
        if self.bucket > 1:
            order = order[torch.randperm(n, generator=task.rng("buckets")).to(clients.device)]
        member = F.one_hot(torch.arange(n, device=clients.device) // self.bucket, -(-n // self.bucket)).T.double()
        return (member / member.sum(1, keepdim=True))[:, order.argsort()]


def trimmed_mean(rows: Tensor, cut: int) -> Tensor:
    """[n, ...] -> [...]: the mean of every number without its `cut` smallest and largest values."""
    return rows.movedim(0, -1).contiguous().sort(-1).values[..., cut : len(rows) - cut].mean(-1)


def krum(products: Tensor, f: int, m: int) -> Tensor:
    """[n] shares of the updates in the mean of the m that Krum prefers, from their inner products [n, n]."""
    away = _distances(products).fill_diagonal_(torch.inf)
    score = away.sort(1).values[:, : len(away) - f - 2].sum(1)
    return torch.zeros_like(score).index_fill(0, score.argsort(stable=True)[:m], 1 / m)


def geometric_median(products: Tensor, weight: Tensor) -> Tensor:
    """[n] shares of the updates in their geometric median with weights [n], from their inner products [n, n]."""
    away = _distances(products)
    weight = torch.where(weight.any(), weight, 1)
    share = weight / weight.sum()
    for _ in range(_STEPS):
        mean = away @ share
        square = mean - (share * mean).sum() / 2  # squared distances from the weighted mean of the updates
        share = weight / square.clamp(min=_SMOOTH**2).sqrt()
        share = share / share.sum()
    return share


def shortened(products: Tensor, bound: float) -> Tensor:
    """[n] factors that shorten updates to `bound` times their median length, from their inner products [n, n]."""
    length = products.diagonal().clamp(min=0).sqrt()
    limit = bound * trimmed_mean(length, (len(length) - 1) // 2)
    return (limit / length).nan_to_num(nan=1.0).clamp(max=1)  # of inf times 0, or of no length


def _distances(products: Tensor) -> Tensor:
    """[n, n] squared distances of updates from their inner products [n, n]."""
    square = products.diagonal()
    away = (square[:, None] + square - products - products.T).clamp(min=0)
    return (away + away.T) / 2  # equal to the bit, as equal sums are chosen from by ids


def _mixed(weight: Tensor, move: Tensor) -> Tensor:
    """[m, C] weights of rows [C, ...] -> [m, ...]"""
    return torch.tensordot(weight.to(move.dtype), move, dims=1)


def _by_row(values: Tensor, like: Tensor) -> Tensor:
    """[C] -> [C, 1, ...], with as many axes as `like`."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _extends(name: str, leaf: Tensor, shared: Tree) -> bool:
    """True if a leaf of the server has the name of a shared leaf behind a dot, and its shape, as moments have."""
    return any(name.endswith(f".{n}") and leaf.shape == other.shape for n, other in shared.items())
