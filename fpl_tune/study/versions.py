"""Versions of the packages that results may depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

from fpl_tune import __version__


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute or draw, by name; imports none of them."""
    packages = ("torch", "open_clip_torch", "numpy", "optuna", "ray")
    return {"python": platform.python_version(), "fpl-tune": __version__, **{name: version(name) for name in packages}}
