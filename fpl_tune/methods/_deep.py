"""Deep prompts in both towers, which several methods share: their leaves and the features under them."""

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
    requires: ClassVar[tuple[fl.Requirement, ...]] = ("vit", "text_blocks")
    depth: int

    def check(self, sizes: Sizes) -> None:
        super().check(sizes)
        check_depth(sizes, self.depth, in_text="text_blocks" in self.requires)


def check_depth(sizes: Sizes, depth: int, *, in_text: bool = False) -> None:
    """Raises `ConfigError` if there are more prompts than blocks of the image tower or, with `in_text`, of either."""
    blocks = sizes.n_vision_blocks or 0
    blocks = min(blocks, sizes.n_text_blocks) if in_text else blocks
    rule = f"must be at most {blocks}, the number of blocks of the {'shallower' if in_text else 'image'} tower"
    fl.require(depth <= blocks, "depth", rule, depth, f"Set method.depth={blocks}.")


def frozen_words(words: str, n_ctx: int) -> str:
    """The words after the first `n_ctx` ones, which stay in the sentence unchanged."""
    return " ".join(words.split()[n_ctx:])


def starting_words(task: Task, words: str, n_ctx: int, rng: Generator) -> Tensor:
    """[l, d] the embeddings of the first `n_ctx` words; N(0, 0.02²) if there are no words.

    Raises:
        ConfigError: there are fewer than `n_ctx` words, or a word has several tokens.
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
    """New prompts: `text` [l, d] for the input, `deep` [J - 1, l, d] for the next blocks, `visual` [J, n, w]."""
    leaves: Tree = {"text": starting_words(task, words, n_ctx, rng)}
    if depth > 1:
        leaves["deep"] = fl.new_context(task, n_ctx, rng, depth - 1)
    leaves["visual"] = visual_prompts(task, n_tokens, depth, rng)
    return leaves


def see(task: Task, pixels: Tensor, visual: Tensor) -> Tensor:
    """Raw image features [C, B, D] with visual prompts [C, J, n, w] after the patches."""
    deep = visual[:, 1:] if visual.shape[1] > 1 else None
    return task.encode_images(pixels, visual[:, 0], deep=deep)[0]


def both_features(task: Task, leaf: Tree, pixels: Tensor, words: str) -> tuple[Tensor, Tensor]:
    """Raw image features [C, B, D] and unit text features [C, K, D] with each client's prompts."""
    tail = frozen_words(words, leaf["text"].shape[-2])
    return see(task, pixels, leaf["visual"]), task.encode_prompts(leaf["text"], deep=leaf.get("deep"), tail=tail)
