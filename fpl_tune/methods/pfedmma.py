"""pFedMMA: adapters in the last blocks of both towers; the layer that towers share is also shared among clients.

Ghiasvand, Alizadeh, Pedarsani: pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for Vision-Language
Models, ICLR 2026, https://arxiv.org/abs/2507.05394. Official code: sajjad-ucsb/pFedMMA, 84197bb, whose adapters are
MMA's (Yang et al., CVPR 2024). Its released evaluation computes text features once, for the first client after the
first round, and uses them for all clients in all later rounds: `text_features=first`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Adapter, Batch, Local, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import mapped


@fl.dataclass
class PFedMMA(FederatedAveraging):
    """Block output + α · Up(relu(S(relu(Down(LN₁ x))))) with personal Down and Up for each tower, and shared S.

    A block of the text tower and the block of the image tower with the same distance to the end share one S.

    blocks: number of last blocks of each tower with an adapter, >= 1; all blocks of a tower with fewer.
    rank: width of S, >= 1.
    alpha: α >= 0; 0 is zero-shot CLIP. Up does not start at zero: with a large α the start is far from CLIP.
    gradient: `scaled`: gradients of adapters are multiplied by 1/α, as in the code, without which training is too slow
        with its α of 0.001 (optim.weight_decay is not scaled); `true`: gradients are not changed.
    text_features: of the evaluation. `own`: each client's; `first`: the released defect (see above).
    """

    needs = "pixels"
    requires = ("vit", "text_blocks")
    blocks: fl.AtLeastOne = 8
    rank: fl.AtLeastOne = 32
    alpha: fl.Weight = 0.001
    gradient: Literal["scaled", "true"] = "scaled"
    text_features: Literal["own", "first"] = "own"

    @property
    def image_blocks(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.blocks

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        n, rank = min(self.blocks, task.n_text_blocks, task.n_vision_blocks or 0), self.rank

        def layer(name: str, n_in: int, n_out: int) -> Tree:
            """Kaiming's normal initialisation by fan-out, in every block."""
            weight = (2 / n_out) ** 0.5 * torch.randn(n, n_out, n_in, generator=rng)
            bias = torch.zeros(n, n_out, device=task.device, dtype=task.dtype)
            return {f"{name}.weight": weight.to(bias), f"{name}.bias": bias}

        shared, own = layer("s", rank, rank), {}
        for tower, width in (("text", task.text_width), ("image", task.vision_width or 0)):
            own |= {**layer(f"{tower}.down", width, rank), **layer(f"{tower}.up", rank, width)}
        server = self._first_text(shared, own) if self.text_features == "first" else {}
        return State(shared, {name: fl.replicate(leaf, task.n_clients) for name, leaf in own.items()}, server)

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        first = {name: fl.replicate(leaf, len(clients)) for name, leaf in state.server.items()}
        return self.start(task, state, clients)._replace(buffers=first)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        first = {n.removeprefix("first."): leaf for n, leaf in local.buffers.items() if n.startswith("first.")}
        adapter = self._adapter(first or local.params, "text", task.n_text_blocks)
        text = fl.normalize(task.sentences([task.template], adapter=adapter)[:, 0])
        adapter = self._adapter(local.params, "image", task.n_vision_blocks or 0)
        tokens = batch.image.new_zeros(len(batch.image), 0, task.vision_width or 0)
        image, _ = task.encode_images(batch.image, tokens, adapter=adapter)
        return fl.cosine_logits(task.scale, image, text)

    def _adapter(self, train: Tree, tower: str, n_blocks: int) -> Adapter:
        used = {name: leaf for name, leaf in train.items() if name.startswith(("s.", f"{tower}."))}
        leaf = {name.removeprefix(f"{tower}."): self._scaled(leaf) for name, leaf in used.items()}
        leaf |= {f"up.{kind}": self.alpha * leaf[f"up.{kind}"] for kind in ("weight", "bias")}
        return Adapter(_branch, leaf, first=n_blocks - leaf["s.bias"].shape[1])

    def _scaled(self, leaf: Tensor) -> Tensor:
        """The same numbers, with gradients multiplied by 1/α."""
        if self.gradient == "true" or not self.alpha:
            return leaf
        return leaf.detach() + (leaf - leaf.detach()) / self.alpha

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        merged = super().merge(task, state, clients, local)
        if self.text_features == "first" and task.round == 1:
            lowest = {name: local.params[name].index_select(0, clients.argmin()[None])[0] for name in state.personal}
            return merged._replace(server=self._first_text(merged.shared, lowest))
        return merged

    @staticmethod
    def _first_text(shared: Tree, own: Tree) -> Tree:
        """The leaves for the first client's text features."""
        return {f"first.{n}": leaf.clone() for n, leaf in {**shared, **own}.items() if not n.startswith("image.")}


def _branch(leaf: Tree, x: Tensor) -> Tensor:
    """Applies each client's adapter of one block to tokens [C, n, width]."""
    for name in ("down", "s"):
        x = mapped(leaf, name, x).relu()
    return mapped(leaf, "up", x)
