"""Data sets, federated partitions, few-shot draws and the image feature cache.

`load` lists a data set, `split` distributes it over clients, `features` encodes its images and caches the result.
Start with `spec.py`.
"""

from fpl_tune.data.cache import features
from fpl_tune.data.pool import Dataset, Pool
from fpl_tune.data.protocol import split
from fpl_tune.data.registry import load, outline, resolve
from fpl_tune.data.spec import DataSpec, PartitionSpec
from fpl_tune.data.splits import Split, TestSet, export_split, import_split

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
    "outline",
    "resolve",
    "split",
]
