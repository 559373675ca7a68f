"""Importing open_clip: where torchvision's build does not match torch's (CUDA beside CPU), and without the compiler.

open_clip brings torchvision and timm, which import torch's compiler to mark functions that it must not touch: more
than half of what open_clip takes to import, for a compiler that nothing here calls.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

_COMPILER = ("torch._dynamo", "torch._dynamo.utils")
_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_libraries: list[torch.library.Library] = []  # a collected library takes its definitions with it


def ensure_importable() -> None:
    """Imports open_clip; afterwards `import open_clip` is what it always is."""
    if "open_clip" in sys.modules:
        return
    try:
        with _compiler_left_out():
            _import()
    except ImportError:  # another release asks more of the compiler
        _import()


def _import() -> None:
    """Operators that torchvision's compiled half did not bring are declared without a kernel: open_clip imports it for
    its transforms, none of which calls such an operator."""
    while True:
        try:
            import torchvision  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
        except RuntimeError as error:
            missing = _MISSING.search(str(error))
            if missing is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(f"{missing.group(1)}() -> ()")
            _libraries.append(library)
            for name in [name for name in list(sys.modules) if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
        else:
            importlib.import_module("open_clip")
            return


@contextmanager
def _compiler_left_out() -> Iterator[None]:
    """Stand-ins for the compiler's modules, unless it is there already; whoever imports it later gets the real one."""
    if _COMPILER[0] in sys.modules:
        yield
        return
    for name in _COMPILER:
        sys.modules[name] = _StandIn(name)
    try:
        yield
    finally:
        for name in _COMPILER:
            del sys.modules[name]


class _StandIn(ModuleType):
    """Answers for a module: its decorators leave functions as they are, its functions are looked up when called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "disable":
            return lambda function=None, *_, **__: (lambda marked: marked) if function is None else function
        return lambda *args, **more: getattr(importlib.import_module(self.__name__), name)(*args, **more)
