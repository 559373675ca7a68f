"""Rules that several methods have: each raises `ConfigError` that names the field, the value and a remedy."""

from __future__ import annotations

import math

from fpl_tune.method import Method, Sizes, require


def require_positive(method: Method, *fields: str) -> None:
    """Whole numbers >= 1."""
    for name in fields:
        value = getattr(method, name)
        require(value >= 1, name, "must be >= 1", value)


def require_weights(method: Method, *fields: str) -> None:
    """Finite numbers >= 0."""
    for name in fields:
        value = getattr(method, name)
        require(math.isfinite(value) and value >= 0, name, "must be a finite number >= 0", value)


def require_vit(sizes: Sizes, method: str) -> None:
    """An image tower that is a vision transformer."""
    require(
        sizes.vision_width is not None,
        "name",
        "must be a method without visual prompts, as the image tower is not a vision transformer",
        method,
        "Use clip=compact, vit_b32 or vit_b16.",
    )


def require_same_classes(sizes: Sizes, method: str, kind: str = "with prompts", instead: str = "promptfl") -> None:
    """Test sets of no other classes than those of training."""
    rule = f"must be a method {kind}, as the partition tests on novel classes"
    require(sizes.same_classes, "name", rule, method, f"Use {instead} or another partition.")
