"""Seeds of random generators, derived from their purpose, so that results do not depend on the order of draws."""

from __future__ import annotations

import hashlib

import torch


def derive(*key: object) -> int:
    """A seed for a generator from a key, stable across processes and versions: 63 bits of a digest."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little") >> 1


def generator(*key: object) -> torch.Generator:
    """A CPU generator seeded by `derive(*key)`."""
    return torch.Generator().manual_seed(derive(*key))
