"""pFedPG: the server learns to generate each client's visual prompts from the results of local training.

Yang, Wang, Wang: Efficient Model Personalization in Federated Learning via Client-Specific Prompt Generation, ICCV
2023, https://arxiv.org/abs/2308.15367. The authors have published no code. The re-implementation MSungK/pFedPG,
071525b, was read: it has no residual (`output=attention`), gives a client the rows of several clients or none for its
tokens, never assigns them to the client's model, and uses trained minus generated prompts as the gradient of the loss,
which is its opposite (`signs=released`). Its projections have biases. Neither these nor its AdamW of the server are
offered. Another re-implementation, for language models, has the residual and a descriptor for each token
(`descriptor=tokens`). The attention's inner widths are that of a token. The paper's head is a linear layer of the
client (`head=linear`); with CLIP, text features replace it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree
from fpl_tune.methods._blocks import hand_logits, mapped, new_layers
from fpl_tune.methods._deep import check_depth, see, visual_prompts
from fpl_tune.methods._network import xavier

_INPUTS, _OUTPUT = ("attention.q", "attention.k", "attention.v"), "attention.out"


@fl.dataclass
class PFedPG(Method):
    """Client i starts a round from prompts P_i that the server generates, and keeps the trained ones.

    P_i = P_b + softmax(d_i W_q (P_b W_k)ᵀ / √w) P_b W_v W_o:
    - P_b [J n, w] is a basis of prompts.
    - d_i [w] is the descriptor of client i. It changes only in rounds of this client.
    - W are projections.

    They are parameters of the server, which adds α Σ_i ⟨ΔP_i, ∂P_i⟩ to them, summed over the cohort. ΔP_i is the change
    of P_i by training, so that -ΔP_i replaces the gradient.

    n_tokens: n, tokens of a prompt, >= 1.
    depth: J, blocks with prompts, as in `vpt`, >= 1 and at most the number of blocks; the paper has 1.
    server_lr: α, >= 0. With 0, every round starts from the same prompts. The sum grows with the cohort: with 1, P_b
        alone moves by the mean ΔP times the number of clients.
    heads: of the attention, >= 1; divides the width of a token.
    output: `residual`, as above, or `attention`, without the first P_b.
    descriptor: `one` vector for a client, so that its tokens are those of P_b with the same shift (without the residual
        they are all equal), or one for each of its `tokens`.
    signs: of the server's step: as `meant`, or as `released`, which moves away from the clients' prompts.
    head: `text`, the features of hand-written prompts, or `linear`, a personal W f + b. A linear head has no meaning
        for other classes.
    deployed: clients are evaluated with the prompts that they `trained` last, or with those that the server has
        `generated` since. Clients that never trained use the latter.
    """

    needs = "pixels"
    requires = ("vit",)
    represents = "images"
    n_tokens: fl.AtLeastOne = 10
    depth: fl.AtLeastOne = 1
    server_lr: fl.Weight = 0.001
    heads: fl.AtLeastOne = 1
    output: Literal["residual", "attention"] = "residual"
    descriptor: Literal["one", "tokens"] = "one"
    signs: Literal["meant", "released"] = "meant"
    head: Literal["text", "linear"] = "text"
    deployed: Literal["trained", "generated"] = "trained"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        check_depth(sizes, self.depth)
        width = sizes.vision_width or 0
        rule = f"must divide {width}, the width of a token"
        fl.require(width % self.heads == 0, "heads", rule, self.heads)
        fits = self.head == "text" or sizes.same_classes
        fl.require(fits, "head", "must be text where test sets have other classes than training", self.head)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        basis, width = visual_prompts(task, self.n_tokens, self.depth, rng), task.vision_width or 0
        queries = self.depth * self.n_tokens if self.descriptor == "tokens" else 1
        server = {
            "visual": basis,
            "descriptor": 0.02 * torch.randn(task.n_clients, queries, width, generator=rng).to(basis),
            **{name: xavier(task, width, width, rng, 2 * width) for name in (*_INPUTS, _OUTPUT)},
        }
        personal = {
            "own": fl.replicate(torch.zeros_like(basis), task.n_clients),
            "trained": torch.zeros(task.n_clients, dtype=torch.bool, device=task.device),
        }
        if self.head == "linear":
            layer = new_layers(task, rng, {"head": (task.embed_dim, task.n_classes)})
            personal |= {name: fl.replicate(leaf, task.n_clients) for name, leaf in layer.items()}
        return State({}, personal, server)

    def prompts(self, server: Tree, clients: Tensor) -> Tensor:
        """[C, J, n, w] prompts that the server generates."""
        basis = server["visual"]
        rows = basis.flatten(0, 1)
        projected = zip((server["descriptor"][clients], rows, rows), _INPUTS, strict=True)
        wide = (x @ server[name].T for x, name in projected)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for x in wide)
        share = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)  # [C, heads, 1 or J n, J n]
        attended = (share @ v).transpose(-3, -2).flatten(-2) @ server[_OUTPUT].T
        attended = attended.expand(-1, len(rows), -1).unflatten(1, basis.shape[:2])
        return basis + attended if self.output == "residual" else attended

    def _head(self, state: State, clients: Tensor) -> Tree:
        return {name: leaf[clients] for name, leaf in state.personal.items() if name.startswith("head.")}

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        return Local({"visual": self.prompts(state.server, clients), **self._head(state, clients)}, {})

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        local = self.start(task, state, clients)
        if self.deployed == "trained":
            trained = state.personal["trained"][clients].view(-1, 1, 1, 1)
            local.params["visual"] = torch.where(trained, state.personal["own"][clients], local.params["visual"])
        return local

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        image = self.representation(task, local, batch.image)
        return mapped(local.params, "head", image) if self.head == "linear" else hand_logits(task, image)

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return see(task, image, local.params["visual"])

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        with torch.enable_grad():
            leaves = fl.fresh_leaves(state.server)
            generated = self.prompts(leaves, clients)
            moved = local.params["visual"].detach() - generated.detach()  # ΔP
            steps = torch.autograd.grad((generated * moved).sum(), list(leaves.values()))
        rate = self.server_lr if self.signs == "meant" else -self.server_lr
        server = {name: leaf + rate * step for (name, leaf), step in zip(state.server.items(), steps, strict=True)}
        latest = {"own": local.params["visual"], "trained": torch.ones_like(clients, dtype=torch.bool)}
        latest |= {name: local.params[name] for name in state.personal if name.startswith("head.")}
        personal = {name: fl.scatter_rows(state.personal[name], clients, rows) for name, rows in latest.items()}
        return State({}, personal, server)

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        sent = fl.count(visual=state.server["visual"])
        return Traffic(up=sent, down=sent)
