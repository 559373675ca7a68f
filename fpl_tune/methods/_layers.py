"""Shared by several methods: linear layers with a client axis, contexts that start from words, prompts per image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from fpl_tune.method import Task, new_context, require


def new_linear(task: Task, n_in: int, n_out: int, rng: Generator, *lead: int) -> tuple[Tensor, Tensor]:
    """Weight [*lead, out, in] and bias [*lead, out] as PyTorch starts a layer, U(±1/√in); the same on every device."""
    drawn = (2 * torch.rand(*lead, n_out, n_in + 1, generator=rng) - 1) / n_in**0.5
    drawn = drawn.to(task.device, task.dtype)
    return drawn[..., :n_in].contiguous(), drawn[..., n_in].contiguous()


def linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Each client's own layer: features [C, ..., in], weight [C, out, in], bias [C, out] -> [C, ..., out]."""
    mapped = features.flatten(1, -2) @ weight.mT + bias[:, None]
    return mapped.unflatten(1, features.shape[1:-1])


def word_context(task: Task, words: str, n_ctx: int, rng: Generator) -> Tensor:
    """[l, d] the first `n_ctx` token embeddings of `words`; without words a random context.

    Raises:
        ConfigError: there are fewer words' tokens than `n_ctx`.
    """
    if not words:
        return new_context(task, n_ctx, rng)
    tokens = task.words(words)
    rule = f"must be at most {len(tokens)}, the number of tokens of method.words {words!r}"
    require(n_ctx <= len(tokens), "n_ctx", rule, n_ctx, "Give more words, or words='' to start at random.")
    return tokens[:n_ctx].clone()


SENTENCES = 1 << 12
"""Sentences encoded at once where every image has prompts of its own."""


def image_by_image(score: Callable[..., Tensor], n_classes: int, *rows: Tensor) -> Tensor:
    """`score` over slices of the image axis of rows [C, B, ...], joined to [C, B, K].

    An evaluation passes as many images as fit in memory, but not beside the K sentences that each is compared with.
    """
    step = max(1, SENTENCES // (len(rows[0]) * n_classes))
    parts = zip(*(tensor.split(step, dim=1) for tensor in rows), strict=True)
    return torch.cat([score(*part) for part in parts], dim=1)
