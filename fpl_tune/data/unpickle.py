"""Reads pickles of data sets, in which only lists, strings, numbers and arrays are allowed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fpl_tune.core.errors import EnvironmentProblem

_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): lambda text, encoding="utf-8": text.encode(encoding),  # how protocol 2 writes bytes
}
for _package in ("numpy.core", "numpy._core"):  # numpy's modules moved between versions
    _ALLOWED[f"{_package}.multiarray", "_reconstruct"] = np.empty(1).__reduce__()[0]
    _ALLOWED[f"{_package}.multiarray", "scalar"] = np.int64(0).__reduce__()[0]
    _ALLOWED[f"{_package}.numeric", "_frombuffer"] = np.empty(1).__reduce_ex__(5)[0]


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not allowed") from None


def unpickle(path: Path) -> Any:
    """The content of a pickle of lists, strings, numbers and numpy arrays; bytes become strings (Latin-1).

    Raises:
        EnvironmentProblem: the file is missing, damaged, or contains anything else.
    """
    try:
        with path.open("rb") as file:
            return _Restricted(file, encoding="latin1").load()
    except FileNotFoundError:
        raise EnvironmentProblem(f"There is no {path}. Complete the download.") from None
    except (pickle.UnpicklingError, EOFError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise EnvironmentProblem(f"Cannot read {path}: {error}. Download it again.") from None
