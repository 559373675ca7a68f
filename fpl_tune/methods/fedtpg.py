"""FedTPG: federated averaging of a network that generates the context from the names of the classes.

Qiu, Li, Mummadi, Ganesh, Li, Peng, Lin: Federated Text-driven Prompt Generation for Vision-Language Models, ICLR 2024,
https://arxiv.org/abs/2310.06123. Official code: boschresearch/FedTPG, f141c29. Not offered: one federation over several
data sets, and optimisers that clients keep over rounds, with schedules that pause while a client does not take part
(`optim.schedule=rounds_cosine` follows the server's rounds). In evaluation, the network reads the names of all classes
of the test set or, with `protocol.own_classes` as in the code, those of the client.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._blocks import mapped, new_layers
from fpl_tune.methods._network import HIDDEN, PromptNetwork, feed_forward, new_norms, normed, xavier


@fl.dataclass
class FedTPG(PromptNetwork):
    """Context = h + FF(h), h = attention of learned queries [l, d] over the unit text features of the class names.

    n_ctx: number of context tokens, >= 1.
    heads: of the attention; divides the width of a context token.
    scope: classes whose names the network reads, and that the loss compares, in training: the client's `own`, or `all`.
        With `all`, every client of a round starts from the same context, as in PromptFL.
    weights: average over the cohort, `uniform` as in the code, or by `size`.
    """

    n_ctx: fl.AtLeastOne = 4
    heads: fl.AtLeastOne = 4

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = f"must divide {sizes.text_width}, the width of a context token"
        fl.require(sizes.text_width % self.heads == 0, "heads", rule, self.heads)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        width, names = task.text_width, task.embed_dim
        shared: Tree = {"query": fl.new_context(task, self.n_ctx, rng)}
        shared |= new_norms(task, queries=width, names=names, ff=width)
        for name, size in (("q", width), ("k", names), ("v", names)):
            shared[f"attention.{name}.weight"] = xavier(task, size, width, rng, size + 3 * width)
            shared[f"attention.{name}.bias"] = shared["query"].new_zeros(width)
        inner = HIDDEN * width
        layers = {"attention.out": (width, width), "ff.in": (width, 2 * inner), "ff.out": (inner, width)}
        shared |= new_layers(task, rng, layers)
        shared["attention.out.bias"] = torch.zeros_like(shared["attention.out.bias"])
        return State(shared, personal={}, server={})

    def context(self, names: Tensor, local: Local) -> Tensor:
        """[C, l, d] contexts that the networks generate for the unit features [K, D] of class names."""
        leaf, owned = local.params, local.buffers.get("owned")
        keys = normed(leaf, "names", names.expand(len(leaf["query"]), -1, -1))
        rows = {"q": normed(leaf, "queries", leaf["query"]), "k": keys, "v": keys}
        parts = (mapped(leaf, f"attention.{name}", x) for name, x in rows.items())
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in parts)
        score = q @ k.mT / q.shape[-1] ** 0.5  # [C, heads, l, K]
        if owned is not None:
            score = score.masked_fill(~owned[:, None, None], -torch.inf)
        return feed_forward(leaf, mapped(leaf, "attention.out", (score.softmax(-1) @ v).transpose(1, 2).flatten(2)))

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        text = task.encode_prompts(self.context(fl.normalize(task.sentences(["{}"])[0]), local), cache=False)
        logits, owned = fl.cosine_logits(task.scale, batch.image, text), local.buffers.get("owned")
        return logits if owned is None else fl.among(logits, owned)
