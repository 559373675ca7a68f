"""Prompts of other clients that serve a client: which ones, and what its images see of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fpl_tune.method import State


class Experts(NamedTuple):
    """The experts of each client as all its images see them; of the linear gate, features instead of keys."""

    key: Tensor
    """[C, E, K, h, x]"""
    value: Tensor
    """[C, E, K, h, x]"""
    weights: Sequence[Tensor]
    """[C, G, G] of query and output."""
    biases: Sequence[Tensor]
    """[C, 1, G] of query and output."""


def choose_experts(state: State, who: Tensor, n: int, selection: str) -> tuple[Tensor, Tensor]:
    """Ids [C, n] of the other clients whose pool entries serve `who`, and which of them [C, n] may be used.

    A client without an entry of its own gets none: it has nothing to measure distances from.
    """
    pool, entered, order = (state.server[name] for name in ("pool", "entered", "order"))
    if selection == "nearest":
        flat = pool.flatten(1)
        rank = torch.cdist(flat[who], flat, compute_mode="donot_use_mm_for_euclid_dist")
    else:
        rank = order.to(pool.dtype).expand(len(who), -1)
    others = torch.arange(len(pool), device=who.device) != who.unsqueeze(1)
    rank = torch.where(entered & others, rank, torch.inf)
    nearest, chosen = rank.sort(dim=1, stable=True)
    return chosen[:, :n], nearest[:, :n].isfinite() & entered[who].unsqueeze(1)
