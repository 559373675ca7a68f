"""Blocks that several methods share: layers with a client axis, contexts that start from words, and losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import AfterValidator
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.core.spec import with_place
from fpl_tune.method import Task, Tree

SENTENCES = 1 << 12
"""Number of sentences encoded in one batch if every image has its own prompts."""


Template = Annotated[str, AfterValidator(with_place)]


def new_linear(task: Task, n_in: int, n_out: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Weight [out, in] and bias [out] with PyTorch's initialisation, U(±1/√in); the same numbers on every device."""
    drawn = (2 * torch.rand(n_out, n_in + 1, generator=rng) - 1) / n_in**0.5
    drawn = drawn.to(task.device, task.dtype)
    return drawn[:, :n_in].contiguous(), drawn[:, n_in].contiguous()


def new_layers(task: Task, rng: Generator, sizes: Mapping[str, tuple[int, int]]) -> Tree:
    """`NAME.weight` and `NAME.bias` of layers {name: (in, out)}, drawn by `new_linear`."""
    leaves: Tree = {}
    for name, (n_in, n_out) in sizes.items():
        leaves[f"{name}.weight"], leaves[f"{name}.bias"] = new_linear(task, n_in, n_out, rng)
    return leaves


def linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Applies each client's layer: features [C, ..., in], weight [C, out, in], bias [C, out] -> [C, ..., out]."""
    mapped = features.flatten(1, -2) @ weight.mT + bias[:, None]
    return mapped.unflatten(1, features.shape[1:-1])


def mapped(leaf: Tree, name: str, features: Tensor) -> Tensor:
    """Applies the layer `name` of `new_layers` to features [C, ..., in]."""
    return linear(features, leaf[f"{name}.weight"], leaf[f"{name}.bias"])


def word_context(task: Task, words: str, n_ctx: int, rng: Generator) -> Tensor:
    """[l, d] the first `n_ctx` token embeddings of `words`; a random context if there are no words.

    Raises:
        ConfigError: `words` have fewer tokens than `n_ctx`.
    """
    if not words:
        return fl.new_context(task, n_ctx, rng)
    tokens = task.words(words)
    rule = f"must be at most {len(tokens)}, the number of tokens of method.words {words!r}"
    fl.require(n_ctx <= len(tokens), "n_ctx", rule, n_ctx, "Give more words, or words='' to start at random.")
    return tokens[:n_ctx].clone()


def hand_logits(task: Task, image: Tensor) -> Tensor:
    """s · cos of images [C, B, D] and the hand-written prompts -> [C, B, K]."""
    return fl.cosine_logits(task.scale, image, task.hand_text.expand(len(image), -1, -1))


def image_by_image(score: Callable[..., Tensor], n_classes: int, *rows: Tensor) -> Tensor:
    """Applies `score` to slices of the image axis of rows [C, B, ...], and joins the results to [C, B, K].

    An evaluation passes as many images as fit in memory, without regard to the K sentences of each image.
    """
    step = max(1, SENTENCES // (len(rows[0]) * n_classes))
    parts = zip(*(tensor.split(step, dim=1) for tensor in rows), strict=True)
    return torch.cat([score(*part) for part in parts], dim=1)


def contrastive(similarity: Tensor, mask: Tensor) -> Tensor:
    """InfoNCE over both axes of scaled similarities [C, B, B] of images and their sentences, with mask [C, B] -> [C].

    Padding is never a negative. The diagonal stays, so that padded rows are finite before they are dropped.
    """
    own = torch.eye(similarity.shape[-1], dtype=torch.bool, device=similarity.device)
    target = torch.arange(similarity.shape[-1], device=similarity.device).expand(mask.shape)

    def one_way(scores: Tensor) -> Tensor:
        scores = scores.masked_fill(~mask[:, None] & ~own, float("-inf"))
        values = F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        return fl.mean_over(values, mask)

    return (one_way(similarity) + one_way(similarity.mT)) / 2
