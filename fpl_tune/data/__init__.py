"""Data sets, federated partitions, few-shot draws and the image feature cache.

`load` lists a data set, `split` distributes it over clients, `features` encodes its images and caches the result.
May import `files`, `spec` and libraries. Open `spec.py` first. Modules are imported on first use, so that the command
line completes options without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fpl_tune.data.spec import DataSpec, PartitionSpec

if TYPE_CHECKING:
    from fpl_tune.data.cache import features
    from fpl_tune.data.exchange import export_split, import_split
    from fpl_tune.data.pool import Dataset, Pool
    from fpl_tune.data.protocol import Split, TestSet, split
    from fpl_tune.data.registry import load, natural, resolve

_HOME = {
    "export_split": "exchange",
    "import_split": "exchange",
    "Dataset": "pool",
    "Pool": "pool",
    "Split": "protocol",
    "TestSet": "protocol",
    "features": "cache",
    "load": "registry",
    "natural": "registry",
    "resolve": "registry",
    "split": "protocol",
}

__all__ = [
    "DataSpec",
    "Dataset",
    "PartitionSpec",
    "Pool",
    "Split",
    "TestSet",
    "export_split",
    "features",
    "import_split",
    "load",
    "natural",
    "resolve",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
