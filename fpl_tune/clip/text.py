"""Prompted text encoding through a frozen CLIP text tower: the plain path and the packed one.

Letters in shapes: P prompts (clients, experts, images: all leading axes flattened), K classes, l context
tokens, d text width, D embedding width, H heads, G classes of a group, s tokens of a suffix.

The plain path runs every sentence at its full length through open_clip's own modules. The packed path gives
the same features from the tokens that matter: the shared prefix once per prompt, each suffix without padding,
and of the last block the EOT token only (the only one that is read).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fpl_tune.clip.sentences import Layout, Run, Sentences


class TextTower(nn.Module):
    """The text half of an open_clip CLIP, its modules shared with the model they come from."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        self.token_embedding: nn.Embedding = text.token_embedding
        self.positional_embedding: Tensor = text.positional_embedding
        self.transformer: Any = text.transformer
        self.ln_final: nn.LayerNorm = text.ln_final
        self.projection: nn.Linear | Tensor | None = text.text_projection
        self.pool: str = getattr(text, "text_pool_type", None) or text.pool_type
        self.pad_id: int = getattr(text, "pad_id", 0)
        self.register_buffer("mask", text.attn_mask, persistent=False)

    @property
    def width(self) -> int:
        return self.positional_embedding.shape[1]

    @property
    def packable(self) -> bool:
        """Whether the packed path holds: causal attention, the EOT token read, the usual blocks."""
        return (
            self.mask is not None
            and self.pool in ("argmax", "eos")
            and all(_is_usual(block) for block in self.transformer.resblocks)
        )

    def forward(self, context: Tensor, sentences: Sentences, *, deep: Tensor | None, plain: bool) -> Tensor:
        """Text features [P, K, D] of contexts [P, l, d], or [P, K, l, d] for contexts of each class's own.

        `deep` [P, J, l, d] replaces the context at the input of blocks 1 to J.
        """
        if plain:
            return self._plain(context, sentences, deep)
        return self._packed(context, sentences, deep)

    def _project(self, x: Tensor) -> Tensor:
        if isinstance(self.projection, nn.Linear):
            return self.projection(x)
        return x if self.projection is None else x @ self.projection

    def _words(self, sentences: Sentences, length: int) -> Tensor:
        """Embedded tokens [K, length, d] with their positions; context tokens hold their position only."""
        device = self.token_embedding.weight.device
        ids = torch.full((len(sentences), length), self.pad_id, dtype=torch.long)
        for k, slots in enumerate(sentences.slots):
            ids[k, : len(slots)] = torch.tensor(slots)
        ids = ids.to(device)
        words = self.token_embedding(ids.clamp(min=0))
        return torch.where(ids[..., None] < 0, 0.0, words) + self.positional_embedding[:length]

    # ------------------------------------------------------------------------------------------- plain path

    def _plain(self, context: Tensor, sentences: Sentences, deep: Tensor | None) -> Tensor:
        n_prompts, n_classes, length = len(context), len(sentences), len(self.positional_embedding)
        words = self._words(sentences, length)
        if context.dim() == 3:
            context = context[:, None].expand(-1, n_classes, -1, -1)
        slots = torch.zeros(n_classes, length, dtype=torch.long, device=context.device)
        for k, sentence in enumerate(sentences.slots):
            slots[k, : len(sentence)] = torch.tensor([max(0, -slot) for slot in sentence])
        is_context = (slots > 0)[..., None]
        index = (slots - 1).clamp(min=0)[None, ..., None].expand(n_prompts, -1, -1, self.width)
        x = words + _placed(context, index, is_context, torch.zeros_like(words))
        for j, block in enumerate(self.transformer.resblocks):
            if deep is not None and 1 <= j <= deep.shape[1]:
                tokens = deep[:, j - 1, None].expand(-1, n_classes, -1, -1)
                x = _placed(tokens, index, is_context, x)
            x = block(x.flatten(0, 1), attn_mask=self.mask).view(x.shape)
        return self._project(self._pooled(self.ln_final(x), sentences))

    def _pooled(self, x: Tensor, sentences: Sentences) -> Tensor:
        if self.pool in ("first", "last"):
            return x[:, :, 0 if self.pool == "first" else -1]
        ends = torch.tensor(sentences.lengths, device=x.device) - 1
        return x[:, torch.arange(x.shape[1], device=x.device), ends]

    # ------------------------------------------------------------------------------------------ packed path

    def _packed(self, context: Tensor, sentences: Sentences, deep: Tensor | None) -> Tensor:
        layout = sentences.per_class if context.dim() == 4 else sentences.shared
        words = self._words(sentences, max(sentences.lengths))
        prefix, suffixes = self._embedded(context, layout, words)
        blocks = self.transformer.resblocks
        for j, block in enumerate(blocks):
            if deep is not None and 1 <= j <= deep.shape[1]:
                prefix, suffixes = _replaced(prefix, suffixes, layout, deep[:, j - 1])
            prefix, suffixes = _block(block, prefix, suffixes, last=j == len(blocks) - 1)
        ends = torch.cat([x[:, :, -1] for x in suffixes], dim=1)  # [P, K, d] in the order of the groups
        ends = ends[:, torch.tensor(layout.inverse, device=ends.device)]
        return self._project(self.ln_final(ends))

    def _embedded(self, context: Tensor, layout: Layout, words: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The prefix [P or 1, n, d] and the suffixes, one [P, G, s, d] per group."""
        per_class = context.dim() == 4
        shared = context[:, 0] if per_class else context
        prefix = self._joined(layout.prefix, 0, words[0], shared)
        suffixes = []
        for group in layout.groups:
            classes = torch.tensor(group.classes, device=context.device)
            own = context[:, classes] if per_class else context[:, None].expand(-1, len(classes), -1, -1)
            x = self._joined(group.runs, group.start, words[classes], own)
            suffixes.append(x.expand(len(context), *x.shape[-3:]))
        return prefix, suffixes

    def _joined(self, runs: tuple[Run, ...], start: int, words: Tensor, context: Tensor) -> Tensor:
        pieces = []
        for run in runs:
            stop = start + run.stop - run.start
            piece = words[..., start:stop, :]
            pieces.append(piece + context[..., run.start : run.stop, :] if run.context else piece)
            start = stop
        batch = torch.broadcast_shapes(*(piece.shape[:-2] for piece in pieces)) if pieces else (1,)
        batch = (1, *batch) if len(batch) < words.dim() - 1 else batch
        pieces = [piece.expand(*batch, *piece.shape[-2:]) for piece in pieces]
        return torch.cat(pieces, dim=-2) if pieces else words.new_zeros(*batch, 0, words.shape[-1])


def _placed(context: Tensor, index: Tensor, is_context: Tensor, x: Tensor) -> Tensor:
    """x [P, K, L, d] with context tokens [P, K, l, d] at their places."""
    if context.shape[-2] == 0:
        return x
    return torch.where(is_context, context.gather(2, index), x)


def _replaced(
    prefix: Tensor, suffixes: list[Tensor], layout: Layout, tokens: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Prefix and suffixes with their context tokens replaced by `tokens` [P, l, d]."""
    prefix = _swapped(prefix, layout.prefix, tokens)
    return prefix, [
        _swapped(x, group.runs, tokens[:, None].expand(-1, x.shape[1], -1, -1))
        for x, group in zip(suffixes, layout.groups, strict=True)
    ]


def _swapped(x: Tensor, runs: tuple[Run, ...], tokens: Tensor) -> Tensor:
    if not any(run.context for run in runs):
        return x
    pieces, start = [], 0
    for run in runs:
        stop = start + run.stop - run.start
        pieces.append(tokens[..., run.start : run.stop, :] if run.context else x[..., start:stop, :])
        start = stop
    return torch.cat(pieces, dim=-2)


def _is_usual(block: Any) -> bool:
    return isinstance(getattr(block, "attn", None), nn.MultiheadAttention) and not hasattr(block, "ln_1_kv")


def _heads(x: Tensor, n_heads: int) -> Tensor:
    """[..., n, d] -> [..., H, n, d/H]"""
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


def _block(block: Any, prefix: Tensor, suffixes: list[Tensor], *, last: bool) -> tuple[Tensor, list[Tensor]]:
    """One residual block over the prefix [P or 1, n, d] and the suffixes [P, G, s, d]."""
    attn: nn.MultiheadAttention = block.attn
    q, k, v = F.linear(block.ln_1(prefix), attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
    keys, values = _heads(k, attn.num_heads), _heads(v, attn.num_heads)  # [P, H, n, d/H]
    if not last and prefix.shape[-2]:
        mixed = F.scaled_dot_product_attention(_heads(q, attn.num_heads), keys, values, is_causal=True)
        prefix = prefix + block.ls_1(attn.out_proj(mixed.transpose(-3, -2).flatten(-2)))
        prefix = prefix + block.ls_2(block.mlp(block.ln_2(prefix)))
    return prefix, [_suffix_block(block, x, keys, values, last=last) for x in suffixes]


def _suffix_block(block: Any, x: Tensor, keys: Tensor, values: Tensor, *, last: bool) -> Tensor:
    """Suffixes [P, G, s, d] through a block, attending to the prefix's keys and values [P, H, n, d/H]."""
    attn: nn.MultiheadAttention = block.attn
    n_heads, n_prefix, length = attn.num_heads, keys.shape[-2], x.shape[2]
    q, k, v = F.linear(block.ln_1(x), attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
    x, q = (x[:, :, -1:], q[:, :, -1:]) if last else (x, q)
    q, k, v = (_heads(y, n_heads) for y in (q, k, v))  # [P, G, H, s, d/H]
    to_own = q @ k.transpose(-2, -1)
    if not last:
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        to_own = to_own.masked_fill(ahead, -math.inf)
    to_prefix = q @ keys[:, None].transpose(-2, -1)
    weights = (torch.cat([to_prefix, to_own], dim=-1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
    mixed = weights[..., :n_prefix] @ values[:, None] + weights[..., n_prefix:] @ v
    x = x + block.ls_1(attn.out_proj(mixed.transpose(-3, -2).flatten(-2)))
    return x + block.ls_2(block.mlp(block.ln_2(x)))
