"""FedSEPT: averaged prompt experts in a public subspace under DP-SGD, private residuals, a private gate over logits.

Wang, Li, Guo, Jia, Zhang, Sun, Zhang, Tong, Zheng: Towards Privacy-Preserving Federated Prompt Tuning under Data
Heterogeneity: A Subspace-Decomposed Expert Approach, ACM MM 2026. Official code: https://github.com/yuCoryx/FedSEPT,
d2fc0a4, which is followed where the paper is ambiguous. It has one residual for all experts (`residual=released`). Its
gate attends from a query to the image feature only, a single token that always has the weight 1, so query, key and
number of heads have no effect and are left out. Not offered: the gate's dropout of 0.1, its exemption from weight
decay, and the weight λ_gate = 10, which its manual mentions and the code does not use.

Its accounting is not valid: residuals and gates are trained on the same images without noise, so one image changes the
gradients of all others in later steps. `clip` and `noise` are those of the paper, to show their effect; no ε is proven.
For a proven ε, wrap the method: the study `fedsept_dp` clips and noises the change of A in a round, per client, not per
image.

Compared step by step with the released code by `fpl-tune parity`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Traffic, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import mapped, new_layers
from fpl_tune.methods._network import new_norms, normed
from fpl_tune.methods._noise import new_keys, normal


@fl.dataclass
class FedSEPT(FederatedAveraging):
    """Mixes the logits of M prompt experts by a personal gate.

    Logits are Σ_m π_m(f) · s ⟨f, g(A_m B + R_m)⟩:
    - A_m [l, r] is expert m within a subspace. The server averages it.
    - B [r, d] is the basis of the subspace, N(0, 0.02²). It is drawn once, and is the same for all.
    - R_m [l, d] is a personal residual. It starts at zero.
    - π(f) [M] is the personal gate.

    The loss is cross-entropy + λ · mean of cos²(A_m, A_n) over m ≠ n.

    experts: M, >= 1. With 1 there is neither gate nor λ term: with `rank` d, it is a shared context plus a private one.
    rank: r, >= 1, at most the width of a context token. A_m alone moves a context within r directions.
    n_ctx: l, number of context tokens, >= 1.
    lam: λ, >= 0; with 0, experts may become similar. Random experts are nearly orthogonal, and the term keeps them so.
    gate: π = softmax(W h + b). `attention`: h = LayerNorm(W_o (W_v f + b_v) + b_o), as in the code; `linear`: h = f.
    residual: one for `each` expert, or one for all, as in the `released` code.
    clip: largest norm of the gradient of one image's loss, λ term included, to all A_m together, > 0; inf: no clipping.
        A finite clip costs a backward pass for every image of a batch.
    noise: z, >= 0. The sum of the clipped gradients receives noise z · clip · N(0, 1) in every number, before it is
        divided by the number of images. It needs a finite clip. In the paper, z is what an accountant finds for ε = 1
        at δ = 1e-5 and clip = 1.
    """

    leaf_groups = (fl.Group("gate", "the gate, which the code trains at the rate of all"),)
    experts: fl.AtLeastOne = 4
    rank: fl.AtLeastOne = 16
    n_ctx: fl.AtLeastOne = 16
    lam: fl.Weight = 10.0
    gate: Literal["attention", "linear"] = "attention"
    residual: Literal["each", "released"] = "each"
    clip: fl.Positive = math.inf
    noise: fl.Weight = 0.0

    def __post_init__(self) -> None:
        finite = math.isfinite(self.clip) or self.noise == 0
        fl.require(finite, "clip", "must be finite where noise is not 0", self.clip, "Noise is scaled to the clip.")

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = f"must be at most the width of a context token, {sizes.text_width}"
        fl.require(self.rank <= sizes.text_width, "rank", rule, self.rank)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        basis = fl.new_context(task, self.rank, rng)
        a = 0.02 * torch.randn(self.experts, self.n_ctx, self.rank, generator=rng).to(basis)
        each = self.experts if self.residual == "each" else 1
        own: Tree = {"residual": basis.new_zeros(each, self.n_ctx, task.text_width)}
        if self.experts > 1:
            if self.gate == "attention":
                own |= new_layers(task, rng, dict.fromkeys(("gate.v", "gate.o"), (task.embed_dim, task.embed_dim)))
                own |= {f"gate.{name}": leaf for name, leaf in new_norms(task, route=task.embed_dim).items()}
            own["gate.weight"] = 0.01 * torch.randn(self.experts, task.embed_dim, generator=rng).to(basis)
            own["gate.bias"] = basis.new_zeros(self.experts)
        personal = {name: fl.replicate(leaf, task.n_clients) for name, leaf in own.items()}
        return State({"a": a, "basis": basis}, personal, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = self.deploy(task, state, clients)
        if self.noise:
            local.buffers.update(new_keys(task, clients))
        return local

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        leaves = super().start(task, state, clients).params
        return Local({n: leaf for n, leaf in leaves.items() if n != "basis"}, {"basis": leaves["basis"]})

    def contexts(self, local: Local) -> Tensor:
        """[C, M, l, d] contexts of the experts."""
        return local.params["a"] @ local.buffers["basis"][:, None] + local.params["residual"]

    def shares(self, leaf: Tree, image: Tensor) -> Tensor:
        """[C, B, M] π of unit features [C, B, D]."""
        if self.experts == 1:
            return torch.ones_like(image[..., :1])
        if self.gate == "attention":
            inner = {name.removeprefix("gate."): rows for name, rows in leaf.items() if name.startswith("gate.norm")}
            image = normed(inner, "route", mapped(leaf, "gate.o", mapped(leaf, "gate.v", image)))
        return mapped(leaf, "gate", image).softmax(-1)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image, text = fl.normalize(batch.image), task.encode_prompts(self.contexts(local))  # [C, M, K, D]
        scores = torch.einsum("cbd,cmkd->cbmk", image, text)
        return task.scale * torch.einsum("cbm,cbmk->cbk", self.shares(local.params, image), scores)

    def alike(self, a: Tensor) -> Tensor:
        """[C] mean cos² of two experts' A [C, M, l, r]; 0 of one expert."""
        unit = fl.normalize(a.flatten(2))
        square = (unit @ unit.mT).square().sum((1, 2)) - unit.square().sum(-1).square().sum(1)
        return square / max(1, self.experts * (self.experts - 1))

    def _losses(self, task: Task, local: Local, batch: Batch) -> Tensor:
        """[C, B] losses of images, each with the λ term."""
        fit = F.cross_entropy(self.logits(task, local, batch).mT, batch.label, reduction="none")
        return fit + self.lam * self.alike(local.params["a"])[:, None]

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if math.isinf(self.clip):
            return fl.mean_over(self._losses(task, local, batch), batch.mask), local.buffers
        with torch.enable_grad():
            leaves = fl.fresh_leaves(local.params)
            losses = self._losses(task, local._replace(params=leaves), batch)
            value = fl.mean_over(losses, batch.mask)
            private = {name: leaf for name, leaf in leaves.items() if name != "a"}
            gradients = torch.autograd.grad(value.sum(), list(private.values()), retain_graph=True)
            moves = dict(zip(private, gradients, strict=True))
            clipped = torch.zeros_like(leaves["a"])
            for column, here in zip(losses.unbind(1), batch.mask.unbind(1), strict=True):
                (one,) = torch.autograd.grad(column.sum(), [leaves["a"]], retain_graph=True)
                (one,) = fl.clipped(self.clip, [one])
                clipped = clipped + one * here.view(-1, 1, 1, 1)
        buffers = local.buffers
        if self.noise:
            drawn = normal(buffers, 0, *clipped.shape[1:]).to(clipped)
            clipped = clipped + self.noise * self.clip * drawn
            buffers = {**buffers, "drawn": buffers["drawn"] + 1}
        moves["a"] = clipped / batch.mask.sum(1).clamp(min=1).view(-1, 1, 1, 1)
        return fl.with_gradient(value, local.params, moves), buffers

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        learned = state._replace(shared={"a": state.shared["a"]})
        merged = super().merge(task, learned, clients, local)
        return merged._replace(shared={**merged.shared, "basis": state.shared["basis"]})

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """B follows from a seed, and is not sent."""
        sent = fl.count(a=state.shared["a"])
        return Traffic(up=sent, down=sent)
