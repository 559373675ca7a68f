"""Prompted text encoding through a frozen text tower: the plain path and the packed one.

Letters in shapes: P prompts (clients, experts, images: all leading axes flattened), K classes, l context
tokens, L tokens of a sentence filled up, d text width, D embedding width.

The plain path runs every sentence at its full length through the modules of open_clip and Hugging Face. The packed path
computes the same features from fewer tokens: in a causal tower the shared prefix once per prompt, sentences without
what fills them up unless the tower sees it, and in the last block only the tokens that count.
"""

from __future__ import annotations

from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fpl_tune.clip.attention import for_prompts, kept_numbers
from fpl_tune.clip.blocks import Block
from fpl_tune.clip.layout import CAUSAL, Layout, Reading
from fpl_tune.clip.opened import run_block
from fpl_tune.clip.sentences import Sentences
from fpl_tune.core.device import activation_bytes
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Adapter

_AT_ONCE = 16384  # tokens per pass without gradients; more is not faster
_KEPT_CPU, _KEPT_SHARE = 3 << 29, 0.3  # by tokens run at once with gradients: bytes, or a share of a GPU's memory
_TURNS = 4  # parts of what is kept that are run one after another where all of it does not fit
_KEPT_PER_TOKEN = 6  # numbers per token, width and block: two inputs and the hidden layer; attention comes on top
_KEPT_PLAIN = 16  # by the blocks of open_clip and Hugging Face, attention included


_LIKE_BERT = ("BertModel", "RobertaModel", "XLMRobertaModel")
_POOLERS: dict[str, Literal["first", "all"]] = {
    **{"ClsPooler": "first", "ClsLastHiddenStatePooler": "first", "MeanPooler": "all"},
}


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
    """The text half of an open_clip model with CLIP's kind of transformer, its modules shared with the model.

    Attributes:
        pad: id that fills sentences up.
        pool: the token whose feature counts: `argmax` or `eos`, the end of the sentence; `last` or `first` of all.
        resblocks: the blocks that deep prompts and branches reach.
        n_blocks: all blocks that a token passes.
    """

    def __init__(self, text: Any, pad: int = 0) -> None:
        super().__init__()
        self.pad = pad
        self.pool: str = getattr(text, "text_pool_type", "") or text.pool_type
        self.token_embedding: nn.Embedding = text.token_embedding
        self.positional_embedding: Tensor = text.positional_embedding
        self.resblocks: list[Any] = list(text.transformer.resblocks)
        self.n_blocks, self._encoder = len(self.resblocks), self.resblocks
        self.ln_final: nn.Module = text.ln_final
        self.projection: nn.Linear | Tensor | None = text.text_projection
        self.mask: Tensor | None
        self.register_buffer("mask", text.attn_mask, persistent=False)

    @property
    def width(self) -> int:
        """d, of a token."""
        return self.token_embedding.weight.shape[1]

    @property
    def embed_dim(self) -> int:
        """D, of a feature."""
        matrix = self.projection.weight.t() if isinstance(self.projection, nn.Linear) else self.projection
        return self.width if matrix is None else matrix.shape[1]

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks of the packed path; none if they are not the usual ones."""
        blocks = [Block.of(module) for module in self.resblocks]
        usual = self.mask is None or self.pool in ("argmax", "eos")
        return _all(blocks) if usual else []

    @property
    def reading(self) -> Reading:
        """How the packed path reads sentences."""
        if self.mask is not None:
            return CAUSAL
        pooled = "first" if self.pool == "first" else "last" if self.pool == "last" else "end"
        return Reading(causal=False, filled=(len(self.positional_embedding), self.pad), pooled=pooled)

    def layout(self, sentences: Sentences, like: Tensor, *, per_class: bool = False) -> Layout:
        """The layout of the packed path, on the device of `like` and with its dtype."""
        return sentences.layout(per_class=per_class, device=like.device, dtype=like.dtype, reading=self.reading)

    def length(self, sentences: Sentences) -> int:
        """L, tokens of a sentence on the plain path."""
        del sentences
        return len(self.positional_embedding)

    def n_weights(self) -> int:
        """Weights of the linear layers that a token passes."""
        modules = (module for part in self._encoder for module in part.modules())
        linear = [module for module in modules if isinstance(module, nn.Linear | nn.MultiheadAttention)]
        return sum(p.numel() for module in linear for p in module.parameters(recurse=False) if p.dim() == 2)

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
        blocks. At most `block` tokens are run at once (but at least one prompt, or one sentence where they share
        nothing); where gradients are asked for, what does not fit is computed again in the backward pass. None sets a
        generous limit, by memory where gradients are asked for.
        """
        if not len(context):
            return context.new_zeros(0, len(sentences), self.embed_dim)
        tokens = self._tokens(context, sentences, plain)
        given = (context, deep, *(adapter.leaf.values() if adapter else ()))
        wants_grad = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
        if block is None:
            layout = None if plain else self.layout(sentences, context, per_class=context.dim() == 4)
            block = self._affordable(context, layout) if wants_grad else _AT_ONCE
        if len(context) * tokens <= block:
            return self._run(context, deep, adapter, sentences, plain)
        at_once = max(1, block // _TURNS) if wants_grad else block
        alone = plain or not self.reading.causal  # sentences share nothing
        parts = sentences.split(max(1, at_once * len(sentences) // tokens)) if alone else [sentences]
        kept, found, start = at_once, [], 0
        for part in parts:
            own = context[:, start : start + len(part)] if context.dim() == 4 else context
            start, tokens, rows = start + len(part), self._tokens(own, part, plain), []
            for some in _slices(len(context), max(1, at_once // tokens)):
                branch = None if adapter is None else adapter.each(itemgetter(some))
                args = (own[some], None if deep is None else deep[some], branch, part, plain)
                kept += len(args[0]) * tokens
                again = partial(checkpoint, self._run, use_reentrant=False, preserve_rng_state=False)
                rows.append(again(*args) if wants_grad and kept > block else self._run(*args))
            found.append(torch.cat(rows))
        return torch.cat(found, 1)

    def _tokens(self, context: Tensor, sentences: Sentences, plain: bool) -> int:
        """Tokens of a prompt that are run."""
        if plain:
            return len(sentences) * self.length(sentences)
        return self.layout(sentences, context, per_class=context.dim() == 4).n_tokens

    def _run(
        self, context: Tensor, deep: Tensor | None, adapter: Adapter | None, sentences: Sentences, plain: bool
    ) -> Tensor:
        if plain:
            return self._plain(context, sentences, deep, adapter)
        return self._packed(context, self.layout(sentences, context, per_class=context.dim() == 4), deep, adapter)

    def prompts_at_once(self, sentences: Sentences, dtype: torch.dtype) -> int:
        """Prompts whose activations may be kept together for the backward pass; at least one."""
        like = self.token_embedding.weight.new_empty(0, dtype=dtype)
        if not self.blocks:
            return max(1, self._affordable(like, None) // (len(sentences) * self.length(sentences)))
        layout = self.layout(sentences, like)
        return max(1, self._affordable(like, layout) // layout.n_tokens)

    def _affordable(self, like: Tensor, layout: Layout | None) -> int:
        """Tokens whose activations may be kept for the backward pass; None is the plain path."""
        per_token = float(_KEPT_PLAIN)
        if layout is not None:
            per_token = _KEPT_PER_TOKEN + kept_numbers(layout, self.width, self.blocks[0].n_heads)
        n_bytes = int(per_token * self.width) * self.n_blocks * like.element_size()
        return activation_bytes(like.device, cpu=_KEPT_CPU, share=_KEPT_SHARE) // n_bytes

    # ------------------------------------------------------------------------------------------- plain path

    def _plain(self, context: Tensor, sentences: Sentences, deep: Tensor | None, adapter: Adapter | None) -> Tensor:
        n_classes, slots = len(sentences), self._slots(sentences)
        if context.dim() == 3:
            context = context[:, None].expand(-1, n_classes, -1, -1)
        x = _placed(self.token_embedding(slots.clamp(min=0)), context, slots) + self.positional_embedding
        for j, block in enumerate(self.resblocks):
            if deep is not None and 1 <= j <= deep.shape[1]:
                x = _placed(x, deep[:, j - 1, None].expand(-1, n_classes, -1, -1), slots)
            x = run_block(block, x, None if adapter is None else adapter.at(j), self.mask)
        ends = torch.tensor(sentences.lengths, device=x.device) - 1
        if self.pool in ("first", "last"):
            ends = torch.full_like(ends, 0 if self.pool == "first" else x.shape[2] - 1)
        return self._projected(self.ln_final(x)[:, torch.arange(n_classes, device=x.device), ends])

    def _slots(self, sentences: Sentences) -> Tensor:
        """[K, L] the tokens of each sentence, filled up."""
        length = self.length(sentences)
        rows = [[*tokens, *[self.pad] * (length - len(tokens))] for tokens in sentences.slots]
        return torch.tensor(rows, device=self.token_embedding.weight.device)

    def _projected(self, x: Tensor) -> Tensor:
        if isinstance(self.projection, nn.Linear):
            return self.projection(x)
        return x if self.projection is None else x @ self.projection

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
        x = first.first(words, qkv, self._embedded(own, places), laid, branches[0])
        for j, block in enumerate(rest, start=1):
            if len(x) != len(own):
                own, laid = x, for_prompts(layout, len(x))
            if deep is not None and j <= deep.shape[1]:
                x = x.index_copy(1, layout.context, deep[:, j - 1, layout.slot])
            x = block(x, laid, branches[j], ends=block is rest[-1] and layout.reading.pooled != "all")
        return self._pooled(x, layout)

    @torch.no_grad()
    def _constants(self, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Independent of prompts: embedded words [1, R, d] and their queries, keys and values in the first block, and
        the context's positional embeddings [c, d]. They live as long as the layout: a recorded graph reads them."""
        if not layout.kept or layout.kept[0] is not self:
            places = self._places(layout.positions)
            words = self._embedded(self.token_embedding(layout.ids), places)[None]
            layout.kept[:] = self, (words, self.blocks[0].projected(words), places[layout.context])
        return layout.kept[1]

    def _places(self, positions: Tensor) -> Tensor:
        """[..., d] what a token gets by its position."""
        return self.positional_embedding[positions]

    def _embedded(self, words: Tensor, places: Tensor) -> Tensor:
        """Tokens before the first block, of word embeddings or a context."""
        return words + places

    def _pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """Features [P, K, D] of tokens after the last block, which are those that count in the order of the layout."""
        return self._projected(self.ln_final(x).index_select(1, layout.inverse))


class WholeTextTower(TextTower):
    """The text half of an open_clip model that sentences pass as a whole: of Hugging Face, or with CoCa's class token.

    Neither deep prompts nor branches reach inside its blocks; the context takes its place in the embedded words.

    Attributes:
        module: open_clip's module, which embeds, masks what fills up, encodes, pools and projects.
    """

    def __init__(self, text: Any, pad: int = 0) -> None:
        nn.Module.__init__(self)
        self.module, self.pad, self.resblocks, self.projection = text, pad, [], None
        self._masks = hasattr(text, "pooler")  # a text encoder of Hugging Face does not see what fills up
        self.pool = type(text.pooler).__name__ if self._masks else "class token"
        self.token_embedding = _words_of(text.transformer) if self._masks else text.token_embedding
        self._encoder = [text.transformer]
        self.n_blocks = text.config.num_hidden_layers if self._masks else len(text.transformer.resblocks)

    @property
    def embed_dim(self) -> int:
        """D, of a feature."""
        return int(self.module.output_dim)

    @cached_property
    def blocks(self) -> list[Block]:
        """The layers of BERT and its kin; none of other encoders, which have no packed path."""
        encoder = self._encoder[0]
        if type(encoder).__name__ not in _LIKE_BERT or encoder.config.is_decoder or self.pool not in _POOLERS:
            return []
        return _all([Block.of_bert(layer) for layer in encoder.encoder.layer])

    @property
    def reading(self) -> Reading:
        return Reading(causal=False, pooled=_POOLERS[self.pool] if self.blocks else "all")

    def length(self, sentences: Sentences) -> int:
        """L, tokens of a sentence."""
        return max(sentences.lengths) if self._masks else int(self.module.context_length)

    def _plain(self, context: Tensor, sentences: Sentences, deep: Tensor | None, adapter: Adapter | None) -> Tensor:
        del deep, adapter
        slots, n_prompts = self._slots(sentences), len(context)
        if context.dim() == 3:
            context = context[:, None].expand(-1, len(sentences), -1, -1)

        def put(_module: nn.Module, _ids: Any, words: Tensor) -> Tensor:
            return _placed(words.unflatten(0, (n_prompts, -1)), context, slots).flatten(0, 1)

        ids = slots.where(slots >= 0, 0 if self.pad else 1)  # not masked, as what fills up is
        hook = self.token_embedding.register_forward_hook(put)
        try:
            features = self.module(ids.repeat(n_prompts, 1))
        finally:
            hook.remove()
        features = features[0] if isinstance(features, tuple) else features
        return features.unflatten(0, (n_prompts, -1))

    def _places(self, positions: Tensor) -> Tensor:
        embeddings = self._encoder[0].embeddings
        first = getattr(embeddings, "padding_idx", -1) + 1  # RoBERTa's positions begin behind the pad's
        return embeddings.position_embeddings(positions + first) + embeddings.token_type_embeddings.weight[0]

    def _embedded(self, words: Tensor, places: Tensor) -> Tensor:
        return self._encoder[0].embeddings.LayerNorm(words + places)

    def _pooled(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.means is not None:
            return self.module.proj(layout.means @ x)
        x, last = x.index_select(1, layout.inverse), self._encoder[0].pooler
        if last is not None and self.pool == "ClsPooler":
            x = last(x.flatten(0, 1)[:, None]).view(x.shape)
        return self.module.proj(x)


def _slices(n: int, size: int) -> list[slice]:
    """n rows in parts of at most `size`."""
    return [slice(first, first + size) for first in range(0, n, size)]


def _all(blocks: list[Block | None]) -> list[Block]:
    """The blocks, or none of them if one is missing or there are too few."""
    found = [block for block in blocks if block is not None]
    return found if 1 < len(found) == len(blocks) else []


def _words_of(encoder: Any) -> nn.Embedding:
    """The word embeddings of a text encoder of Hugging Face; transformers 4 does not know those of NLLB's."""
    return getattr(encoder, "embed_tokens", None) or encoder.get_input_embeddings()


def text_tower(name: str, model: Any, pad: int = 0) -> TextTower:
    """The text tower of an open_clip model; `pad` is the id that fills sentences up.

    Raises:
        ConfigError: a context cannot be put into its sentences.
    """
    text = model if hasattr(model, "token_embedding") else getattr(model, "text", None)
    if hasattr(text, "pooler") or getattr(text, "cls_emb", None) is not None:
        return WholeTextTower(text, pad)
    pool = getattr(text, "text_pool_type", None) or getattr(text, "pool_type", None)
    if not hasattr(text, "token_embedding") or pool not in ("argmax", "eos", "last", "first"):
        raise ConfigError(
            f"The text tower of {name!r} is not one of open_clip's, so a context cannot be put into its sentences: "
            "use a model of open_clip such as RN50, ViT-B-16, ViT-B-32, or compact."
        )
    return TextTower(text, pad)


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
    width, n_classes, weights, depth = tower.width, len(sentences), tower.n_weights(), tower.n_blocks
    if plain or not tower.blocks:
        length = tower.length(sentences)
        n_rows, constant = n_classes * length, 0
        linear, pairs = n_rows * weights, depth * n_rows * length
    else:
        qkv, rest = 3 * width**2, weights // depth - 3 * width**2
        layout = sentences.layout(per_class=per_class, reading=tower.reading)  # without rows that pad
        n_rows, n_blocks = layout.n_tokens, depth - 1
        whole = layout.reading.pooled == "all"  # else, the last block is one of a token a class
        constant = n_rows * qkv  # of the first block, only context rows depend on the prompt
        linear = n_blocks * n_rows * (qkv + rest) + len(layout.context) * qkv
        linear += (n_rows if whole else n_classes) * rest
        own = sum(n * length * (n_blocks * length + (length if whole else 1)) for _, n, length in layout.groups)
        pairs = (n_blocks * n_rows + n_classes) * layout.n_prefix + own
        if below:
            once = below * n_rows * (qkv + rest)
            seen = below * (n_rows * layout.n_prefix + sum(g.n_classes * g.length**2 for g in layout.groups))
            linear, pairs, constant = linear - once + constant, pairs - seen, once + 2 * seen * width
    linear += n_classes * width * tower.embed_dim
    forward, backward = n_prompts * (linear + 2 * pairs * width), n_prompts * (linear + 4 * pairs * width)
    return Cost(n_prompts * n_rows, 2 * (forward + constant), 2 * backward)
