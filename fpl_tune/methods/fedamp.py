"""Prompt + FedAMP: each client is attracted to its own cloud prompt, a mixture of similar prompts.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
https://arxiv.org/abs/2007.03797, with the λ and α that pFedPrompt (App. A.3) found best for prompts. PromptFolio's
version weighs by 1 - exp(+distance) and detaches the attraction; neither is done here. The cloud prompts are
mixed from the latest uploads of all clients; for clients that have not trained yet, the initial prompt is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Method, Sizes, State, Task, Traffic, Tree


@fl.dataclass
class FedAMP(Method):
    """Client c minimises CE + λ / (2α) · ‖V_c - u_c‖² from its own V_c; u_c = Σ_j ξ_cj V_j (Eqs. 3 to 6).

    lam: λ, weight of the attraction, >= 0; 0 is CoOp.
    alpha: α, step towards the others, > 0: ξ_cj = α/σ · exp(-‖V_c - V_j‖² / σ), ξ_cc what is missing to one.
        α · (N - 1) / σ must be at most one, so that the mixture is convex.
    sigma: σ, squared distance over which prompts stop attracting, > 0; not given for prompts.
    n_ctx: number of context tokens, >= 1.
    """

    lam: fl.Weight = 5e-6
    alpha: fl.Positive = 5e-3
    sigma: fl.Positive = 1.0
    n_ctx: fl.AtLeastOne = 16

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        most = self.sigma / max(1, sizes.n_clients - 1)
        rule = f"must be at most method.sigma / (clients - 1) = {most:.6g} for convex mixtures"
        fl.require(self.alpha <= most, "alpha", rule, self.alpha)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        prompts = fl.replicate(fl.new_context(task, self.n_ctx, rng), task.n_clients)
        return State(shared={}, personal={"prompt": prompts}, server={"prompt": prompts.clone()})

    def mixture(self, prompts: Tensor, clients: Tensor) -> Tensor:
        """ξ [C, N]: shares of all clients' prompts [N, l, d] in the cloud prompts of `clients`; rows sum to one."""
        flat = prompts.flatten(1)
        distance = torch.cdist(flat[clients], flat, compute_mode="donot_use_mm_for_euclid_dist").square()
        share = self.alpha / self.sigma * torch.exp(-distance / self.sigma)
        own = F.one_hot(clients, len(prompts)).bool()
        share = share.masked_fill(own, 0)
        return torch.where(own, 1 - share.sum(1, keepdim=True), share)

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        prompts = state.server["prompt"]
        cloud = torch.einsum("cn,nld->cld", self.mixture(prompts, clients), prompts)
        return Local(params={"prompt": state.personal["prompt"][clients]}, buffers={"cloud": cloud})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return fl.cosine_logits(task.scale, batch.image, task.encode_prompts(local.params["prompt"]))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        away = (local.params["prompt"] - local.buffers["cloud"]).flatten(1).square().sum(1)
        fit = fl.cross_entropy(self.logits(task, local, batch), batch)
        return fit + self.lam / (2 * self.alpha) * away, local.buffers

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        prompt = local.params["prompt"]
        personal = {"prompt": fl.scatter_rows(state.personal["prompt"], clients, prompt)}
        return State({}, personal, {"prompt": fl.scatter_rows(state.server["prompt"], clients, prompt)})

    def traffic(self, task: Task, state: State, clients: Tensor) -> Traffic:
        """A client sends its prompt, and receives its cloud prompt."""
        return Traffic(up=fl.count(prompt=state.server["prompt"][0]), down=fl.count(cloud=state.server["prompt"][0]))
