"""Shared by methods with independent deep prompts in both towers: their leaves, and what the towers make of them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor

import fpl_tune.method as fl
from fpl_tune.method import Sizes, Task, Tree
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods._blocks import word_context


class DeepPrompts(FederatedAveraging):
    """Prompts for the first `depth` blocks of both towers, or of the image tower alone."""

    needs = "pixels"
    requires = ("vit",)
    in_text: ClassVar[bool] = True
    """False where the text tower has no prompts, or none of that depth."""
    depth: int

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        check_depth(sizes, self.depth, in_text=self.in_text)


def check_depth(sizes: Sizes, depth: int, *, in_text: bool = False) -> None:
    """Raises `ConfigError` if there are more prompts than blocks of the image tower, or of the text tower too."""
    blocks = sizes.n_vision_blocks or 0
    blocks = min(blocks, sizes.n_text_blocks) if in_text else blocks
    rule = f"must be at most {blocks}, the number of blocks of the {'shallower' if in_text else 'image'} tower"
    fl.require(depth <= blocks, "depth", rule, depth, f"Set method.depth={blocks}.")


def frozen_words(words: str, n_ctx: int) -> str:
    """The words behind the first `n_ctx` ones, which stay in the sentence as they are."""
    return " ".join(words.split()[n_ctx:])


def starting_words(task: Task, words: str, n_ctx: int, rng: Generator) -> Tensor:
    """[l, d] the first `n_ctx` words' embeddings; N(0, 0.02²) without words.

    Raises:
        ConfigError: a word has several tokens, so that its embedding would be cut, or there are fewer words.
    """
    context = word_context(task, words, n_ctx, rng)
    if words:
        rule = f"must have one token for each of its {len(words.split())} words"
        fl.require(len(task.words(words)) == len(words.split()), "words", rule, words, "Use common words, or words=''.")
    return context


def visual_prompts(task: Task, n_tokens: int, depth: int, rng: Generator) -> Tensor:
    """[J, n, w] visual prompts, N(0, 0.02²)."""
    drawn = 0.02 * torch.randn(depth, n_tokens, task.vision_width or 0, generator=rng)
    return drawn.to(task.device, task.dtype)


def both_prompts(task: Task, n_ctx: int, n_tokens: int, depth: int, words: str, rng: Generator) -> Tree:
    """`text` [l, d] of the input, `deep` [J - 1, l, d] of the next blocks, `visual` [J, n, w]."""
    found: Tree = {"text": starting_words(task, words, n_ctx, rng)}
    if depth > 1:
        found["deep"] = fl.new_context(task, n_ctx, rng, depth - 1)
    found["visual"] = visual_prompts(task, n_tokens, depth, rng)
    return found


def see(task: Task, pixels: Tensor, visual: Tensor) -> Tensor:
    """Raw image features [C, B, D] under visual prompts [C, J, n, w] behind the patches."""
    deep = visual[:, 1:] if visual.shape[1] > 1 else None
    return task.encode_images(pixels, visual[:, 0], deep=deep, place="end")[0]


def both_features(task: Task, leaf: Tree, pixels: Tensor, words: str) -> tuple[Tensor, Tensor]:
    """Raw image features [C, B, D] and unit text features [C, K, D] under each client's own prompts."""
    tail = frozen_words(words, leaf["text"].shape[-2])
    return see(task, pixels, leaf["visual"]), task.encode_prompts(leaf["text"], deep=leaf.get("deep"), tail=tail)
