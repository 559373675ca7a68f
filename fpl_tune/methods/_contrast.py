"""Shared by methods whose released code contrasts the images of a batch with their class sentences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fpl_tune.method import mean_over


def contrastive(similarity: Tensor, mask: Tensor) -> Tensor:
    """[C, B, B] scaled similarities of images and their own sentences, [C, B] -> [C]: InfoNCE over both axes.

    Padding is nobody's negative; the diagonal stays, so that padded rows are finite before they are dropped.
    """
    own = torch.eye(similarity.shape[-1], dtype=torch.bool, device=similarity.device)
    absent = ~mask[:, None] & ~own
    target = torch.arange(similarity.shape[-1], device=similarity.device).expand(mask.shape)

    def one_way(scores: Tensor) -> Tensor:
        scores = scores.masked_fill(absent, float("-inf"))
        values = F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        return mean_over(values, mask)

    return (one_way(similarity) + one_way(similarity.mT)) / 2
