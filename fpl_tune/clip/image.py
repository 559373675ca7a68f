"""Frozen image features: pooled, per patch, and with visual prompt tokens.

Letters in shapes: n images, C clients, B images of a client, M patches, D embedding width, w vision width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.clip.opened import finish_block, run_block
from fpl_tune.clip.text import Cost
from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Adapter


def is_vit(visual: Any) -> bool:
    """True if the image half is open_clip's own vision transformer, its [cls] token projected."""
    return getattr(visual, "pool_type", None) == "tok" and getattr(visual, "attn_pool", None) is None


def require_vit(visual: Any) -> None:
    """Raises `ConfigError` unless the image half is a vision transformer."""
    if not is_vit(visual):
        raise ConfigError(
            f"Visual prompt tokens need a ViT with a class token, not {type(visual).__name__}: "
            "use ViT-B-16, ViT-B-32 or compact."
        )


def is_resnet(visual: Any) -> bool:
    """True if the image half is a ResNet with CLIP's attention pool."""
    return hasattr(visual, "attnpool")


def sizes(visual: Any) -> tuple[int, int | None]:
    """Width of the image tower's tokens, and number of patches or None."""
    if is_resnet(visual):
        positions, width = visual.attnpool.positional_embedding.shape
        return width, positions - 1
    if is_vit(visual):
        return visual.conv1.out_channels, math.prod(visual.grid_size)
    return int(getattr(getattr(visual, "trunk", None), "num_features", 0)), None


def patches(visual: Any, pixels: Tensor) -> Tensor:
    """Projected features [n, M, D] of every place of the image, the class (or mean) token dropped.

    A ResNet runs its attention pool with every token as query, a ViT its last LayerNorm and projection on all
    tokens (FedOTP, Li et al. 2024, section 3).

    Raises:
        ConfigError: the image half is neither a CLIP ResNet nor a ViT with a class token.
    """
    if is_resnet(visual):
        x = visual.stem(pixels)
        for layer in (visual.layer1, visual.layer2, visual.layer3, visual.layer4):
            x = layer(x)
        return _pool_everywhere(visual.attnpool, x)
    if is_vit(visual):
        x = visual.transformer(visual.ln_pre(embedded(visual, pixels)))
        return visual.ln_post(x[:, 1:]) @ visual.proj
    raise ConfigError(
        f"Patch features need a CLIP ResNet or a ViT with a class token, not {type(visual).__name__}: "
        "use other towers (RN50, ViT-B-16, compact) or a method on pooled features."
    )


def _pool_everywhere(pool: Any, x: Tensor) -> Tensor:
    tokens = x.flatten(2).transpose(1, 2)  # [n, M, w]
    tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1)
    tokens = tokens + pool.positional_embedding.to(x.dtype)
    q, k, v = (
        layer(tokens).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
        for layer in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    mixed = F.scaled_dot_product_attention(q[:, :, 1:], k, v)
    return pool.c_proj(mixed.transpose(1, 2).flatten(2))


def after_blocks(visual: Any, pixels: Tensor, n_blocks: int) -> Tensor:
    """Tokens [n, 1 + M, w] after the first blocks: where adapters begin above them, features that nothing changes."""
    x = visual.ln_pre(embedded(visual, pixels))
    for block in visual.transformer.resblocks[:n_blocks]:
        x = run_block(block, x[None], None)[0]
    return x


def prompted(
    visual: Any,
    images: Tensor,
    tokens: Tensor,
    *,
    deep: Tensor | None = None,
    cosine: bool = False,
    adapter: Adapter | None = None,
    passed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Image features with visual prompt tokens, and the class token's attention to them.

    The n tokens of a client enter after the positional embedding and before the first LayerNorm, behind the patches
    (MaPLe, Khattak et al. 2023); behind the class token (Fed-DPT, Wei et al. 2023) features would be the same, as
    attention does not depend on the order. `deep` replaces them at the input of blocks 1 to J, `adapter` adds a branch
    of each client's to blocks.

    Args:
        images: pixels [C, B, 3, H, W], or after `passed` blocks what `after_blocks` returns [C, B, 1 + M, w].
        tokens: [C, n, w], n = 0 where images have passed blocks. deep: [C, J, n, w].

    Returns:
        features [C, B, D] and q_cls·k_token of the last block per head [C, B, heads, n], unscaled, or with `cosine`
        between q and k of unit length.

    Raises:
        ConfigError: the image tower is not a ViT with a class token, or images have passed what is changed.
    """
    require_vit(visual)
    n_clients, n_images = images.shape[:2]
    n_tokens = tokens.shape[1]
    if passed and (n_tokens or (adapter is not None and adapter.first < passed)):
        raise ConfigError(
            f"Images have passed the first {passed} blocks of the image tower, where the method's prompts or adapters "
            "begin earlier: raise its image_blocks, or set it to None."
        )

    def per_image(rows: Tensor) -> Tensor:  # [C, n, w] -> [C B, n, w]
        return rows[:, None].expand(-1, n_images, -1, -1).flatten(0, 1)

    x = images.flatten(0, 1)
    if not passed:
        with torch.no_grad():
            x = embedded(visual, x)
        x = visual.ln_pre(torch.cat([x, per_image(tokens)], dim=1))
    first = x.shape[1] - n_tokens
    blocks = visual.transformer.resblocks
    branches = [None if adapter is None else adapter.at(j) for j in range(len(blocks))]
    for j in range(passed, len(blocks)):
        if deep is not None and 1 <= j <= deep.shape[1]:
            x = torch.cat([x[:, :first], per_image(deep[:, j - 1])], dim=1)
        if j + 1 < len(blocks):
            x = run_block(blocks[j], x.unflatten(0, (n_clients, n_images)), branches[j]).flatten(0, 1)
    features, looks = _last_block(blocks[-1], x, slice(first, None), branches[-1], n_clients, cosine=cosine)
    features = visual.ln_post(features) @ visual.proj
    return features.unflatten(0, (n_clients, n_images)), looks.unflatten(0, (n_clients, n_images))


def cost(visual: Any, n_images: int, n_tokens: int = 0, below: int = 0, passed: int = 0) -> Cost:
    """Tokens and operations of `prompted`, with gradients through all blocks but the first `below`,
    of images that have `passed` blocks before.

    What a backward pass costs is as `fpl_tune.clip.text.cost` counts it; branches of adapters are left out.
    """
    width, blocks = visual.conv1.out_channels, visual.transformer.resblocks
    n_whole = len(blocks) - 1  # the last block is one of class tokens
    n_patches = math.prod(visual.grid_size)
    rows, hidden = 1 + n_patches + n_tokens, blocks[0].mlp.c_fc.out_features
    whole, last = rows * (4 * width**2 + 2 * width * hidden), 2 * rows * width**2 + 2 * width * (width + hidden)
    pairs, head = rows**2 * width, width * visual.proj.shape[1]
    stem = 0 if passed else n_patches * math.prod(visual.conv1.weight.shape)
    forward = stem + (n_whole - passed) * (whole + 2 * pairs) + last + 2 * rows * width + head
    backward = max(0, n_whole - below) * (whole + 4 * pairs) + (below <= n_whole) * (last + 4 * rows * width) + head
    return Cost(n_images * rows, 2 * n_images * forward, 2 * n_images * backward)


def embedded(visual: Any, pixels: Tensor) -> Tensor:
    """Class token and patches [n, 1 + M, w] with their positions, before the first LayerNorm."""
    x = visual.conv1(pixels).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    return x + visual.positional_embedding.to(x.dtype)


def _last_block(
    block: Any, x: Tensor, prompts: slice, branch: Adapter | None, n_clients: int, *, cosine: bool
) -> tuple[Tensor, Tensor]:
    """The class token [n, w] after a block, and its product with the prompts' keys [n, heads, tokens]."""
    attn = block.attn
    width, n_heads = x.shape[-1], attn.num_heads
    weight, bias = attn.in_proj_weight, attn.in_proj_bias
    y = block.ln_1(x)
    q = F.linear(y[:, :1], weight[:width], bias[:width]).unflatten(-1, (n_heads, -1)).transpose(1, 2)
    k, v = (
        part.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for part in F.linear(y, weight[width:], bias[width:]).chunk(2, dim=-1)
    )
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    cls = finish_block(block, x[:, :1], y[:, :1], mixed, branch, n_clients)
    k = k[:, :, prompts]
    if cosine:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return cls[:, 0], (q @ k.transpose(-2, -1))[:, :, 0]
