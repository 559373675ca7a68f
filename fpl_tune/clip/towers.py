"""The two frozen towers of a CLIP model: from prompts or pixels to features.

The weights are never trained; gradients flow to the arguments.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fpl_tune.clip import image
from fpl_tune.clip.sentences import Position, Sentences, tokenise
from fpl_tune.clip.text import text_tower
from fpl_tune.clip.tokenizer import Tokenizer
from fpl_tune.core.device import usable_bytes
from fpl_tune.core.errors import ConfigError
from fpl_tune.data.transform import CLIP, Transform
from fpl_tune.method import Adapter

_PIXELS_CPU, _PIXELS_GPU = 8 * 224**2, 1024 * 224**2
"""At most in one pass of the image tower: more is not faster, and on CPUs costs page faults."""
_BYTES_PER_PIXEL = 1000
"""Memory of a GPU for each of them: an RN50 in float32 holds about 200, so that a pass takes a fifth of the memory."""


class Towers:
    """An open_clip model in evaluation mode with frozen weights.

    A logit bias (SigLIP's) does not change probabilities of classes and is left out.

    Attributes:
        name: of the towers in configurations.
        embed_dim: D, the width of text and image features.
        text_width: d, the width of a context token.
        vision_width: width of the image tower's tokens.
        image_size: pixels along a side.
        n_patches: M, or None if the image tower has no patch features.
        n_text_blocks: transformer blocks of the text tower that prompts and branches reach; 0 of Hugging Face's.
        n_vision_blocks: transformer blocks of the image tower; None if it is not a ViT.
        scale: exp(logit_scale), the inverse temperature of the logits.
        preprocessing: resizing and normalisation of images, as the weights were trained.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        *,
        name: str,
        preprocessing: Transform = CLIP,
    ) -> None:
        """Freezes `model`.

        Raises:
            ConfigError: see `fpl_tune.clip.text.text_tower`.
        """
        self.model: Any = model.eval().requires_grad_(False)
        self.text = text_tower(name, self.model, tokenizer.pad)
        self.tokenizer = tokenizer
        self.name, self.preprocessing = name, preprocessing
        visual = self.model.visual
        size = visual.image_size
        self.image_size = int(size[0] if isinstance(size, Sequence) else size)
        self.text_width = self.text.width
        self.scale = math.exp(float(self.model.logit_scale))
        self.vision_width, self.n_patches = image.sizes(visual)
        self.embed_dim = self.text.embed_dim
        self.n_text_blocks = len(self.text.resblocks)
        self.n_vision_blocks = len(visual.transformer.resblocks) if image.is_vit(visual) else None

    @property
    def device(self) -> torch.device:
        return self.text.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.text.token_embedding.weight.dtype

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits over weights, sizes and preprocessing; equal towers give equal features."""
        how = self.preprocessing
        pool = self.text.pool if self.text.pool == "argmax" else f"{self.text.pool} {self.text.pad}"
        digest = hashlib.sha256(f"{how.mean} {how.std} {pool} {_activation(self.model)}".encode())
        if how != replace(CLIP, mean=how.mean, std=how.std):
            digest.update(f"{how.resize} {how.interpolation} {how.fill}".encode())
        for key, value in self.model.state_dict().items():
            digest.update(f"{key} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    # ------------------------------------------------------------------------------------------------- text

    def sentences(
        self, names: Sequence[str], n_ctx: int, *, position: Position = "end", tail: str = "", ending: str = "."
    ) -> Sentences:
        """The K class names as tokenised sentences with room for `n_ctx` context tokens.

        Raises:
            ConfigError: see `fpl_tune.clip.sentences.tokenise`.
        """
        return tokenise(self.tokenizer, names, n_ctx, position=position, tail=tail, ending=ending)

    def words(self, text: str) -> Tensor:
        """[l, d] token embeddings of a text, without SOS and EOT, to start a context from words."""
        ids = torch.tensor(self.tokenizer.encode(text), dtype=torch.int64, device=self.device)
        return self.text.token_embedding(ids)

    def encode_prompts(
        self,
        context: Tensor,
        sentences: Sentences,
        *,
        per_class: bool = False,
        deep: Tensor | None = None,
        adapter: Adapter | None = None,
        plain: bool = False,
        block: int | None = None,
    ) -> Tensor:
        """Text features of every class under every context, not normalised, in the dtype of `context`.

        Args:
            context: [..., l, d], or [..., K, l, d] with `per_class`; leading axes of any number.
            deep: [..., J, l, d], replaces the context tokens at the input of blocks 1 to J (MaPLe, Khattak et
                al. 2023, section 3.2); None leaves what the blocks made of them.
            adapter: a branch of each client's in the blocks, leaves [C, J, ...]; `context` is then [C, l, d] or one for
                all clients, and features are [C, K, D].
            plain: run the tower's own modules on whole sentences; slow, the reference of the fast path.
            block: tokens run at once; None takes what 1.5 GB of activations hold (30 % of a GPU's memory). With
                gradients, more tokens than that are run in turns and a second time in the backward pass: memory for
                time. The result is the same.

        Returns:
            [..., K, D], differentiable in `context`, `deep` and the leaves of `adapter`.

        Raises:
            ConfigError: the shape of `context`, `deep` or `adapter` does not fit the sentences or the tower.
        """
        own = 1 if per_class else 0
        self._check(context, sentences, own, deep, adapter)
        lead = context.shape[: context.dim() - 2 - own]
        if deep is not None:
            lead = np.broadcast_shapes(lead, deep.shape[:-3])  # that of PyTorch imports sympy
            deep = deep.expand(*lead, *deep.shape[-3:]).reshape(-1, *deep.shape[-3:]).to(self.dtype)
        if adapter is not None:
            lead = (len(next(iter(adapter.leaf.values()))),)
            adapter = adapter.each(lambda leaf: leaf.to(self.dtype))
        tail = context.shape[context.dim() - 2 - own :]
        rows = context.expand(*lead, *tail).reshape(math.prod(lead), *tail).to(self.dtype)
        features = self.text(rows, sentences, deep=deep, adapter=adapter, plain=plain or not self._fast, block=block)
        return features.to(context.dtype).unflatten(0, lead) if lead else features[0].to(context.dtype)

    @cached_property
    def _fast(self) -> bool:
        if not self.text.blocks:
            warnings.warn(
                f"The text tower of {self.name!r} has unusual blocks: "
                "its own modules run sentences at full length (slow).",
                stacklevel=3,
            )
        return bool(self.text.blocks)

    def _check(
        self, context: Tensor, sentences: Sentences, own: int, deep: Tensor | None, adapter: Adapter | None
    ) -> None:
        if not self.n_text_blocks and (deep is not None or adapter is not None):
            raise ConfigError(
                f"Neither deep prompts nor branches reach inside the text tower of {self.name!r}, which sentences pass "
                "as a whole: use other towers, or a method on contexts."
            )
        own_shape = (len(sentences), sentences.n_ctx, self.text_width)[1 - own :]
        if tuple(context.shape[-2 - own :]) != own_shape:
            expected = f"{'K, ' * own}l, d] with K={len(sentences)}, l={sentences.n_ctx}, d={self.text_width}"
            raise ConfigError(f"A context is [..., {expected}, not of shape {tuple(context.shape)}.")
        if deep is not None and (deep.shape[-2:] != own_shape[own:] or deep.shape[-3] >= self.n_text_blocks):
            raise ConfigError(
                f"Deep prompts are [..., J, l, d] with J < {self.n_text_blocks} blocks, l={sentences.n_ctx}, "
                f"d={self.text_width}, not of shape {tuple(deep.shape)}."
            )

    @torch.no_grad()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Features [n, D] of whole hand-written sentences, not normalised, without gradient."""
        sentences = self.sentences(list(texts), 0, ending="")
        return self.encode_prompts(self.text.token_embedding.weight.new_zeros(0, self.text_width), sentences)

    # ----------------------------------------------------------------------------------------------- images

    def normalise(self, images: Tensor | np.ndarray) -> Tensor:
        """Pixels [..., 3, H, W] for the image tower, of images with channels last or third from last.

        uint8 images hold 0 to 255, floating images 0 to 1.
        """
        images = torch.as_tensor(images, device=self.device)
        if images.shape[-1] == 3 and images.shape[-3] != 3:
            images = images.movedim(-1, -3)
        pixels = images.to(self.dtype) / 255 if images.dtype == torch.uint8 else images.to(self.dtype)
        mean, std = self._pixels
        return (pixels - mean) / std

    @cached_property
    def _pixels(self) -> Tensor:
        """[2, 3, 1, 1] mean and deviation of a channel, moved to the device once."""
        how = self.preprocessing
        return torch.tensor([how.mean, how.std], dtype=self.dtype, device=self.device)[..., None, None]

    def blocks_below(self, last: int | None) -> int:
        """Blocks of the image tower below its `last` ones; 0 with None, or where it is not a ViT."""
        return max(0, (self.n_vision_blocks or 0) - last) if last is not None else 0

    @torch.no_grad()
    def encode_images(self, pixels: Tensor, *, patches: bool = False, blocks: int = 0) -> Tensor:
        """Image features [..., D], or [..., M, D] with `patches`, not normalised, without gradient.

        Args:
            pixels: [..., 3, H, W], as `normalise` gives them.
            patches: a feature of every patch.
            blocks: above 0, the tokens [..., 1 + M, vision_width] after so many blocks of a ViT.

        Raises:
            ConfigError: `patches` of an image tower that has none.
        """
        rows = pixels.reshape(-1, *pixels.shape[-3:])
        limit = _PIXELS_CPU
        if self.device.type != "cpu":
            limit = min(_PIXELS_GPU, usable_bytes(self.device) // _BYTES_PER_PIXEL)
        encode = partial(self.model.encode_image, normalize=False)
        if patches:
            encode = partial(image.patches, self.model.visual)
        if blocks:
            encode = partial(image.after_blocks, self.model.visual, n_blocks=blocks)
        parts = rows.to(self.dtype).split(max(1, limit // math.prod(pixels.shape[-2:])))
        features = torch.cat([encode(part) for part in parts]).to(pixels.dtype)
        return features.reshape(*pixels.shape[:-3], *features.shape[1:])

    def encode_prompted_images(
        self, images: Tensor, tokens: Tensor, *, deep: Tensor | None = None, adapter: Adapter | None = None, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """Image features [C, B, D] with visual prompt tokens, and q_cls·k_token or its cosine [C, B, heads, n].

        Differentiable in `tokens` [C, n, vision_width], `deep` [C, J, n, vision_width] and the leaves of `adapter`
        [C, J, ...]; not normalised. `how` is `cosine` and `passed` of `fpl_tune.clip.image.prompted`.

        Raises:
            ConfigError: the image tower is not a ViT, or images have passed what prompts or adapters change.
        """
        deep = None if deep is None else deep.to(self.dtype)
        adapter = None if adapter is None else adapter.each(lambda leaf: leaf.to(self.dtype))
        visual, given = self.model.visual, images.to(self.dtype)
        features, looks = image.prompted(visual, given, tokens.to(self.dtype), deep=deep, adapter=adapter, **how)
        return features.to(tokens.dtype), looks.to(tokens.dtype)

    @torch.no_grad()
    def embed_images(self, pixels: Tensor) -> Tensor:
        """Patch embeddings with positions [..., M, vision_width], before the first LayerNorm, without gradient.

        Raises:
            ConfigError: the image tower is not a ViT.
        """
        visual = self.model.visual
        image.require_vit(visual)
        rows = image.embedded(visual, pixels.reshape(-1, *pixels.shape[-3:]).to(self.dtype))[:, 1:]
        return rows.to(pixels.dtype).view(*pixels.shape[:-3], *rows.shape[1:])


def _activation(model: nn.Module) -> str:
    """Names of the modules without parameters, which distinguish activations."""
    kinds = {type(module).__name__ for module in model.modules() if not list(module.parameters())}
    return " ".join(sorted(kinds))
