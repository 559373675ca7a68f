"""LoRA in the towers, federated: W + s · B A with different shared factors and averages.

By default FLoRA (Nguyen, Muñoz, Jannesari: FLoRA: Enhancing Vision-Language Models with Parameter-Efficient Federated
Learning, 2024, https://arxiv.org/abs/2404.15182). Official code: dphuongn/FLoRA, e6ce44c, whose scripts change the
output projection of attention in all text blocks; `towers` changes those of the image tower too, other layers are not
offered. Its optimiser is
`optim=` {name: adam, lr: 5e-5, betas: [0.9, 0.98], eps: 1e-6, weight_decay: 0.2}; in the code Adam's moments are kept
over rounds, here every round starts with new ones. Its average of factors is that of FedIT (Zhang et al.,
ICASSP 2024, https://arxiv.org/abs/2305.05644). Two other papers have that name: "FLoRA: Federated Fine-Tuning Large
Language Models with Heterogeneous Low-Rank Adaptations" (Wang et al., NeurIPS 2024, https://arxiv.org/abs/2409.05976),
which stacks the clients' factors and starts new ones, and "Flora: Low-Rank Adapters Are Secretly Gradient Compressors"
(Hao et al., ICML 2024, https://arxiv.org/abs/2402.03293), which has no clients.

FFA-LoRA: Sun et al., ICLR 2024, https://arxiv.org/abs/2403.12313. FedSA-LoRA: Guo et al., ICLR 2025,
https://arxiv.org/abs/2410.01463. FedEx-LoRA: Singhal et al., ACL 2025, https://arxiv.org/abs/2410.09432. FedRPCA:
Jhunjhunwala et al., 2025, https://arxiv.org/abs/2506.01194. LoRA-FAIR: Bian, Wang, Zhang, Xu, ICCV 2025,
https://arxiv.org/abs/2411.14961, whose Eq. 8 maximises the cosine with the exact product minus λ ‖ΔB‖ by SGD. Here ΔB
is the least-squares solution, which has a closed form, so λ has another scale than in the paper.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Adapter, Batch, Local, State, Task, Traffic, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import contrastive


@fl.dataclass
class FedLoRA(FederatedAveraging):
    """Adds s · B A x to the output projections W x of attention. A [J, d, r] starts normal, B [J, r, d] at zero.

    rank: r, >= 1.
    alpha: >= 0; 0 is zero-shot CLIP and trains nothing.
    towers: towers whose blocks are changed. With `image` and `both`, the image tower runs in every step; names of its
        leaves begin with `image.`.
    scaling: s. `alpha` as in the code; `alpha/rank` as in LoRA, so that one learning rate suits several ranks.
    objective: `ce`, cross-entropy over all classes, or the code's `contrastive`, symmetric InfoNCE between the images
        of a batch and their class sentences, where images of one class are each other's negatives.
    shared: the factors that clients exchange: `both`; `a`, while every client has its own B (FedSA-LoRA); `b`, while A
        stays at its random start, which all draw from one seed (FFA-LoRA).
    average: how the server averages over clients, by number of training images.
        `factors`: A and B separately, although the product of means is not the mean of products.
        `exact`: the difference to the product of means is added to W (FedEx-LoRA), so that the model is the mean of the
        clients' models, as after stacking. It needs `shared=both`.
        `fair`: B̄ moves to B̄ + ΔB, with ΔB at the least ‖mean(B A) - (B̄ + ΔB) Ā‖² + λ t ‖ΔB‖², where t is the mean of
        the squared singular values of Ā (LoRA-FAIR). It needs `shared=both`.
        `robust`: robust PCA splits the clients' moves, block by block and factor by factor, into a low-rank and a
        sparse part, and the server moves by mean(low rank) + β · mean(sparse) (FedRPCA).
    sparse: β of `robust`, >= 0; 1 is `factors`.
    penalty: λ of the least squares of `fair`, > 0, on another scale than in the paper. The larger, the closer to
        `factors`.
    """

    newer = ("towers", "shared", "average", "sparse", "penalty")

    rank: fl.AtLeastOne = 2
    alpha: fl.Weight = 32.0
    towers: Literal["text", "image", "both"] = "text"
    scaling: Literal["alpha", "alpha/rank"] = "alpha"
    objective: Literal["ce", "contrastive"] = "ce"
    shared: Literal["both", "a", "b"] = "both"
    average: Literal["factors", "exact", "fair", "robust"] = "factors"
    sparse: fl.Weight = 1.0
    penalty: fl.Positive = 0.01

    def __post_init__(self) -> None:
        fits = self.average in ("factors", "robust") or self.shared == "both"
        remedy = "The mean of one factor is exact already."
        fl.require(fits, "average", "must be factors or robust unless method.shared is both", self.average, remedy)
        fits = self.average == "robust" or self.sparse == 1
        fl.require(fits, "sparse", "must be 1 unless method.average is robust", self.sparse)
        fits = self.average == "fair" or self.penalty == 0.01
        fl.require(fits, "penalty", "must be 0.01 unless method.average is fair", self.penalty)

    @property
    def needs(self) -> Literal["pooled", "pixels"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "pooled" if self.towers == "text" else "pixels"

    @property
    def requires(self) -> tuple[fl.Requirement, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        needed: dict[str, fl.Requirement] = {"": "text_blocks", "image.": "vit"}
        return tuple(needed[prefix] for prefix in self._prefixes)

    @property
    def represents(self) -> Literal["images", "classes"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "classes" if self.towers == "text" else "images"

    @property
    def _prefixes(self) -> tuple[str, ...]:
        """Prefixes of the leaf names of each changed tower."""
        return {"text": ("",), "image": ("image.",), "both": ("", "image.")}[self.towers]

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        state = State({}, {}, {})
        for prefix in self._prefixes:
            blocks, width = task.n_text_blocks, task.text_width
            if prefix:
                blocks, width = task.n_vision_blocks or 0, task.vision_width or 0
            a = (torch.randn(blocks, width, self.rank, generator=rng) / self.rank**0.5).to(task.device, task.dtype)
            b = a.new_zeros(blocks, self.rank, width)
            (state.server if self.shared == "b" else state.shared)[f"{prefix}a"] = a
            if self.shared == "a":
                state.personal[f"{prefix}b"] = fl.replicate(b, task.n_clients)
            else:
                state.shared[f"{prefix}b"] = b
            if self.average == "exact":
                state.shared[f"{prefix}lacking"] = a.new_zeros(blocks, width, width)
        return state

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        params = super().start(task, state, clients).params
        lacking = {name: params.pop(name) for name in state.shared if name.endswith("lacking")}
        return Local(params, lacking | {name: fl.replicate(leaf, len(clients)) for name, leaf in state.server.items()})

    def _adapter(self, local: Local, prefix: str) -> Adapter:
        """The branches of one tower."""
        scale = self.alpha / (self.rank if self.scaling == "alpha/rank" else 1)
        leaves = {**local.params, **local.buffers}
        leaf = {"a": leaves[f"{prefix}a"], "b": scale * leaves[f"{prefix}b"]}
        if f"{prefix}lacking" in leaves:
            leaf["lacking"] = scale * leaves[f"{prefix}lacking"]
        return Adapter(_low_rank, leaf, place="attention")

    def _text(self, task: Task, local: Local) -> Tensor:
        """[C, K, D] unit features of the hand-written sentences under each client's text tower."""
        if self.towers == "image":
            return fl.replicate(task.hand_text, len(local.params["image.b"]))
        return fl.normalize(task.sentences([task.template], adapter=self._adapter(local, ""))[:, 0])

    def _image(self, task: Task, local: Local, image: Tensor) -> Tensor:
        """[C, B, D] features under each client's image tower."""
        if self.towers == "text":
            return image
        tokens = image.new_zeros(len(image), 0, task.vision_width or 0)
        return task.encode_images(image, tokens, adapter=self._adapter(local, "image."))[0]

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return self._text(task, local) if self.towers == "text" else self._image(task, local, image)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, self._image(task, local, batch.image), self._text(task, local))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        if self.objective == "ce":
            return fl.cross_entropy(self.logits(task, local, batch), batch), local.buffers
        text = self._text(task, local)
        own = text.gather(1, batch.label.unsqueeze(-1).expand(-1, -1, text.shape[-1]))
        image = fl.normalize(self._image(task, local, batch.image))
        return contrastive(task.scale * image @ own.mT, batch.mask), local.buffers

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        weight = self.weight(task, clients)
        before = {name: leaf for name, leaf in state.shared.items() if not name.endswith("lacking")}
        merged = super().merge(task, state._replace(shared=before), clients, local)
        shared = dict(merged.shared)
        if self.average == "robust":
            moves = {name: local.params[name] - leaf for name, leaf in before.items()}
            shared = {name: leaf + robust_mean(moves[name], weight, self.sparse) for name, leaf in before.items()}
        elif self.average != "factors":
            for prefix in self._prefixes:
                mean_a, mean_b = shared[f"{prefix}a"], shared[f"{prefix}b"]
                blocks = zip(local.params[f"{prefix}a"].unbind(1), local.params[f"{prefix}b"].unbind(1), strict=True)
                lacking = torch.stack([fl.average(a @ b, weight) for a, b in blocks]) - mean_a @ mean_b
                if self.average == "exact":
                    shared[f"{prefix}lacking"] = state.shared[f"{prefix}lacking"] + lacking
                else:
                    shared[f"{prefix}b"] = mean_b + correction(mean_a, lacking, self.penalty)
        return merged._replace(shared=shared)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        down = fl.count(**state.shared)
        return Traffic(up={name: sent for name, sent in down.items() if not name.endswith("lacking")}, down=down)


def _low_rank(leaf: Tree, x: Tensor) -> Tensor:
    """Mixed values [C, n, d] -> the addition to their projection [C, n, d]."""
    added = x @ leaf["a"] @ leaf["b"]
    return added + x @ leaf["lacking"] if "lacking" in leaf else added


def correction(a: Tensor, lacking: Tensor, penalty: float) -> Tensor:
    """ΔB [J, r, d] of least ‖lacking - A ΔB‖² + penalty · t ‖ΔB‖², t the mean eigenvalue of Aᵀ A; A [J, d, r]."""
    gram = a.mT @ a
    ridge = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * torch.eye(a.shape[-1], device=a.device)
    return torch.linalg.solve_ex(gram + penalty * ridge, a.mT @ lacking).result


def robust_mean(moves: Tensor, weight: Tensor, sparse: float) -> Tensor:
    """[C, J, ...] -> [J, ...]: mean of the low-rank part of the clients' moves + `sparse` · mean of the rest.

    Each client is a column of one matrix per block. It runs on the CPU, as decompositions would synchronize with a GPU
    at every step.
    """
    columns = moves.flatten(2).movedim(0, -1).double().cpu()
    low = low_rank_part(columns).movedim(-1, 0).to(moves).view_as(moves)
    return fl.average(low, weight) + sparse * fl.average(moves - low, weight)


def low_rank_part(matrix: Tensor, tolerance: float = 1e-7, iterations: int = 10_000) -> Tensor:
    """L [..., m, n] of min ‖L‖_* + λ ‖S‖_1 with L + S = M, λ = 1/√max(m, n).

    Candès, Li, Ma, Wright: Robust Principal Component Analysis?, J. ACM 2011, Algorithm 1: alternating directions with
    μ = m n / (4 ‖M‖_1), until ‖M - L - S‖ is at most `tolerance` ‖M‖ in every matrix. Singular values come from the
    n x n Gram matrix, as there are few clients.
    """
    m, n = matrix.shape[-2:]
    tiny = torch.finfo(matrix.dtype).tiny
    step = 4 * matrix.abs().sum((-2, -1), keepdim=True) / (m * n)  # 1 / μ
    low, rest, dual, solution = (torch.zeros_like(matrix) for _ in range(4))
    size = tolerance * matrix.norm(dim=(-2, -1), keepdim=True)
    over = torch.zeros_like(size, dtype=torch.bool)  # converged matrices no longer change
    for _ in range(iterations):
        free = matrix - rest + dual
        squares, vectors = torch.linalg.eigh(free.mT @ free)
        factor = (1 - step.squeeze(-1) / squares.clamp(min=tiny).sqrt()).clamp(min=0)
        low = free @ (vectors * factor.unsqueeze(-2)) @ vectors.mT
        away = matrix - low + dual
        rest = away.sign() * (away.abs() - step / max(m, n) ** 0.5).clamp(min=0)
        lacking = matrix - low - rest
        solution = torch.where(over, solution, low)
        over = over | (lacking.norm(dim=(-2, -1), keepdim=True) <= size)
        if over.all():
            break
        dual = dual + lacking
    return solution
