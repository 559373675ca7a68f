"""Fills the feature cache with all that a trial will read from it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fpl_tune.data.augment import views_of
from fpl_tune.data.cache import Encoder, Progress, features
from fpl_tune.data.registry import load
from fpl_tune.data.spec import DataSpec


@dataclass(frozen=True)
class Prepared:
    """Features of a pool, or of one random view of it, in the cache."""

    pool: str
    view: str
    shape: tuple[int, ...]
    dtype: str
    megabytes: float
    seconds: float
    """Near zero where the cache held them already."""


def prepare(
    spec: DataSpec,
    towers: Encoder,
    needs: str,
    second: str | None = None,
    *,
    cache_dir: str | Path,
    progress: Progress | None = None,
) -> list[Prepared]:
    """Encodes both pools of a data set and the random views that training draws from, on the device of `towers`.

    Args:
        spec: the data set, and how many random views of a training image there are.
        towers: in the arithmetic of the run.
        needs: `Method.needs`, and `second` its `Method.view`.
        cache_dir: folder of the cache.
        progress: called after every batch.
    """
    dataset = load(spec)
    crops, others = views_of(spec.views, second)
    looks = [(dataset.train, None), (dataset.test, None), *((dataset.train, view) for view in (*crops, *others))]
    done = []
    for pool, view in looks:
        began = time.perf_counter()
        held = features(pool, towers, needs, cache_dir=cache_dir, view=view, progress=progress)
        seconds = round(time.perf_counter() - began, 3)
        dtype, megabytes = str(held.dtype).removeprefix("torch."), round(held.nbytes / 1e6, 2)
        named = "-".join(map(str, view or ()))
        done.append(Prepared(pool.key, named, tuple(held.shape), dtype, megabytes, seconds))
    return done


def table(done: list[Prepared]) -> Table:
    """For the terminal."""
    shown = Table("pool", "view", "features", "type", "MB", "seconds")
    for row in done:
        shape = " x ".join(map(str, row.shape))
        shown.add_row(row.pool, row.view, shape, row.dtype, f"{row.megabytes:,}", f"{row.seconds:.2f}")
    return shown


def to_dicts(done: list[Prepared]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(row) for row in done]
