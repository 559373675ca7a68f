"""Fills the feature cache with all that a trial will read from it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from fpl_tune.data.augment import pools_and_views
from fpl_tune.data.cache import Encoder, Progress, features
from fpl_tune.data.registry import load
from fpl_tune.data.spec import DataSpec


def prepare(
    spec: DataSpec,
    towers: Encoder,
    needs: str,
    second: str | None = None,
    *,
    cache_dir: str | Path,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Encodes both pools of a data set and the random views that training draws from, on the device of `towers`.

    Args:
        spec: the data set, and how many random views of a training image there are.
        towers: in the arithmetic of the run.
        needs: `Method.needs`, and `second` its `Method.view`.
        cache_dir: folder of the cache.
        progress: called after every batch.

    Returns:
        Size and time of each pool or view; `seconds` is near zero where the cache held it already.
    """
    rows = []
    for pool, view in pools_and_views(load(spec), spec.views, second):
        began = time.perf_counter()
        held = features(pool, towers, needs, cache_dir=cache_dir, view=view, progress=progress)
        rows.append(
            {
                "pool": pool.key,
                "view": "-".join(map(str, view or ())),
                "shape": list(held.shape),
                "dtype": str(held.dtype).removeprefix("torch."),
                "megabytes": round(held.nbytes / 1e6, 2),
                "seconds": round(time.perf_counter() - began, 3),
            }
        )
    return rows
