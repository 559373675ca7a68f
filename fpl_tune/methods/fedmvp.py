"""FedMVP: an averaged network generates visual prompts from attribute sentences and the image itself.

Singha et al.: FedMVP: Federated Multimodal Visual Prompt Tuning for Vision-Language Models, ICCV 2025,
https://arxiv.org/abs/2504.20860. Official code: mainaksingha01/FedMVP, 246800e. Its ten sentences of a class by GPT-4o
are not shipped: `attributes` are templates instead. Its low-rank branch, which no evaluation uses, and the federation
of several data sets are not offered. It makes one update per round, from the last batch; `protocol.epochs` below one
approximates that.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Batch, Local, Sizes, State, Task, Tree
from fpl_tune.methods._blocks import Template, linear, mapped, new_layers
from fpl_tune.methods._deep import see
from fpl_tune.methods._network import HIDDEN, PromptNetwork, feed_forward, new_norms, normed, xavier
from fpl_tune.methods._noise import new_keys, uniform


@fl.dataclass
class FedMVP(PromptNetwork):
    """A network generates n visual prompts for each image: pooled X + FF(X).

    - X is the attention of the image's patch embeddings over the features of attribute sentences.
    - Logits are the mean over a class's sentences of s · cos.
    - The loss is cross-entropy + consistency · (1 - mean cos(f, f̄)), where f̄ is the frozen tower's feature of the
      image or of its mirror image, with equal probability.

    n_tokens: n, >= 1 and at most the number of patches.
    heads: of the attention; divides the width of a vision token.
    consistency: >= 0; the larger, the closer to zero-shot CLIP.
    attributes: sentences with {} for the class name; none: only the hand-written one.
    scope: classes whose sentences the network reads, and that the loss compares, in training: the client's `own`, as in
        the code, or `all`.
    weights: average over the cohort, `uniform` as in the code, or by `size`.
    """

    needs = "pixels"
    requires = ("vit",)
    n_tokens: fl.AtLeastOne = 4
    heads: fl.AtLeastOne = 4
    consistency: fl.Weight = 10.0
    attributes: tuple[Template, ...] = ()

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        rule = f"must divide {sizes.vision_width}, the width of a vision token"
        fl.require((sizes.vision_width or 0) % self.heads == 0, "heads", rule, self.heads)
        rule = f"must be at most {sizes.n_patches}, the number of patches"
        fl.require(self.n_tokens <= (sizes.n_patches or 0), "n_tokens", rule, self.n_tokens)

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        width = task.vision_width or 0
        shared = new_norms(task, patches=width, attributes=width, ff=width)
        layers = {"project": (task.embed_dim, width), "ff.in": (width, 2 * HIDDEN * width)}
        layers |= {"ff.out": (HIDDEN * width, width), "attention.out": (width, width)}
        shared |= new_layers(task, rng, layers)
        shared["attention.in.weight"] = xavier(task, width, 3 * width, rng, 4 * width)
        shared["attention.in.bias"] = shared["norm.ff.bias"].new_zeros(3 * width)
        shared["attention.out.bias"] = torch.zeros_like(shared["attention.out.bias"])
        return State(shared, personal={}, server={})

    def start(self, task: Task, state: State, clients: Tensor) -> Local:
        local = super().start(task, state, clients)
        return local._replace(buffers=local.buffers | new_keys(task, clients))

    def _sentences(self, task: Task) -> Tensor:
        """[m, K, D] unit features of the attribute sentences."""
        return fl.normalize(task.sentences(self.attributes or (task.template,)))

    def prompts(self, task: Task, local: Local, pixels: Tensor) -> Tensor:
        """[C, B, n, w] visual prompts of each image [C, B, 3, H, W]."""
        leaf, owned = local.params, local.buffers.get("owned")
        n_clients, n_images = pixels.shape[:2]
        sentences = self._sentences(task).flatten(0, 1)
        values = mapped(leaf, "project", sentences.expand(n_clients, -1, -1))  # [C, A, w]
        patches = normed(leaf, "patches", task.embed(pixels)).flatten(1, 2)  # [C, B M, w]
        given = patches, normed(leaf, "attributes", values), values
        parts = zip(given, leaf["attention.in.weight"].chunk(3, 1), leaf["attention.in.bias"].chunk(3, 1), strict=True)
        q, k, v = (linear(*part).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        read = None if owned is None else owned.repeat(1, k.shape[2] // owned.shape[1])[:, None, None]
        x = F.scaled_dot_product_attention(q, k, v, read).transpose(1, 2).flatten(2)
        x = feed_forward(leaf, mapped(leaf, "attention.out", x))
        pooled = F.adaptive_avg_pool1d(x.unflatten(1, (n_images, -1)).flatten(0, 1).mT, self.n_tokens).mT
        return pooled.unflatten(0, (n_clients, n_images))

    def _image(self, task: Task, local: Local, pixels: Tensor) -> Tensor:
        """[C, B, D] unit features. The tower treats every image as a separate client."""
        tokens = self.prompts(task, local, pixels).flatten(0, 1)
        features = see(task, pixels.flatten(0, 1)[:, None], tokens[:, None])
        return fl.normalize(features[:, 0]).unflatten(0, pixels.shape[:2])

    def _scores(self, task: Task, local: Local, image: Tensor) -> Tensor:
        logits, owned = task.scale * image @ self._sentences(task).mean(0).T, local.buffers.get("owned")
        return logits if owned is None else fl.among(logits, owned)

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        return self._scores(task, local, self._image(task, local, batch.image))

    def loss(self, task: Task, local: Local, batch: Batch) -> tuple[Tensor, Tree]:
        image = self._image(task, local, batch.image)
        loss, keys = fl.cross_entropy(self._scores(task, local, image), batch), local.buffers
        if self.consistency:
            mirrored = uniform(keys, 0, batch.mask.shape[1]) < 0.5
            with torch.no_grad():
                pixels = torch.where(mirrored[..., None, None, None], batch.image.flip(-1), batch.image)
                none = pixels.new_zeros(len(pixels), 0, task.vision_width or 0)
                still = fl.normalize(task.encode_images(pixels, none)[0])
            loss = loss + self.consistency * fl.mean_over(1 - (image * still).sum(-1), batch.mask)
        return loss, {**keys, "drawn": keys["drawn"] + 1}
