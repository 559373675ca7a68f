"""Code of other packages: imported where the user names it, never because a file does.

A study file may come from anywhere, and importing a module runs it. The user names a module on the command line (or in
the overrides of the Python interface), or for good in FPL_TUNE_PLUGINS, a list with commas. Installed packages with an
entry point in `fpl_tune.methods` need neither.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from fpl_tune.errors import ConfigError
from fpl_tune.plugins import VARIABLE, trusted


def trust(overrides: Iterable[str]) -> None:
    """Notes the modules that the user's own overrides name as `package.module:Class`."""
    named = [top for text in overrides for top in re.findall(r"(?<![\w.])([A-Za-z_]\w*)(?:\.\w+)*:[A-Za-z_]", text)]
    if new := [top for top in dict.fromkeys(named) if top not in trusted()]:
        os.environ[VARIABLE] = ",".join([*trusted(), *new])


def check(name: str) -> None:
    """Raises `ConfigError` for a `package.module:Class` that only a file names."""
    top = name.partition(":")[0].partition(".")[0]
    if top not in ("fpl_tune", *trusted()):
        raise ConfigError(
            f"A file may not bring in code, but names the method {name!r}. If you trust the module {top}: "
            f"{VARIABLE}={top}, or name the method yourself: method={name}."
        )
