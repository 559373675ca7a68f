"""Versions of the packages that results may depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

from fpl_tune.core.version import __version__

OLDEST_RAY = (2, 55)
"""As in pyproject.toml: the first without CVE-2026-27482 and CVE-2026-32981."""


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, by name; imports none of them."""
    packages = ("torch", "open_clip_torch", "numpy", "optuna", "ray")
    return {"python": platform.python_version(), "fpl-tune": __version__, **{name: version(name) for name in packages}}


def outdated_ray(installed: str) -> str:
    """The problem of an outdated version of Ray, with the remedy; empty if the version is recent enough."""
    if tuple(map(int, installed.split(".")[:2])) >= OLDEST_RAY:
        return ""
    wanted = ".".join(map(str, OLDEST_RAY))
    return f"has ray {installed} with CVE-2026-27482 or CVE-2026-32981. Install ray[tune]>={wanted}"
