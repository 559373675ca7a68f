"""Prompted text encoding through a frozen CLIP text tower: the plain path and the packed one.

Letters in shapes: P prompts (clients, experts, images: all leading axes flattened), K classes, l context
tokens, d text width, D embedding width.

The plain path runs every sentence at its full length through open_clip's modules. The packed path computes the same
features from fewer tokens: the shared prefix once per prompt, each suffix without padding, and in the last block the
EOT tokens only.
"""

from __future__ import annotations

from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fpl_tune.clip.attention import for_prompts, kept_numbers
from fpl_tune.clip.blocks import Block
from fpl_tune.clip.layout import Layout
from fpl_tune.clip.opened import run_block
from fpl_tune.clip.sentences import Sentences
from fpl_tune.core.device import activation_bytes
from fpl_tune.method import Adapter

_AT_ONCE = 16384  # tokens per pass without gradients; more is not faster
_KEPT_CPU, _KEPT_SHARE = 3 << 29, 0.3  # by tokens run at once with gradients: bytes, or a share of a GPU's memory
_TURNS = 4  # parts of what is kept that are run one after another where all of it does not fit
_KEPT_PER_TOKEN = 6  # numbers per token, width and block: two inputs and the hidden layer; attention comes on top


class Cost(NamedTuple):
    """The cost of encoding: tokens run through the blocks, and operations (a multiplication and an addition are
    two) of the matrix products, forward and backward."""

    tokens: int
    forward: int
    backward: int

    @property
    def operations(self) -> int:
        return self.forward + self.backward


class TextTower(nn.Module):
    """The text half of an open_clip CLIP, its modules shared with the model they come from."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        self.token_embedding: nn.Embedding = text.token_embedding
        self.positional_embedding: Tensor = text.positional_embedding
        self.transformer: Any = text.transformer
        self.ln_final: nn.LayerNorm = text.ln_final
        self.projection: Tensor = text.text_projection
        self.mask: Tensor | None
        self.register_buffer("mask", text.attn_mask, persistent=False)

    @property
    def width(self) -> int:
        """d, of a token."""
        return self.positional_embedding.shape[1]

    @property
    def embed_dim(self) -> int:
        """D, of a feature."""
        return self.projection.shape[1]

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks of the packed path; none if attention is not causal, or blocks are not the usual ones."""
        blocks = [Block.of(module) for module in self.transformer.resblocks]
        usual = self.mask is not None and len(blocks) > 1 and None not in blocks
        return [block for block in blocks if block is not None] if usual else []

    def forward(
        self,
        context: Tensor,
        sentences: Sentences,
        *,
        deep: Tensor | None,
        adapter: Adapter | None = None,
        plain: bool,
        block: int | None,
    ) -> Tensor:
        """Text features [P, K, D] of contexts [P, l, d], or [P, K, l, d] for contexts of each class's own.

        `deep` [P, J, l, d] replaces the context at the input of blocks 1 to J, `adapter` [P, ...] adds a branch to
        blocks. At most `block` tokens are run at once (but at least one prompt); where gradients are asked for and that
        needs several turns, activations are computed again in the backward pass. None sets a generous limit, by memory
        where gradients are asked for.
        """
        if not len(context):
            return context.new_zeros(0, len(sentences), self.embed_dim)
        layout = sentences.layout(per_class=context.dim() == 4, device=context.device, dtype=context.dtype)
        tokens = len(sentences) * len(self.positional_embedding) if plain else layout.n_tokens
        given = (context, deep, *(adapter.leaf.values() if adapter else ()))
        wants_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
        if block is None:
            block = self._affordable(context, layout) if wants_grad else _AT_ONCE
        if len(context) * tokens <= block:
            return self._run(context, deep, adapter, sentences, plain)
        at_once = max(1, block // _TURNS) if wants_grad else block
        turn, kept, found = max(1, at_once // tokens), at_once, []
        for first in range(0, len(context), turn):
            rows = slice(first, first + turn)
            branch = None if adapter is None else adapter.each(itemgetter(rows))
            args = (context[rows], None if deep is None else deep[rows], branch, sentences, plain)
            kept += len(args[0]) * tokens
            again = partial(checkpoint, self._run, use_reentrant=False, preserve_rng_state=False)
            found.append(again(*args) if wants_grad and kept > block else self._run(*args))
        return torch.cat(found)

    def _run(
        self, context: Tensor, deep: Tensor | None, adapter: Adapter | None, sentences: Sentences, plain: bool
    ) -> Tensor:
        if plain:
            return self._plain(context, sentences, deep, adapter)
        layout = sentences.layout(per_class=context.dim() == 4, device=context.device, dtype=context.dtype)
        return self._packed(context, layout, deep, adapter)

    def prompts_at_once(self, sentences: Sentences, dtype: torch.dtype) -> int:
        """Prompts whose activations may be kept together for the backward pass; at least one."""
        like = self.positional_embedding.new_empty(0, dtype=dtype)
        layout = sentences.layout(per_class=False, device=like.device, dtype=dtype)
        return max(1, self._affordable(like, layout) // layout.n_tokens)

    def _affordable(self, like: Tensor, layout: Layout) -> int:
        """Tokens whose activations may be kept for the backward pass."""
        blocks = self.transformer.resblocks
        per_token = _KEPT_PER_TOKEN + kept_numbers(layout, self.width, blocks[0].attn.num_heads)
        n_bytes = int(per_token * self.width) * len(blocks) * like.element_size()
        return activation_bytes(like.device, cpu=_KEPT_CPU, share=_KEPT_SHARE) // n_bytes

    # ------------------------------------------------------------------------------------------- plain path

    def _plain(self, context: Tensor, sentences: Sentences, deep: Tensor | None, adapter: Adapter | None) -> Tensor:
        n_classes, length = len(sentences), len(self.positional_embedding)
        slots = torch.tensor([[*tokens, *[0] * (length - len(tokens))] for tokens in sentences.slots])
        slots = slots.to(context.device)
        if context.dim() == 3:
            context = context[:, None].expand(-1, n_classes, -1, -1)
        x = _placed(self.token_embedding(slots.clamp(min=0)), context, slots) + self.positional_embedding
        for j, block in enumerate(self.transformer.resblocks):
            if deep is not None and 1 <= j <= deep.shape[1]:
                x = _placed(x, deep[:, j - 1, None].expand(-1, n_classes, -1, -1), slots)
            x = run_block(block, x, None if adapter is None else adapter.at(j), self.mask)
        ends = torch.tensor(sentences.lengths, device=x.device) - 1
        return self.ln_final(x)[:, torch.arange(n_classes, device=x.device), ends] @ self.projection

    # ------------------------------------------------------------------------------------------ packed path

    def _packed(self, context: Tensor, layout: Layout, deep: Tensor | None, adapter: Adapter | None) -> Tensor:
        if context.dim() == 4:
            own = context[:, layout.owner, layout.slot]
        else:
            own = context if layout.in_order else context[:, layout.slot]
        first, *rest = self.blocks
        words, qkv, places = self._constants(layout)
        if adapter is not None and not own.shape[1]:  # up to the first branch, all prompts have the same sentences
            own = own[:1]
        branches = [None if adapter is None else adapter.at(j) for j in range(len(self.blocks))]
        laid = for_prompts(layout, len(own))
        x = first.first(words, qkv, own + places, laid, branches[0])
        for j, block in enumerate(rest, start=1):
            if len(x) != len(own):
                own, laid = x, for_prompts(layout, len(x))
            if deep is not None and j <= deep.shape[1]:
                x = x.index_copy(1, layout.context, deep[:, j - 1, layout.slot])
            x = block(x, laid, branches[j], ends=block is rest[-1])
        return self.ln_final(x).index_select(1, layout.inverse) @ self.projection

    @torch.no_grad()
    def _constants(self, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Independent of prompts: embedded words [1, R, d] and their queries, keys and values in the first block, and
        the context's positional embeddings [c, d]. They live as long as the layout: a recorded graph reads them."""
        if not layout.kept or layout.kept[0] is not self:
            places = self.positional_embedding[layout.positions]
            words = (self.token_embedding(layout.ids) + places)[None]
            layout.kept[:] = self, (words, self.blocks[0].projected(words), places[layout.context])
        return layout.kept[1]


def _placed(x: Tensor, context: Tensor, slots: Tensor) -> Tensor:
    """x, [P, K, L, d] or the same [K, L, d] for all, with context tokens [P, K, l, d] where `slots` [K, L] says."""
    if context.shape[-2] == 0:
        return x.expand(len(context), -1, -1, -1)
    index = (-1 - slots).clamp(min=0)[None, ..., None].expand(len(context), -1, -1, x.shape[-1])
    return torch.where(slots[..., None] < 0, context.gather(2, index), x)


def cost(
    tower: TextTower,
    sentences: Sentences,
    n_prompts: int,
    *,
    per_class: bool = False,
    plain: bool = False,
    below: int = 0,
) -> Cost:
    """Tokens and operations of encoding `n_prompts` prompts, with gradients by the contexts, or where there are none,
    by branches above the first `below` blocks, which then run once for all prompts.

    Weights are frozen, so the backward pass of a linear layer costs as much as its forward pass, and that of
    attention (two products become four) twice as much. `plain` counts the reference path.
    """
    width, modules, n_classes = tower.width, tower.transformer.resblocks, len(sentences)
    qkv, rest = 3 * width**2, width**2 + 2 * width * modules[0].mlp.c_fc.out_features
    if plain or not tower.blocks:
        n_rows = n_classes * len(tower.positional_embedding)
        linear, constant = len(modules) * n_rows * (qkv + rest), 0
        pairs = len(modules) * n_rows * len(tower.positional_embedding)
    else:
        layout = sentences.layout(per_class=per_class)  # without rows that pad
        n_rows, n_blocks = layout.n_tokens, len(modules) - 1  # the last block is one of EOT tokens
        constant = n_rows * qkv  # of the first block, only context rows depend on the prompt
        linear = n_blocks * n_rows * (qkv + rest) + n_classes * rest + len(layout.context) * qkv
        own = sum(group.n_classes * group.length * (n_blocks * group.length + 1) for group in layout.groups)
        pairs = (n_blocks * n_rows + n_classes) * layout.n_prefix + own
        if below:
            once = below * n_rows * (qkv + rest)
            seen = below * (n_rows * layout.n_prefix + sum(g.n_classes * g.length**2 for g in layout.groups))
            linear, pairs, constant = linear - once + constant, pairs - seen, once + 2 * seen * width
    linear += n_classes * width * tower.embed_dim
    forward, backward = n_prompts * (linear + 2 * pairs * width), n_prompts * (linear + 4 * pairs * width)
    return Cost(n_prompts * n_rows, 2 * (forward + constant), 2 * backward)
