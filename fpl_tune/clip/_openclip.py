"""Imports open_clip with a torchvision of another build than torch (CUDA and CPU), without torch's compiler, timm and
transformers.

open_clip imports torchvision and timm, which import the compiler to mark functions that it must not compile. Nothing
here calls the compiler, and importing it takes 1.2 s of the 2.0 s of open_clip and 70 MB in every process. timm, which
open_clip needs for image towers of timm alone, takes 0.3 s and 25 MB; transformers, for text towers of Hugging Face
alone, 0.5 s and more once it is used.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import torch

_COMPILER = ("torch._dynamo", "torch._dynamo.utils")
_TIMM = ("timm", "timm.layers")
_TRANSFORMERS = "transformers"
_MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
_libraries: list[torch.library.Library] = []  # a collected library takes its definitions with it


def ensure_importable() -> None:
    """Imports open_clip; call it before `import open_clip`."""
    if "open_clip" in sys.modules:
        return
    try:
        with _left_out(*_COMPILER, *_TIMM, _TRANSFORMERS):
            _import()
    except ImportError:  # another release uses more of them
        _import()


def _import() -> None:
    """Declares, without a kernel, operators that a mismatched torchvision lacks: open_clip uses only its transforms,
    which do not call them."""
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
def _left_out(*names: str) -> Iterator[None]:
    """Replaces modules during an import, but for those that are imported already."""
    names = tuple(name for name in names if name not in sys.modules)
    for name in names:
        sys.modules[name] = None if name == _TRANSFORMERS else _StandIn(name)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


class _StandIn(ModuleType):
    """A module whose decorators return functions unchanged and whose functions are resolved when called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # a package

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "disable":
            return lambda function=None, *_, **__: (lambda marked: marked) if function is None else function
        return lambda *args, **more: getattr(self._imported(), name)(*args, **more)

    def _imported(self) -> ModuleType:
        with _left_out(*(_COMPILER if self.__name__ in _TIMM else ())):
            return importlib.import_module(self.__name__)


def without_compiler() -> AbstractContextManager[None]:
    """A block that does not import PyTorch's compiler (1.2 s and 70 MB in every process) where PyTorch only marks code
    for it, as its counter of operations does."""
    return _left_out(*_COMPILER)


def import_transformers() -> bool:
    """Lets open_clip build text towers of Hugging Face. Returns False where transformers is not installed."""
    ensure_importable()
    from open_clip import hf_model, model

    if hf_model.transformers is None:
        model.HFTextEncoder = importlib.reload(hf_model).HFTextEncoder  # pyright: ignore[reportAttributeAccessIssue]
    return hf_model.transformers is not None


def imagenet_names() -> tuple[str, ...]:
    """ImageNet's thousand class names as open_clip lists them."""
    ensure_importable()
    from open_clip import IMAGENET_CLASSNAMES

    return tuple(IMAGENET_CLASSNAMES)
