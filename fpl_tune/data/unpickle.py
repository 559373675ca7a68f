"""Reads pickles that come with data sets, and only lists, texts, numbers and arrays in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fpl_tune.errors import EnvironmentProblem

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, encoding="utf-8": text.encode(encoding),  # how protocol 2 writes bytes
}
for _package in ("numpy.core", "numpy._core"):  # numpy moved between versions; the makers are numpy's own
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = np.empty(1).__reduce__()[0]
    _ALLOWED[f"{_package}.multiarray", "scalar"] = np.int64(0).__reduce__()[0]
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = np.empty(1).__reduce_ex__(5)[0]


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no list of images needs") from None


def unpickle(path: Path) -> Any:
    """What a pickle of lists, texts, numbers and numpy arrays holds; bytes become texts (Latin-1).

    Raises `EnvironmentProblem` for a file that is missing, damaged or asks for anything else.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file, encoding="latin1").load()
    except FileNotFoundError:
        raise EnvironmentProblem(f"There is no {path}. Complete the download.") from None
    except (pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise EnvironmentProblem(f"Cannot read {path}: {error}. It was not opened further; fetch it again.") from None
