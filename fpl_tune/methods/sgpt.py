"""SGPT: shared prompts in the first blocks, and prompts of an image's group in later ones.

Deng, Thrampoulidis, Li: Unlocking the Potential of Prompt-Tuning in Bridging Generalized and Personalized Federated
Learning, CVPR 2024, https://arxiv.org/abs/2310.18285. Official code: ubc-tea/SGPT, 213c95b. Its blocks take turns of
whole epochs, without group prompts in turns of the shared prompts. Here turns are counted in steps, as a method does
not know the number of steps in a round, and group prompts are always used. The code adds the tokens of a block to those
of the blocks before, and reads the mean of the class token and the group tokens; here the tokens of a block replace
those before, as in `vpt`, and the class token is read. Frequencies are those before the round, while the code counts
from client to client. Its queries after six blocks of the tower are not offered. The paper's head is linear and
averaged (`head=linear`); with CLIP, text features replace it.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import hand_logits, mapped, new_layers
from fpl_tune.methods._deep import see, visual_prompts

_RARE = 5e-4
"""Added to a group's frequency, so that no frequency is zero."""
_FEW = 50
"""Number of images of a group in a round up to which the released code weights clients uniformly."""


@fl.dataclass
class SGPT(FederatedAveraging):
    """Shared prompts in blocks 1 to S, and prompts of the image's group in the next L blocks.

    - f(x) is the frozen tower's feature of an image without prompts.
    - k_j are the keys of the G groups. They start orthonormal.
    - An image belongs to the group j(x) = argmin_j (1 - cos(f(x), k_j)). In training, the distance is multiplied by the
      group's share of all choices so far + 0.0005, so that rare groups are chosen too.

    The loss is cross-entropy + pull · mean (1 - cos(f(x), k_j(x))); the second term trains keys only. Prompts are
    averaged by images, keys by the images that chose them. The server keeps a share of the old group prompts and keys.
    Nothing is personal.

    groups: G, >= 1, at most the width of the embedding; with 1 it is `vpt` of depth S + L, if `momentum` is 0 and turns
        are ignored.
    shared_blocks: S, >= 1. S + L is at most the number of blocks.
    group_blocks: L, >= 1.
    n_tokens: n, tokens of a prompt, >= 1.
    turn: number of local steps, >= 1, in which the shared prompts are trained, and then group prompts and keys, in
        turns. The paper's turns are half a round. With a turn as long as a round, groups and keys are never trained.
        The optimiser's momentum and weight decay continue in all steps. A linear head is trained in all steps.
    pull: >= 0; 0 leaves the keys where they started.
    momentum: share of the old group prompts and keys that the server keeps, in [0, 1): 0.5 in the code, which has 0 for
        keys where clients are domains.
    balance: balance of the groups in training: by `frequency`, as above, or `none`: the nearest key is chosen, and a
        few groups may get all images.
    choice: choice of an image's group in training. `image`: each image has its own; `batch`: all have the most frequent
        group of the batch, as in the code if clients are domains.
    query: f(x) as it is (`feature`), or its positive part (`relu`), as in the code.
    keys: weights of their average. `chosen`: the numbers of images that chose them; a key that none chose does not
        change. `released`: the same, but uniform weights for keys that 50 images or fewer chose. `size`: the numbers of
        training images.
    head: `text`, the features of hand-written prompts, or `linear`, an averaged W f + b. A linear head has no meaning
        for other classes.
    """

    needs = "pixels"
    requires = ("vit",)
    represents = "images"
    groups: fl.AtLeastOne = 20
    shared_blocks: fl.AtLeastOne = 4
    group_blocks: fl.AtLeastOne = 3
    n_tokens: fl.AtLeastOne = 1
    turn: fl.AtLeastOne = 1
    pull: fl.Weight = 1.0
    momentum: fl.Decay = 0.5
    balance: Literal["frequency", "none"] = "frequency"
    choice: Literal["image", "batch"] = "image"
    query: Literal["feature", "relu"] = "feature"
    keys: Literal["chosen", "released", "size"] = "chosen"
    head: Literal["text", "linear"] = "text"

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        left = (sizes.n_vision_blocks or 0) - self.shared_blocks
        rule = f"must be at most {left}, the blocks of the image tower behind the shared ones"
        fl.require(self.group_blocks <= left, "group_blocks", rule, self.group_blocks, "Lower method.shared_blocks.")
        rule = f"must be at most {sizes.embed_dim}, the width of the embedding, for orthogonal keys"
        fl.require(self.groups <= sizes.embed_dim, "groups", rule, self.groups)
        fits = self.head == "text" or sizes.same_classes
        fl.require(fits, "head", "must be text where test sets have other classes than training", self.head)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        shared = {"visual": visual_prompts(task, self.n_tokens, self.shared_blocks, rng)}
        rows = visual_prompts(task, self.n_tokens, self.groups * self.group_blocks, rng)
        shared["groups"] = rows.unflatten(0, (self.groups, self.group_blocks))
        drawn = torch.randn(task.embed_dim, self.groups, generator=rng, dtype=torch.float64)
        shared["keys"] = torch.linalg.qr(drawn).Q.T.to(task.device, task.dtype)
        if self.head == "linear":
            shared |= new_layers(task, rng, {"head": (task.embed_dim, task.n_classes)})
        shared["chosen"] = torch.zeros(self.groups, dtype=torch.int64, device=task.device)
        return State(shared, personal={}, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = self.deploy(task, state, clients)
        chosen = state.shared["chosen"]
        weight = torch.ones_like(state.shared["keys"][:, 0])
        if self.balance == "frequency":
            share = chosen / chosen.sum().clamp(min=1)
            weight = torch.where(chosen.any(), share.to(weight.dtype) + _RARE, weight)
        zeros = torch.zeros_like(clients)
        local.buffers.update(
            weight=fl.replicate(weight, len(clients)), step=zeros, chosen=fl.replicate(0 * chosen, len(clients))
        )
        return local

    def deploy(self, task: Task, state: State, clients: Tensor) -> Local:
        learned = {name: leaf for name, leaf in state.shared.items() if name != "chosen"}
        return super().start(task, state._replace(shared=learned), clients)

    def likeness(self, task: Task, local: Local, image: Tensor) -> Tensor:
        """[C, B, G] cosines of image features and keys, without gradient to the features."""
        none = local.params["visual"][:, 0, :0].detach()
        with torch.no_grad():
            feature = task.encode_images(image, none)[0]
            feature = fl.normalize(feature.relu() if self.query == "relu" else feature)
        return feature @ fl.normalize(local.params["keys"]).mT

    def seen(self, task: Task, leaf: Tree, image: Tensor, group: Tensor) -> Tensor:
        """[C, B, D] raw features of images with the shared prompts and those of their groups [C, B]."""
        picked = F.one_hot(group, self.groups).to(leaf["groups"].dtype) @ leaf["groups"].flatten(2)
        picked = picked.unflatten(-1, leaf["groups"].shape[2:])  # [C, B, L, n, w]
        shared = leaf["visual"][:, None].expand(*group.shape, -1, -1, -1)
        # the tower has prompts per client only, so every image is passed as a client
        alone = see(task, image.flatten(0, 1).unsqueeze(1), torch.cat([shared, picked], 2).flatten(0, 1))
        return alone.squeeze(1).unflatten(0, group.shape)

    def _scores(self, task: Task, leaf: Tree, image: Tensor) -> Tensor:
        return mapped(leaf, "head", image) if self.head == "linear" else hand_logits(task, image)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self._scores(task, local.params, self.representation(task, local, batch.image))

    def representation(self, task: Task, local: Local, image: Tensor) -> Tensor:
        return self.seen(task, local.params, image, self.likeness(task, local, image).argmax(-1))

    def choose(self, likeness: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        """[C, B] groups of images in training, from cosines [C, B, G] and weights of the groups [C, G]."""
        group = ((1 - likeness) * weight[:, None]).argmin(-1)
        if self.choice == "batch":
            votes = (F.one_hot(group, self.groups) * mask[..., None]).sum(1)
            group = votes.argmax(-1, keepdim=True).expand_as(group)
        return group

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        buffers = local.buffers
        leaf = self.on_turn(local.params, buffers["step"] // self.turn % 2 == 0)
        likeness = self.likeness(task, local._replace(params=leaf), batch.image)
        group = self.choose(likeness.detach(), buffers["weight"], batch.mask)
        fit = fl.cross_entropy(self._scores(task, leaf, self.seen(task, leaf, batch.image, group)), batch)
        away = 1 - likeness.gather(-1, group.unsqueeze(-1)).squeeze(-1)
        chosen = buffers["chosen"] + (F.one_hot(group, self.groups) * batch.mask[..., None]).sum(1)
        moved = {**buffers, "step": buffers["step"] + 1, "chosen": chosen}
        return fit + self.pull * fl.mean_over(away, batch.mask), moved

    def on_turn(self, leaf: Tree, shared: Tensor) -> Tree:
        """The leaves, with a gradient only to those whose turn it is: the shared prompts if `shared` [C]."""
        turns = {"visual": shared, "groups": ~shared, "keys": ~shared}
        leaves = dict(leaf)
        for name, mine in turns.items():
            leaves[name] = torch.where(mine.view(-1, *[1] * (leaf[name].ndim - 1)), leaf[name], leaf[name].detach())
        return leaves

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        old, chosen = dict(state.shared), local.buffers["chosen"]
        total = old.pop("chosen")
        shared = super().merge(task, state._replace(shared=old), clients, local).shared
        if self.keys != "size":
            shared["keys"] = self.averaged_keys(local.params["keys"], chosen, old["keys"])
        for name in ("groups", "keys"):
            shared[name] = torch.lerp(shared[name], old[name], self.momentum)
        return state._replace(shared={**shared, "chosen": total + chosen.sum(0)})

    def averaged_keys(self, keys: Tensor, chosen: Tensor, old: Tensor) -> Tensor:
        """[G, D] mean of keys [C, G, D], weighted by the images that chose them [C, G]; `old` if there is none."""
        weight = chosen.to(keys.dtype)
        if self.keys == "released":
            weight = torch.where(weight.sum(0) > _FEW, weight, 1)
        total = weight.sum(0)[:, None]
        return torch.where(total > 0, (weight[..., None] * keys).sum(0) / total.clamp(min=1), old)
