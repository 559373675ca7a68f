"""The files that do the verbs' work: `work.study` is `_study.py`, imported when it is first touched."""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpl_tune.cli import _bench as bench
    from fpl_tune.cli import _cluster as cluster
    from fpl_tune.cli import _data as data
    from fpl_tune.cli import _doctor as doctor
    from fpl_tune.cli import _look as look
    from fpl_tune.cli import _manage as manage
    from fpl_tune.cli import _run as run
    from fpl_tune.cli import _study as study

__all__ = ["bench", "cluster", "data", "doctor", "look", "manage", "run", "study"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(name)
    gc.disable()  # an import makes many objects that stay; looking for garbage among them takes a tenth of its time
    try:
        return import_module(f"fpl_tune.cli._{name}")
    finally:
        gc.freeze()
        gc.enable()
