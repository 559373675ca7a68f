"""Tensors of a TorchScript archive, read as data: `torch.jit.load` would run the code that such a file brings."""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def is_scripted(path: Path) -> bool:
    """Whether a file is a TorchScript archive."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.partition("/")[2].startswith("code/") for name in archive.namelist())


def read_archive(path: Path) -> tuple[dict[str, Tensor], set[str]]:
    """All tensors of the modules in an archive by the dotted name they have in a state dict, and the modules' classes.

    Raises:
        pickle.UnpicklingError: it contains anything but modules, tensors, numbers and strings.
        RuntimeError, KeyError: it is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        root = next((name.partition("/")[0] for name in names if name.endswith("/data.pkl")), None)
        if root is None:
            raise pickle.UnpicklingError("it has no data.pkl")
        reader = _Reader(archive, root)
        return dict(_walk(reader.load(), "")), reader.classes


class _Module:
    """A module of the archive: its stored attributes by name."""

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise pickle.UnpicklingError("a module has code of its own for loading, which is not run")
        self.parts = state


def _walk(module: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    for name, part in getattr(module, "parts", {}).items():
        if isinstance(part, Tensor):
            yield f"{prefix}{name}", part
        elif isinstance(part, _Module):
            yield from _walk(part, f"{prefix}{name}.")


class _Reader(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(BytesIO(archive.read(f"{root}/data.pkl")))
        self._archive, self._root = archive, root
        self._read: dict[str, Tensor] = {}
        self.classes: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "__torch__":
            self.classes.add(name)
            return _Module
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch.jit._pickle":
            return _first  # typed lists and dictionaries
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not allowed")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, *_ = pid
        if key not in self._read:
            content = self._archive.read(f"{self._root}/data/{int(key)}")
            empty = torch.zeros(0, dtype=dtype)
            self._read[key] = torch.frombuffer(bytearray(content), dtype=dtype) if content else empty
        return self._read[key]


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset).clone()


def _first(value: Any, *_: Any) -> Any:
    return value
