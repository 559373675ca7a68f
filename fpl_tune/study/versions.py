"""Versions of the packages that results may depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute or draw, by name; imports none of them."""
    found = {"python": platform.python_version()}
    for name in ("fpl-tune", "torch", "open_clip_torch", "numpy", "optuna", "ray"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
