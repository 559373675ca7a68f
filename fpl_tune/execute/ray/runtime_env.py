"""The code that workers of a cluster run: this very package and the modules of plug-in methods, sent by the driver."""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fpl_tune
from fpl_tune.method import Method
from fpl_tune.plugins import VARIABLE


def runtime_env() -> dict[str, Any]:
    """Ray's runtime environment of a study; nodes need the requirements of fpl-tune, not fpl-tune itself."""
    package = Path(inspect.getfile(fpl_tune)).parent
    trusted = {name: os.environ[name] for name in (VARIABLE,) if name in os.environ}
    return {"py_modules": [str(package), *plugins()], "excludes": ["**/__pycache__/", "*.pyc"], "env_vars": trusted}


def plugins() -> list[str]:
    """Files and packages that loaded methods come from and that are not installed: what lies in the user's folder."""
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]
    found = set()
    for kind in _kinds(Method):
        top = sys.modules.get(kind.__module__.partition(".")[0])
        file = getattr(top, "__file__", None)
        if file is None or top is fpl_tune or kind.__module__ == "__main__":
            continue
        path = Path(file).resolve()
        if not any(path.is_relative_to(folder) for folder in installed):
            found.add(str(path.parent if path.name == "__init__.py" else path))
    return sorted(found)


def _kinds(kind: type[Any]) -> Iterator[type[Any]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _kinds(sub)
