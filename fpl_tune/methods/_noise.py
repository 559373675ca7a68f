"""Random numbers of clients for training steps, which are the same on every device.

A number is a hash of the client's key, the number of its draws so far, and the number's place (SplitMix64: Steele, Lea,
Flood, OOPSLA 2014). The generator is meant for simulations and is not cryptographically secure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fpl_tune.method import Task, Tree

_GOLDEN, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""SplitMix64's constants as signed numbers."""


def new_keys(task: Task, clients: Tensor) -> Tree:
    """A key for each client of a cohort [C] in this round, and its number of draws so far, 0."""
    key = torch.randint(1 << 62, (task.n_clients,), generator=task.rng("noise")).to(task.device)[clients]
    return {"key": key, "drawn": torch.zeros_like(key)}


def uniform(keys: Tree, stream: int, *shape: int) -> Tensor:
    """[C, *shape] numbers in (0, 1), in double precision.

    Args:
        keys: `key` and `drawn`, each [C].
        stream: distinguishes numbers that are drawn in the same step.
        shape: shape of one client's numbers.
    """
    place = torch.arange(1, math.prod(shape) + 1, device=keys["key"].device)
    offset = (_GOLDEN * (stream + 1) + (1 << 63)) % (1 << 64) - (1 << 63)  # tensors wrap by themselves, ints do not
    state = _mixed(_mixed(keys["key"] + offset) + _GOLDEN * (keys["drawn"] + 1))
    bits = _shifted(_mixed(state.unsqueeze(-1) + _GOLDEN * place), 11)  # 53 bits, all that a double holds
    return ((bits.double() + 0.5) * 2.0**-53).view(-1, *shape)


def normal(keys: Tree, stream: int, *shape: int) -> Tensor:
    """[C, *shape] standard normal numbers, by Box and Muller."""
    radius = (-2 * uniform(keys, 2 * stream, *shape).log()).sqrt()
    return radius * (2 * math.pi * uniform(keys, 2 * stream + 1, *shape)).cos()


def _shifted(bits: Tensor, places: int) -> Tensor:
    """Logical shift to the right."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _mixed(bits: Tensor) -> Tensor:
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return bits ^ _shifted(bits, 31)
