"""pFedMoAP: every client mixes its own prompt with prompts of other clients for each image by a personal gate.

Luo, Chen, Wu: Mixture of Experts Made Personalized: Federated Prompt Learning for Vision-Language Models, ICLR 2025,
https://arxiv.org/abs/2410.10114. Where the released code (ljaiverson/pFedMoAP, a481de3) differs from the paper, the
paper is followed, and the code's form is an option: experts are the nearest in the pool of the round before. Where the
paper is ambiguous, the settings of the code are kept, with which the printed results were made: an attention scale of
10 instead of 1/√d_head, pooling by strides, dot products instead of cosines. Experts, gates and momentum that the code
takes over from clients earlier in the same round are not offered, since clients train in parallel.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, FiniteFloat
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic

_ELEMENTS = 1 << 24  # numbers of the largest tensor in memory: 64 MB in float32
_GATE = ("gate.weight", "gate.bias")
_WIDTH = 128
"""Width of the gate in the paper."""

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of a number
_FACTORS = -7046029254386353131, -4658895280553007687, -7723592293110705685  # odd and 64 bits long, as of any hash

_FEW = 1_000
"""Number of clients up to which all distances are computed, which is faster than a device sync to select clients."""


class Experts(NamedTuple):
    """The experts of each client for all its images. The linear gate has features in place of keys and values."""

    key: Tensor
    """[C, E, K, h, x]"""
    value: Tensor
    """[C, E, K, h, x]"""
    weights: Sequence[Tensor]
    """[C, G, G] of query and output."""
    biases: Sequence[Tensor]
    """[C, 1, G] of query and output."""


@fl.dataclass
class PFedMoAP(Method):
    """One prompt averaged as in PromptFL; a personal gate over the client's prompt and the prompts of E-1 others.

    Logits are s · ⟨pool(f), MoE⟩ + λ · s · cos(f, T_local) (Eq. 10). A client without experts, in its first round or
    if it is the only one, trains and is evaluated as in PromptFL, without the gate.

    lam: λ, weight of the local prompt's own logits, >= 0 (Fig. 4).
    experts: E = K + 1, the local prompt included, 2 to the number of clients (Table 8).
    d_gating: width of the gate's attention; divides the width D of the embedding, which is pooled to it (Table 9).
        None: the paper's 128 where that divides D, else D, without pooling.
    heads: of the attention, divides d_gating.
    attention_scale: factor of the attention's dot products, or "sqrt" for 1/√(d_gating / heads).
    selection: `nearest` in l2 distance to the client's entry in the pool (section 3.2), or `random`: the first in
        one order drawn at the start, as the released code does.
    experts_from: origin of the E-1 other prompts. `others`: other clients, as published, or a control, which shows how
        much of a gain is due to the gate's own parameters: `own` repeats the client's entry in the pool, `hand` the
        hand-written prompt, `random` has unit vectors in place of text features. Clients start every round from one
        average, so their prompts may stay so close that `others` is like `own`.
    gate: `attention`, or `linear` weights from the image alone, softmax(W f + b), mixing features of full width and
        compared by cosine (Table 7).
    aggregate_gate: the gates are averaged by the server too, and are not personal (Table 7).
    n_ctx: number of context tokens, >= 1.
    pooling: `stride` keeps every (D / d_gating)-th number, as the code does; `mean` averages as many neighbours. The
        paper says pooling.
    similarity: similarity of pooled image and mixed text: `dot` product, as in the code, or `cosine`, which the paper
        gives as an example. The linear gate always has the cosine.

    Example:
        >>> import torch
        >>> from fpl_tune.testing import play, toy_task
        >>> method, task = PFedMoAP(n_ctx=4, experts=3), toy_task()
        >>> _, (state,) = play(method, [task], cohorts=[(0, 1)])  # before and after a round of two clients
        >>> state.server["entered"]  # their prompts are in the pool
        tensor([ True,  True, False, False])
        >>> received = method.traffic(task, state, torch.tensor([0, 3])).down["experts"]
        >>> received // (4 * task.text_width)  # the other's prompt, or none in a client's first round
        tensor([1, 0])
    """

    leaf_groups = (fl.Group("gate", "the gate, at section 4.1's rate", 0.01),)
    lam: fl.Weight = 0.5
    experts: Annotated[int, Field(ge=2)] = 10
    d_gating: int | None = None
    heads: fl.AtLeastOne = 8
    attention_scale: FiniteFloat | Literal["sqrt"] = 10.0
    selection: Literal["nearest", "random"] = "nearest"
    experts_from: Literal["others", "own", "hand", "random"] = "others"
    gate: Literal["attention", "linear"] = "attention"
    aggregate_gate: bool = False
    n_ctx: fl.AtLeastOne = 16
    pooling: Literal["stride", "mean"] = "stride"
    similarity: Literal["dot", "cosine"] = "dot"

    def __post_init__(self) -> None:
        fits = self.d_gating is None or (self.d_gating >= 1 and self.d_gating % self.heads == 0)
        fl.require(fits, "d_gating", f"must be a multiple of method.heads = {self.heads}", self.d_gating)

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        n, width = sizes.n_clients, sizes.embed_dim
        fl.require(self.experts <= n, "experts", f"must be at most the number of clients, {n}", self.experts)
        fits = self.experts_from != "random" or sizes.same_classes
        fl.require(fits, "experts_from", "must name prompts where new classes are tested", self.experts_from)
        if self.gate == "attention":
            gating, rule = self._width(width), f"must divide the width of the embedding, {width}"
            remedy = f"Set method.d_gating={width}, or to another divisor."
            fl.require(width % gating == 0, "d_gating", rule, gating, remedy)
            rule, heads = f"must divide {gating}, the width of the gate", math.gcd(self.heads, gating)
            fl.require(gating % self.heads == 0, "heads", rule, self.heads, f"Set method.heads={heads}.")

    def _width(self, embed_dim: int) -> int:
        """Width of the gate's attention."""
        return self.d_gating or (_WIDTH if embed_dim % _WIDTH == 0 else embed_dim)

    # -- state --------------------------------------------------------------------------------------------------

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        n, prompt = task.n_clients, fl.new_context(task, self.n_ctx, rng)
        width = self._width(task.embed_dim)
        shape = (4, width, width) if self.gate == "attention" else (self.experts, task.embed_dim)
        gate = {
            name: ((2 * torch.rand(size, generator=rng) - 1) / math.sqrt(shape[-1])).to(prompt)
            for name, size in zip(_GATE, (shape, shape[:-1]), strict=True)
        }
        personal = {
            "own": fl.replicate(prompt, n),
            "experts": fl.replicate(prompt.new_zeros(self.experts - 1, *prompt.shape), n),
            "usable": torch.zeros(n, self.experts - 1, dtype=torch.bool, device=task.device),
        }
        server = {
            "pool": fl.replicate(prompt, n),
            "entered": torch.zeros(n, dtype=torch.bool, device=task.device),
            "order": torch.randperm(n, generator=rng).to(task.device),
        }
        if self.experts_from == "random":
            drawn = torch.randn(self.experts - 1, task.n_classes, task.embed_dim, generator=rng)
            server["random"] = fl.normalize(drawn).to(prompt)
        if self.aggregate_gate:
            return State({"prompt": prompt, **gate}, personal, server)
        return State({"prompt": prompt}, {**personal, **{k: fl.replicate(v, n) for k, v in gate.items()}}, server)

    def _local(
        self, task: Task, state: State, clients: Tensor, prompt: Tensor, experts: Tensor, usable: Tensor
    ) -> Local:
        """The leaves of clients with prompts [C, l, d], their gates, and experts [C, E-1, l, d], each encoded once."""
        if self.aggregate_gate:
            gate = {name: fl.replicate(state.shared[name], len(clients)) for name in _GATE}
        else:
            gate = {name: state.personal[name][clients] for name in _GATE}
        if self.experts_from in ("hand", "random"):
            text = state.server["random"] if self.experts_from == "random" else task.hand_text
            features = self._pooled(text).expand(*usable.shape, -1, -1)  # [C, E-1, K, G]
        else:
            distinct, at = experts.flatten(2).flatten(0, 1), torch.arange(usable.numel(), device=usable.device)
            if len(clients) > 1:  # who share experts; those of one client are the prompts of different others
                distinct, at = distinct_rows(distinct)
            text = task.encode_prompts(distinct.unflatten(1, experts.shape[2:]))  # [U, K, D]
            features = self._pooled(text)[at].unflatten(0, experts.shape[:2])
        local_too = F.pad(usable, (1, 0), value=True)
        hidden = torch.where(local_too, 0.0, -torch.inf).to(text.dtype)
        gated = usable.any(1).view(-1, 1, 1)
        fixed = {
            "experts": experts,
            "usable": usable,
            "features": features,
            "hidden": hidden[:, None, None, :, None],
            "weight.own": text.new_full(gated.shape, self.lam).where(gated, 1.0),  # [C, 1, 1], of the logits
            "weight.mixed": gated.to(text.dtype) * task.scale,
        }
        return Local({"prompt": prompt, **gate}, fixed)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        chosen, usable = choose_experts(state, clients, self.experts - 1, self.selection)
        if self.experts_from == "own":
            chosen = clients.unsqueeze(1).expand_as(chosen)
        used = usable[..., None, None] & (self.experts_from in ("others", "own"))
        prompt = fl.replicate(state.shared["prompt"], len(clients))
        experts = torch.where(used, state.server["pool"][chosen], 0)
        return self._local(task, state, clients, prompt, experts, usable)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        """Each client's prompt after its last local training; the global prompt for those who never trained."""
        trained = state.server["entered"][clients].view(-1, 1, 1)
        prompt = torch.where(trained, state.personal["own"][clients], state.shared["prompt"])
        experts, usable = state.personal["experts"][clients], state.personal["usable"][clients]
        return self._local(task, state, clients, prompt, experts, usable)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        prompt, usable = local.params["prompt"], local.buffers["usable"]
        shared = {"prompt": fl.average(prompt, task.size[clients])}  # Eq. 6
        latest = {"own": prompt, "experts": local.buffers["experts"], "usable": usable}
        personal = {name: fl.scatter_rows(state.personal[name], clients, rows) for name, rows in latest.items()}
        gated = usable.any(1)
        for name in _GATE:  # changes by weight decay alone are not kept
            leaf = local.params[name]
            if self.aggregate_gate:
                weight = task.size[clients] * gated
                shared[name] = torch.where(weight.any(), fl.average(leaf, weight), state.shared[name])
            else:
                old = state.personal[name]
                moved = gated.view(-1, *([1] * (leaf.ndim - 1)))
                personal[name] = fl.scatter_rows(old, clients, torch.where(moved, leaf, old[clients]))
        pool = fl.scatter_rows(state.server["pool"], clients, prompt)
        entered = state.server["entered"].index_fill(0, clients, True)
        return State(shared, personal, {**state.server, "pool": pool, "entered": entered})  # Eq. 7

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """Clients receive the prompts of their experts, except for controls, whose experts are not sent."""
        size = state.shared["prompt"].numel()
        _, usable = choose_experts(state, clients, self.experts - 1, self.selection)
        up: dict[str, int | Tensor] = {"prompt": size}
        sent = size if self.experts_from == "others" else 0
        down: dict[str, int | Tensor] = {"prompt": size, "experts": usable.sum(1) * sent}
        if self.aggregate_gate:
            gate = sum(state.shared[name].numel() for name in _GATE)
            up["gate"], down["gate"] = usable.any(1).long() * gate, gate
        return Traffic(up, down)

    # -- forward ------------------------------------------------------------------------------------------------

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image, text = fl.normalize(batch.image), task.encode_prompts(local.params["prompt"])
        own = task.scale * torch.einsum("cbd,ckd->cbk", image, text)
        experts = self._experts(local, text)
        wide = max(self.experts * self.heads, self._width(task.embed_dim) if self.similarity == "cosine" else 1)
        rows = max(1, _ELEMENTS // (len(text) * text.shape[1] * wide))
        parts = [self._mixed(local, experts, images) for images in image.split(rows, 1)]
        mixed = torch.cat(parts, 1) if len(parts) > 1 else parts[0]  # a copy is a launch
        return (local.buffers["weight.own"] * own).addcmul(local.buffers["weight.mixed"], mixed)

    def attention(self, local: Local, image: Tensor, text: Tensor) -> Tensor:
        """Weights [C, h, B, E, K] of the experts, the local one first, which sum to one over E.

        The arguments are unit images [C, B, D] and the local prompt's text features [C, K, D]. The linear gate has
        h = K = 1.
        """
        return self._attention(local, self._experts(local, text), image)

    def _experts(self, local: Local, text: Tensor) -> Experts:
        """The experts for all images of a client, the local one first."""
        features = torch.cat([self._pooled(text).unsqueeze(1), local.buffers["features"]], 1)
        weight, bias = local.params["gate.weight"], local.params["gate.bias"]
        if self.gate == "linear":
            return Experts(features, features, [weight], [bias])
        weights, biases = (leaf.split((1, 2, 1), 1) for leaf in (weight, bias))  # of query, of key and value, of output
        both = features.flatten(1, 2) @ weights[1].flatten(1, 2).mT + biases[1].flatten(1).unsqueeze(1)
        key, value = both.unflatten(1, features.shape[1:3]).unflatten(-1, (2, self.heads, -1)).unbind(3)
        return Experts(key, value, [weights[0].squeeze(1), weights[2].squeeze(1)], [biases[0], biases[2]])

    def _attention(self, local: Local, experts: Experts, image: Tensor) -> Tensor:
        if self.gate == "linear":
            scores = (image @ experts.weights[0].mT + experts.biases[0].unsqueeze(1))[:, None, :, :, None]
        else:
            query = self._heads(self._pooled(image) @ experts.weights[0].mT + experts.biases[0])
            sharp = query.shape[-1] ** -0.5 if self.attention_scale == "sqrt" else self.attention_scale
            scores = torch.einsum("cbhx,cekhx->chbek", sharp * query, experts.key)
        return (scores + local.buffers["hidden"]).softmax(3)

    def diagnose(self, task: Task, local: Local, batch: Batch) -> dict[str, Tensor]:
        """[C, E] mean attention on the local expert (first), and on the others in descending order (Fig. 6).

        The weights of an image are averaged over heads and classes and sorted before images are averaged.
        """
        text = task.encode_prompts(local.params["prompt"])
        weights = self.attention(local, fl.normalize(batch.image), text).mean((1, 4))
        others = weights[..., 1:].sort(dim=-1, descending=True).values
        shares = [fl.mean_over(w, batch.mask) for w in (weights[..., 0], *others.unbind(-1))]
        return {"attention by expert, the local one first": torch.stack(shares, 1)}

    def _mixed(self, local: Local, experts: Experts, image: Tensor) -> Tensor:
        """[C, B, K] similarities of unit images [C, B, D] and the mixture of the experts (Eq. 11)."""
        share, value = self._attention(local, experts, image), experts.value
        if self.gate == "linear":
            weight = share[:, 0, :, :, 0]  # [C, B, E]
            dots = torch.einsum("cbd,cekd->cbek", image, value)
            alike = torch.einsum("cekd,cfkd->ckef", value, value)
            square = torch.einsum("cbe,ckef,cbf->cbk", weight, alike, weight)
            return torch.einsum("cbe,cbek->cbk", weight, dots) / square.clamp(min=1e-12).sqrt()
        weight, bias = experts.weights[1], experts.biases[1]
        image = self._pooled(image)
        if self.similarity == "cosine":
            mixed = torch.einsum("chbek,cekhx->cbkhx", share, value).flatten(-2)
            mixed = mixed @ weight.unsqueeze(1).mT + bias.unsqueeze(1)
            return torch.einsum("cbg,cbkg->cbk", fl.normalize(image), fl.normalize(mixed))
        # <image, W_O mix + b_O> = <W_O' image, mix> + <image, b_O>, so no mixed feature [C, B, K, G] is needed
        dots = torch.einsum("cbhx,cekhx->chbek", self._heads(image @ weight), value)
        return (share * dots).sum((1, 3)) + image @ bias.mT

    def _pooled(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., G] unit features after pooling; the linear gate uses them as they are."""
        if self.gate == "linear":
            return features
        width = self._width(features.shape[-1])
        parts = features.unflatten(-1, (width, -1))
        return parts[..., 0] if self.pooling == "stride" else parts.mean(-1)

    def _heads(self, features: Tensor) -> Tensor:
        return features.unflatten(-1, (self.heads, -1))


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of [N, n], and the index [N] of each row among them.

    `unique(dim=0)` sorts whole rows, which takes as long on a GPU as ten training steps. Here rows are compared by
    64-bit digests of their bits: a collision among a thousand different rows has a probability of 3e-14.
    """
    column = torch.arange(rows.shape[1], device=rows.device) * _FACTORS[0]
    digests = []
    for block in rows.view(_INTEGERS[rows.element_size()]).split(max(1, _ELEMENTS // rows.shape[1])):
        mixed = (block + column) * _FACTORS[1]
        digests.append(((mixed ^ (mixed >> 32)) * _FACTORS[2]).sum(1))  # all modulo 2^64
    distinct, at = torch.cat(digests).unique(return_inverse=True)
    one = torch.empty_like(distinct).scatter_(0, at, torch.arange(len(rows), device=rows.device))
    return rows[one], at


def choose_experts(state: State, clients: Tensor, n: int, selection: str) -> tuple[Tensor, Tensor]:
    """Ids [C, n] of the clients whose pool entries are experts of `clients`, and a mask [C, n] of those that exist.

    A client without its own entry has no experts, as distances are measured from it.
    """
    pool, entered, order = (state.server[name] for name in ("pool", "entered", "order"))
    if selection == "nearest":
        flat = pool.flatten(1)
        everybody = torch.arange(len(pool), device=pool.device)
        candidates = everybody if len(pool) <= _FEW else everybody[entered]
        apart = torch.cdist(flat[clients], flat[candidates], compute_mode="donot_use_mm_for_euclid_dist")
        rank = apart.new_full((len(clients), len(pool)), torch.inf).index_copy(1, candidates, apart)
    else:
        rank = order.to(pool.dtype).expand(len(clients), -1)
    others = torch.arange(len(pool), device=clients.device) != clients.unsqueeze(1)
    rank = torch.where(entered & others, rank, torch.inf)
    nearest, chosen = rank.sort(dim=1, stable=True)
    return chosen[:, :n], nearest[:, :n].isfinite() & entered[clients].unsqueeze(1)
