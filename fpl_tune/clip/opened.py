"""open_clip's residual block, opened up so that a method's branch reaches inside.

Letters in shapes: C clients, S sequences of a client, L tokens of a sequence, w width.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Adapter


def run_block(block: Any, x: Tensor, adapter: Adapter | None, mask: Tensor | None = None) -> Tensor:
    """Tokens [C, S, L, w] after a block, by its own forward pass where there is no branch.

    Raises:
        ConfigError: a branch in a block whose attention is not PyTorch's.
    """
    rows = x.flatten(0, 1)
    if adapter is None:
        return block(rows, attn_mask=mask).view_as(x)
    attn = block.attn
    if not isinstance(attn, nn.MultiheadAttention):
        raise ConfigError(
            f"A branch inside a tower needs PyTorch's attention, not {type(attn).__name__}: use RN50, ViT-B-16, "
            "ViT-B-32 or compact."
        )
    y = block.ln_1(rows)
    qkv = F.linear(y, attn.in_proj_weight, attn.in_proj_bias)
    q, k, v = qkv.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    return finish_block(block, rows, y, mixed, adapter, len(x)).view_as(x)


def finish_block(block: Any, x: Tensor, y: Tensor, mixed: Tensor, adapter: Adapter | None, n_clients: int) -> Tensor:
    """The rest of a layer: tokens [C S, L, w] of the input, after the first LayerNorm, and mixed -> the output."""
    after = _added(adapter, "attention", mixed, x, n_clients) + block.ls_1(block.attn.out_proj(mixed))
    after = after + block.ls_2(block.mlp(block.ln_2(after)))
    return _added(adapter, "block", y, after, n_clients)


def _added(adapter: Adapter | None, place: str, x: Tensor, onto: Tensor, n_clients: int) -> Tensor:
    if adapter is None:
        return onto
    tokens = (n_clients, -1, onto.shape[-1])
    return adapter.added(place, x.reshape(tokens), onto.reshape(tokens)).view(onto.shape)
